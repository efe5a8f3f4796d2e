"""Named places where a crash test ends the process or makes an operation fail.

Owns one environment variable, `AGENTBUS_TEST_FAILPOINT`, read once at import: `name` kills the own
process with SIGKILL when it gets there, `name:raise` raises OSError instead. Without it every place
costs one comparison. Any thread.
"""

from __future__ import annotations

import os
import signal

_name, _, _action = os.environ.get("AGENTBUS_TEST_FAILPOINT", "").partition(":")


def reach(name: str) -> None:
    """Say that execution got to the place `name`."""
    if name != _name:
        return
    if _action == "raise":
        raise OSError(f"failpoint {name}")
    os.kill(os.getpid(), signal.SIGKILL)
