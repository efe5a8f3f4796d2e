"""Where the program `agentbus` is: what harnesses are told to start. Main thread."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from agentbus.errors import NotFoundError


def own_program() -> Path:
    """The `agentbus` beside this program, by its whole path: harnesses have a PATH of their own."""
    beside = Path(sys.argv[0]).absolute().with_name("agentbus")
    if beside.is_file():
        return beside
    found = shutil.which("agentbus", path=str(Path(sys.executable).parent)) or shutil.which(
        "agentbus"
    )
    if found is None:
        raise NotFoundError("the command `agentbus` is not installed; install the package first")
    return Path(found).absolute()
