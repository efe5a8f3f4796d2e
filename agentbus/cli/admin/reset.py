"""`reset`: delete everything on the bus, after the person has agreed.

With a running daemon the daemon does it; without one this process takes the daemon's locks, so that
none can start meanwhile, and empties the database itself. Runs on the main thread.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from agentbus.cli.admin.locks import hold_bus
from agentbus.cli.entry import EXIT_FAILURE, EXIT_OK, Arguments, complain
from agentbus.cli.output import print_json
from agentbus.cli.running import find_daemon
from agentbus.cli.text import for_terminal
from agentbus.config import DATABASE_NAME, Config, load_config
from agentbus.errors import UnavailableError, UnknownOutcomeError, ValidationError

RESET_S = 20.0
"""The daemon stops in order first, which takes 5 s at most, then empties the database."""

WHAT_IS_LOST = (
    "This deletes all messages, channels, agents, sessions, subscriptions and receipts for good.\n"
    "Configuration and logs stay. Connected sessions go on as new ones and are told."
)


def reset(arguments: Arguments) -> int:
    """Empty the bus. Exit 2 when nobody can be asked, 1 when the person declines."""
    asked_path = None if arguments["--config"] is None else Path(arguments["--config"])
    daemon = find_daemon()
    if daemon is None:
        config = load_config(asked_path)
        if not _agreed(arguments, config.data_directory):
            return EXIT_FAILURE
        answer = _reset_here(config)
    else:
        with daemon:
            data_directory = daemon.data_directory(asked_path)
            if not _agreed(arguments, data_directory):
                return EXIT_FAILURE
            answer = daemon.ask("reset", RESET_S)
            daemon.wait_until_gone()
    if arguments["--json"]:
        print_json({"bus_id": answer["bus_id"], "daemon_stopped": daemon is not None})
    else:
        print(f"The bus is empty; its new id is {answer['bus_id']}.")
        if daemon is not None:
            print("The daemon has stopped; the next tool call starts one.")
    return EXIT_OK


def _agreed(arguments: Arguments, data_directory: object) -> bool:
    if arguments["--yes"]:
        return True
    if not sys.stdin.isatty():
        raise ValidationError(
            f"reset would delete all data in {data_directory} and there is no terminal to ask at; "
            "give --yes to do it"
        )
    # To stderr: with --json, stdout holds the document and nothing else.
    print(f"{WHAT_IS_LOST}\nData folder: {for_terminal(data_directory)}", file=sys.stderr)
    print("Type yes to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() == "yes":
        return True
    complain("nothing was deleted")
    return False


def _reset_here(config: Config) -> dict[str, Any]:
    from agentbus.clock import SystemClock
    from agentbus.store.connection import CommitUncertain, DatabaseUnusable
    from agentbus.store.reset import reset_database

    try:
        with hold_bus(config, "nothing was deleted"):
            result = reset_database(
                config.data_directory / DATABASE_NAME,
                config.sqlite_synchronous,
                SystemClock().wall_us(),
            )
    except DatabaseUnusable as error:
        raise UnavailableError(str(error)) from None
    except CommitUncertain as error:
        raise UnknownOutcomeError(str(error)) from None
    return {"bus_id": result.bus_id}
