"""`stop`: end the daemon in order. Adapters stay away until their next tool call.

Idempotent: no daemon is what was wanted. Runs on the main thread.
"""

from __future__ import annotations

from pathlib import Path

from agentbus.cli.entry import EXIT_OK, Arguments
from agentbus.cli.output import print_json
from agentbus.cli.running import find_daemon
from agentbus.cli.text import for_terminal


def stop(arguments: Arguments) -> int:
    """Ask the daemon to stop and wait until it has gone."""
    daemon = find_daemon()
    if daemon is None:
        if arguments["--json"]:
            print_json({"was_running": False, "pid": None})
        else:
            print("No daemon was running.")
        return EXIT_OK
    with daemon:
        used_path = daemon.config_path()
        daemon.ask("stop")
        daemon.wait_until_gone()
    if arguments["--json"]:
        print_json({"was_running": True, "pid": daemon.pid})
    else:
        print(f"The daemon (process {daemon.pid}) has stopped; the next tool call starts another.")
        asked = arguments["--config"]
        if asked is not None and used_path is not None and used_path != Path(asked).absolute():
            print(f"It had been started with {for_terminal(used_path)}.")
    return EXIT_OK
