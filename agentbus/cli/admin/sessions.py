"""`agentbus-admin sessions`: who is connected now, and what waits for them."""

from __future__ import annotations

from agentbus.cli.entry import EXIT_OK, Arguments
from agentbus.cli.output import console, print_json
from agentbus.cli.running import need_daemon


def sessions(arguments: Arguments) -> int:
    """Print the live sessions. Exit 3 when no daemon runs."""
    with need_daemon() as daemon:
        answer = daemon.ask("sessions")
    if arguments["--json"]:
        print_json(answer)
        return EXIT_OK
    from agentbus.cli.admin.status_view import session_table

    console().print(session_table(answer["sessions"]))
    return EXIT_OK
