"""`agentbus-admin channels`: the channels of the running bus."""

from __future__ import annotations

from agentbus.cli.entry import EXIT_OK, Arguments
from agentbus.cli.output import console, print_json, table
from agentbus.cli.running import need_daemon


def channels(arguments: Arguments) -> int:
    """Print the channels. Exit 3 when no daemon runs."""
    with need_daemon() as daemon:
        answer = daemon.ask("channels")
    if arguments["--json"]:
        print_json(answer)
        return EXIT_OK
    rows = answer["channels"]
    console().print(
        table(
            f"Channels ({len(rows)})",
            ("Channel", "Kind", "Messages kept", "Newest sequence", "Removed through"),
            (
                (
                    row.get("channel"),
                    row.get("kind"),
                    row.get("retained"),
                    row.get("newest"),
                    row.get("removed_through"),
                )
                for row in rows
            ),
        )
    )
    return EXIT_OK
