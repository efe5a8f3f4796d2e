"""Whether the records of direct messages in an export fit each other and what they refer to.

Owns what a delivery must be so that an inbox can go on from it: open work has its message and,
where it is paused, somebody to decide about it. Touches neither a file nor a database; any thread.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from agentbus.encoding import encode
from agentbus.errors import ValidationError

_OPEN = ("queued", "leased", "paused")
_OF_A_LEASE = ("holder", "holder_generation", "lease_expires_us", "deadline_us")


class DirectRecords:
    """All deliveries and what belongs to them so far. In the order of the file."""

    def __init__(self, agents: Set[str], sessions: Set[str], last_sequence: int) -> None:
        """`agents` and `sessions`: of the export; they are complete before the first delivery."""
        self._agents = agents
        self._sessions = sessions
        self._last_sequence = last_sequence
        self._messages: dict[str, dict[str, Any]] = {}
        self._deliveries: dict[str, dict[str, Any]] = {}
        self._interventions: dict[str, tuple[str, bool]] = {}  # delivery, decided

    def take_message(self, envelope: dict[str, Any]) -> None:
        """The envelope of a message in an inbox."""
        for recipient in envelope["to"]:
            self._require_agent("envelope.to.agent_id", recipient["agent_id"])
        self._messages[envelope["message_id"]] = {
            "sequence": envelope["sequence"],
            "kind": envelope["type"],
            "thread": envelope["thread"],
            "reply_to": envelope.get("reply_to"),
            "depth": envelope["depth"],
            "sender_agent": envelope["sender"]["agent_id"],
            "sender_session": envelope["sender"]["session_id"],
        }

    def take_delivery(self, record: dict[str, Any]) -> None:
        for name in ("sender_agent", "recipient_agent"):
            self._require_agent(name, record[name])
        for name in ("sender_session", "recipient_session", "holder"):
            if record[name] is not None:
                self._require_session(name, record[name])
        _require(
            record["sequence"] <= self._last_sequence,
            "sequence is above last_sequence of the header",
        )
        if record["reassigned_from"] is not None:
            _require(
                record["reassigned_from"] in self._deliveries,
                "reassigned_from is no delivery before it",
            )
        state = record["state"]
        message = self._messages.get(record["message_id"])
        if message is None:
            _require(state not in _OPEN, "its message is not in the export, so it cannot be open")
        else:
            for name, value in message.items():
                _require(record[name] == value, f"{name} is another than its message's")
        _require(
            (state == "leased") == (record["token"] is not None),
            "a token goes with the state leased, and only with it",
        )
        if state == "leased":
            for name in _OF_A_LEASE:
                _require(record[name] is not None, f"{name} is missing though it is leased")
        if record["reply_state"] is not None:
            _require(record["kind"] == "request", "only a request has a reply_state")
        if record["reply_state"] in ("awaiting", "overdue"):
            for name in ("reply_due_us", "unanswered_us"):
                _require(record[name] is not None, f"{name} is missing though a reply is awaited")
        self._deliveries[record["id"]] = record

    def take_intervention(self, record: dict[str, Any]) -> None:
        self._require_delivery(record["delivery"])
        decided = record["action"] is not None
        for name in ("decided_by", "decided_at_us"):
            _require((record[name] is not None) == decided, f"action and {name} go together")
        self._interventions[record["id"]] = (record["delivery"], decided)
        record["detail"] = encode(record["detail"]).decode()

    def take_presented(self, record: dict[str, Any]) -> None:
        self._require_session("session", record["session"])

    def take_notice_shown(self, record: dict[str, Any]) -> None:
        self._require_session("session", record["session"])
        self._require_delivery(record["delivery"])

    def take_consultation(self, record: dict[str, Any]) -> None:
        self._require_session("session", record["session"])
        if record["delivery"]:
            self._require_delivery(record["delivery"])

    def missing(self) -> str | None:
        """What is missing when all were read."""
        for delivery_id, record in self._deliveries.items():
            intervention = record["intervention"]
            if intervention is not None and (
                self._interventions.get(intervention, ("", False))[0] not in self._before(record)
            ):
                return f"delivery {delivery_id!r}: intervention is none of it in the export"
            if record["state"] == "paused" and (
                intervention is None or self._interventions[intervention][1]
            ):
                return f"delivery {delivery_id!r}: is paused, but nothing is to be decided"
        return None

    def _before(self, record: dict[str, Any]) -> list[str]:
        """The delivery itself and those that it was reassigned from; all are in the export."""
        ids = [record["id"]]
        while (origin := record["reassigned_from"]) is not None:
            ids.append(origin)
            record = self._deliveries[origin]
        return ids

    def _require_agent(self, name: str, agent_id: str) -> None:
        _require(agent_id in self._agents, f"{name} is no agent of the export")

    def _require_session(self, name: str, session_id: str) -> None:
        _require(session_id in self._sessions, f"{name} is no session of the export")

    def _require_delivery(self, delivery_id: str) -> None:
        _require(delivery_id in self._deliveries, "delivery is no delivery of the export")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValidationError(problem)
