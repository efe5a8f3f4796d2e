"""`agentbus daemon`: become the daemon, or start it in the background.

The command line never imports the daemon; the argv is the only seam. Runs on the main thread.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from agentbus.cli.entry import EXIT_OK, Arguments
from agentbus.cli.running import need_daemon, runtime_paths
from agentbus.cli.text import for_terminal
from agentbus.config import default_path
from agentbus.launch import daemon_command, ensure_daemon

DETACHED_START_S: Final = 15.0


def daemon(arguments: Arguments) -> int:
    """Run in the foreground (does not return), or start one and wait until it answers."""
    given = arguments["--config"]
    config_path = default_path() if given is None else Path(os.path.abspath(given))
    if not arguments["--detach"]:
        sys.stdout.flush()
        os.chdir("/")  # as a detached one: no folder is kept busy, none is searched for modules
        command = [*daemon_command(config_path), "--foreground"]
        os.execv(command[0], command)
    ensure_daemon(runtime_paths(), config_path, deadline_s=DETACHED_START_S).close()
    with need_daemon() as running:
        used_path = running.config_path()
    print(f"The daemon runs (process {running.pid}).")
    if used_path is not None and used_path != config_path:
        print(
            f"It was started with {for_terminal(used_path)}, not with {for_terminal(config_path)}; "
            "to change that run agentbus stop first."
        )
    return EXIT_OK
