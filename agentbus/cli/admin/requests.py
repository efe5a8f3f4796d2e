"""`agentbus-admin requests`: what agents asked each other, and how far it is. Main thread."""

from __future__ import annotations

from agentbus.cli.admin.asking import ask
from agentbus.cli.entry import EXIT_OK, Arguments
from agentbus.cli.numbers import optional_number
from agentbus.cli.output import console, print_json, table
from agentbus.cli.running import need_daemon


def requests(arguments: Arguments) -> int:
    """Print tracked requests, one row for each recipient. Exit 3 when no daemon runs."""
    asked = {
        "state": arguments["--state"],
        "agent": arguments["--agent"],
        "limit": optional_number(arguments, "--limit"),
    }
    with need_daemon() as daemon:
        answer = ask(daemon, "requests", asked)
    if arguments["--json"]:
        print_json(answer)
        return EXIT_OK
    rows = answer["requests"]
    console().print(
        table(
            f"Requests ({len(rows)})",
            ("Message", "From", "To", "Reply", "Cause", "Work", "Due", "What"),
            (
                (
                    row["message_id"],
                    row["from"],
                    row["to"],
                    row["reply_state"],
                    row["cause"],
                    row["delivery_state"],
                    row["reply_due_at"],
                    row["excerpt"],
                )
                for row in rows
            ),
        )
    )
    return EXIT_OK
