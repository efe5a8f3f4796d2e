"""`agentbus-admin human`: what waits for the person, what they decide, send and are answered.

Owns what is asked of the daemon for each of the five. What agents wrote is escaped before it is
shown. Runs on the main thread.
"""

from __future__ import annotations

import sys
from typing import Any

from agentbus.cli.admin.asking import ask, check
from agentbus.cli.entry import EXIT_OK, Arguments
from agentbus.cli.numbers import optional_number
from agentbus.cli.output import print_json
from agentbus.cli.running import Daemon, need_daemon
from agentbus.cli.text import for_terminal
from agentbus.errors import ConflictError, InspectionRejectedError
from agentbus.ids import new_id
from agentbus.rules.peer import VERSION_CHANGED

WRITE_S = 30.0
"""The inspection command may have its say first."""


def human(arguments: Arguments) -> int:
    """Do one of the five. Exit 3 when no daemon runs."""
    with need_daemon() as daemon:
        if arguments["decide"]:
            return _decide(daemon, arguments)
        if arguments["send"]:
            return _send(daemon, arguments)
        if arguments["show"]:
            answer = ask(daemon, "human_show", {"id": arguments["ID"]})
        elif arguments["replies"]:
            answer = ask(daemon, "human_replies", _page(arguments))
        else:
            decided = {"decided": arguments["--decided"]}
            answer = ask(daemon, "human_list", decided | _page(arguments))
    if arguments["--json"]:
        print_json(answer)
    else:
        _show(arguments, answer)
    return EXIT_OK


def _page(arguments: Arguments) -> dict[str, Any]:
    limit = optional_number(arguments, "--limit")
    return {} if limit is None else {"limit": limit}


def _show(arguments: Arguments, answer: dict[str, Any]) -> None:
    from agentbus.cli.admin import human_view

    if arguments["show"]:
        human_view.print_intervention(answer)
    elif arguments["replies"]:
        human_view.print_replies(answer["replies"])
    elif arguments["--decided"]:
        human_view.print_decided(answer["interventions"])
    else:
        human_view.print_waiting(answer["interventions"])


def _decide(daemon: Daemon, arguments: Arguments) -> int:
    """Without a version of the person's own, of what is there right now."""
    version = optional_number(arguments, "--if-version")
    decision = {
        "intervention_id": arguments["ID"],
        "version": 1 if version is None else version,
        "action": arguments["ACTION"],
        "instructions": arguments["--instructions"],
        "to": arguments["--to"],
    }
    # What is wrong with the arguments is told before anything is looked up.
    check("human_decide", decision)
    whole = ask(daemon, "human_show", {"id": arguments["ID"]})
    intervention_id = decision["intervention_id"] = whole["intervention_id"]
    if version is None:
        decision["version"] = whole["version"]
    try:
        answer = ask(daemon, "human_decide", decision, WRITE_S)
    except ConflictError as error:
        if error.reason != VERSION_CHANGED:
            raise
        again = f"look again: agentbus-admin human show {intervention_id}"
        raise ConflictError(f"{error.message}; {again}", reason=error.reason) from None
    if arguments["--json"]:
        print_json(answer)
    else:
        delivery_id, state = for_terminal(answer["delivery_id"]), answer["state"]
        print(f"Decided: {answer['action']}. Delivery {delivery_id} is {state}.")
    return EXIT_OK


def _send(daemon: Daemon, arguments: Arguments) -> int:
    body = sys.stdin.read() if arguments["--body"] == "-" else arguments["--body"]
    message = {
        "to": arguments["NAME"],
        "body": body,
        "kind": "info" if arguments["--info"] else "request",
        "idempotency_key": arguments["--key"] or new_id(),
        "thread_id": arguments["--thread"],
        "expect_reply_within_seconds": optional_number(arguments, "--due"),
    }
    try:
        receipt = ask(daemon, "human_send", message, WRITE_S)
    except InspectionRejectedError as error:
        raise InspectionRejectedError(f"{error.message}; the reason: {error.reason}") from None
    if arguments["--json"]:
        print_json(receipt)
        return EXIT_OK
    before = "Sent before" if receipt.get("duplicate") else "Sent"
    print(f"{before}: message {for_terminal(receipt['message_id'])}")
    if not arguments["--info"]:
        print("For the answers: agentbus-admin human replies")
    return EXIT_OK
