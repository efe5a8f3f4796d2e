"""Questions to the person and answers of agents, as text for a terminal.

Owns the layout of `human list`, `show` and `replies`. Everything that agents wrote goes through
`for_terminal` or `lines_for_terminal`. Runs on the main thread of a command.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentbus.cli.output import console, facts, table
from agentbus.cli.text import for_terminal, lines_for_terminal

STOP_STATUS = {
    "pause_requested": "not yet: it hears of the pause at its next call",
    "pause_observed": "yes, a call of it was answered so",
    "adapter_stop_confirmed": "yes, it has gone on to wait for other work",
    "stopped_unconfirmed": "unknown: its lease lapsed without a word",
}
"""Whether the agent knows that its work is paused."""

DETAIL_NAMES = {
    "summary": "What was done so far",
    "proposed_action": "Proposed action",
    "action_type": "Kind of action",
    "confidence": "Confidence",
    "missing_information": "Missing information",
    "conflicting_results": "Results conflict",
}


def print_questions(questions: list[dict[str, Any]], *, decided: bool) -> None:
    """One row for each question."""
    if not questions:
        print("Nothing was decided." if decided else "Nothing waits for you.")
        return
    if decided:
        columns: tuple[str, ...] = ("Id", "Agent", "From", "Decision", "By", "At")
        rows: Iterable[tuple[object, ...]] = (
            (
                question["intervention_id"],
                _agent(question),
                question["from"],
                question["decision"]["action"],
                question["decision"]["decided_by"],
                question["decision"]["decided_at"],
            )
            for question in questions
        )
    else:
        columns = ("Id", "Version", "Agent", "From", "Since", "Why")
        rows = (
            (
                question["intervention_id"],
                question["version"],
                _agent(question),
                question["from"],
                question["created_at"],
                question["reason"],
            )
            for question in questions
        )
    title = f"Decided ({len(questions)})" if decided else f"Waiting for you ({len(questions)})"
    console().print(table(title, columns, rows))


def print_question(question: dict[str, Any]) -> None:
    """Everything that is known about one, then how to decide it."""
    decision = question["decision"]
    console().print(
        facts(
            "Question to a person",
            (
                ("id", question["intervention_id"]),
                ("version", question["version"]),
                ("agent", _agent(question)),
                ("asked by", question["from"]),
                ("delivery", question["delivery_id"]),
                ("state", question["state"]),
                ("message", question["message_id"]),
                ("thread", question["thread_id"]),
                ("since", question["created_at"]),
                ("attempt", question["attempt"]),
                ("extensions", question["extension_count"]),
                ("raised by", question["source"]),
                ("agent knows", STOP_STATUS.get(question["stop_status"], question["stop_status"])),
            ),
        )
    )
    _print_text("Why", question["reason"])
    for key, value in question["detail"].items():
        _print_value(DETAIL_NAMES.get(key, key), value)
    _print_text("The request", question["request"] or "(retained no more)")
    if decision is None:
        print(
            "\nDecide: agentbus-admin human decide "
            f"{for_terminal(question['intervention_id'])} ACTION --if-version {question['version']}"
        )
        return
    _print_text(
        "Decision", f"{decision['action']} by {decision['decided_by']}, {decision['decided_at']}"
    )
    if decision["instructions"] is not None:
        _print_text("Instructions", decision["instructions"])


def print_replies(replies: list[dict[str, Any]]) -> None:
    """The newest first, each whole."""
    if not replies:
        print("No agent has answered you yet.")
        return
    for reply in replies:
        mark = "new  " if reply["new"] else ""
        sender = _named(reply["from"], reply["session"])
        answered = for_terminal(reply["reply_to"] or "")
        print(f"{mark}{reply['sent_at']}  {sender}  answers {answered}")
        _print_indented(reply["body"])
        print()


def _agent(question: dict[str, Any]) -> str:
    return _named(question["to"], question["session"])


def _named(agent: str | None, session: str | None) -> str:
    """The agent, and which of its sessions where that says more."""
    name = for_terminal(agent or "")
    return name if session in (None, agent) else f"{name} ({for_terminal(session)})"


def _print_value(title: str, value: Any) -> None:
    if isinstance(value, bool):
        value = "yes" if value else "no"
    if isinstance(value, list):
        value = "\n".join(str(item) for item in value)
    if value not in (None, ""):
        _print_text(title, str(value))


def _print_text(title: str, text: str) -> None:
    print(f"\n{for_terminal(title)}:")
    _print_indented(text)


def _print_indented(text: str) -> None:
    for line in lines_for_terminal(text):
        print(f"  {line}")
