"""Interventions and answers of agents, as text for a terminal.

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
    "request_human": "Asks for a person",
}


def print_waiting(interventions: list[dict[str, Any]]) -> None:
    """One row for each intervention that nobody has decided."""
    if not interventions:
        print("Nothing waits for you.")
        return
    _print_rows(
        f"Waiting for you ({len(interventions)})",
        ("Id", "Version", "Agent", "From", "Since", "Why"),
        (
            (
                row["intervention_id"],
                row["version"],
                _agent(row),
                row["from"],
                row["created_at"],
                row["reason"],
            )
            for row in interventions
        ),
    )


def print_decided(interventions: list[dict[str, Any]]) -> None:
    """One row for each decision."""
    if not interventions:
        print("Nothing was decided.")
        return
    _print_rows(
        f"Decided ({len(interventions)})",
        ("Id", "Agent", "From", "Decision", "By", "At"),
        (
            (
                row["intervention_id"],
                _agent(row),
                row["from"],
                row["decision"]["action"],
                row["decision"]["decided_by"],
                row["decision"]["decided_at"],
            )
            for row in interventions
        ),
    )


def print_intervention(whole: dict[str, Any]) -> None:
    """Everything that is known about one, then how to decide it."""
    intervention_id, version, decision = (
        whole[key] for key in ("intervention_id", "version", "decision")
    )
    console().print(
        facts(
            "Intervention",
            (
                ("id", intervention_id),
                ("version", version),
                ("agent", _agent(whole)),
                ("asked by", whole["from"]),
                ("delivery", whole["delivery_id"]),
                ("state", whole["state"]),
                ("message", whole["message_id"]),
                ("thread", whole["thread_id"]),
                ("since", whole["created_at"]),
                ("attempt", whole["attempt"]),
                ("extensions", whole["extension_count"]),
                ("raised by", whole["source"]),
                ("agent knows", STOP_STATUS.get(whole["stop_status"], whole["stop_status"])),
            ),
        )
    )
    _print_text("Why", whole["reason"])
    for key, value in whole["detail"].items():
        _print_value(DETAIL_NAMES.get(key, key), value)
    _print_text("The request", whole["request"] or "(retained no more)")
    if decision is None:
        command = f"agentbus-admin human decide {for_terminal(intervention_id)} ACTION"
        print(f"\nDecide: {command} --if-version {version}")
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


def _print_rows(title: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    console().print(table(title, columns, rows, unbroken="Id"))


def _agent(intervention: dict[str, Any]) -> str:
    return _named(intervention["to"], intervention["session"])


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
