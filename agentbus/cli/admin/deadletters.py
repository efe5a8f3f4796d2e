"""`agentbus-admin deadletters`: callbacks of jobs that were given up, and another try for them.

Owns what is asked of the daemon. What receivers said is escaped before it is shown. Main thread.
"""

from __future__ import annotations

from agentbus.cli.entry import EXIT_OK, Arguments
from agentbus.cli.numbers import optional_number
from agentbus.cli.output import console, print_json, table
from agentbus.cli.running import need_daemon


def deadletters(arguments: Arguments) -> int:
    """List them or try them again. Exit 3 when no daemon runs."""
    return _replay(arguments) if arguments["replay"] else _list(arguments)


def _list(arguments: Arguments) -> int:
    with need_daemon() as daemon:
        asked = {"limit": optional_number(arguments, "--limit")}
        answer = daemon.ask("deadletters_list", params=asked)
    if arguments["--json"]:
        print_json(answer)
        return EXIT_OK
    letters = answer["dead_letters"]
    columns = ("Id", "Job", "Event", "Url", "Attempts", "Given up", "Why")
    fields = ("id", "job_id", "seq", "url", "attempts", "dead_at", "error")
    rows = ([letter[name] for name in fields] for letter in letters)
    console().print(table(f"Dead letters ({len(letters)})", columns, rows))
    return EXIT_OK


def _replay(arguments: Arguments) -> int:
    asked = {"id": optional_number(arguments, "ID"), "all": arguments["--all"]}
    with need_daemon() as daemon:
        answer = daemon.ask("deadletters_replay", params=asked)
    if arguments["--json"]:
        print_json(answer)
    else:
        print(f"To be tried again: {answer['replayed']}")
    return EXIT_OK
