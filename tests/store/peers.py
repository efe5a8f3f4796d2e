"""Sessions that write to each other directly: the changes of peer messaging, as tests make them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import count
from typing import Any

from agentbus.errors import BusError
from agentbus.ids import DeliveryId, LeaseToken
from agentbus.protocol.peer import PeerOperation, parse_peer
from agentbus.rules.receipts import fingerprint
from agentbus.store.accounting import recount
from agentbus.store.changes import Done, Fact
from agentbus.store.peer.changes import (
    ClaimDelivery,
    Claimed,
    DeliveryChanged,
    DeliveryView,
    PeerMutation,
)
from agentbus.store.peer.deliveries import DeliveryRow
from agentbus.store.peer.interventions import InterventionRow
from tests.store.bus import Bus, Speaker

_NUMBERS = count(1)


def peer_change(
    speaker: Speaker, op: str, token: LeaseToken | None = None, **args: Any
) -> PeerMutation:
    """A writing operation of a session, with an operation id where it needs no key."""
    operation: PeerOperation = parse_peer(op, args)
    key = getattr(operation, "idempotency_key", None) or f"peer-{next(_NUMBERS)}"
    return PeerMutation(
        operation,  # type: ignore[arg-type]
        key,
        fingerprint(operation),
        speaker.sender,
        speaker.attachment,
        True,
        token=token,
    )


class Peer:
    """A session with what its adapter knows: the token of the delivery that it claimed last."""

    def __init__(
        self, bus: Bus, agent: str, conversation: str | None = None, **fields: Any
    ) -> None:
        self.bus = bus
        self.agent = agent
        self.conversation = conversation or f"{agent}-1"
        self.token: LeaseToken | None = None
        self.attach(**fields)

    def attach(self, **fields: Any) -> None:
        """Again, for a new generation of the same session."""
        self.speaker: Speaker = self.bus.attach(self.agent, self.conversation, **fields)
        self.session_id = self.speaker.session_id
        self.agent_id = self.speaker.bound.agent_id

    def change(self, op: str, *, token: LeaseToken | None = None, **args: Any) -> PeerMutation:
        return peer_change(self.speaker, op, token or self.token, **args)

    def sending(self, *to: str, body: str = "hello", key: str | None = None, **args: Any) -> Any:
        key = key or f"key-{next(_NUMBERS)}"
        return self.change("send", to=list(to), body=body, idempotency_key=key, **args)

    def send(self, *to: str, **args: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.bus.done(self.sending(*to, **args)).result
        return answer

    def ask(self, *to: str, **args: Any) -> dict[str, Any]:
        return self.send(*to, kind="request", **args)

    def refused_ask(self, *to: str, **args: Any) -> BusError:
        return self.bus.refused(self.sending(*to, kind="request", **args))

    def claiming(self) -> ClaimDelivery:
        token = LeaseToken(f"token-{next(_NUMBERS)}")
        return ClaimDelivery(self.speaker.attachment, self.agent_id, token)

    def wait(self) -> Claimed:
        claimed: Claimed = self.bus.done(self.claiming()).result
        self.token = claimed.token
        return claimed

    def claim(self) -> dict[str, Any]:
        """A delivery that must be there."""
        claimed = self.wait()
        assert claimed.delivery is not None, claimed
        return claimed.delivery

    def held(self, op: str, delivery_id: str, **args: Any) -> PeerMutation:
        """An operation on a delivery; it gets a key and what else it needs, unless given."""
        needed: dict[str, dict[str, Any]] = {
            "reply": {"body": "answer", "idempotency_key": f"key-{next(_NUMBERS)}"},
            "progress": {"summary": "going on", "idempotency_key": f"key-{next(_NUMBERS)}"},
            "checkpoint": {
                "summary": "about to",
                "proposed_action": "do it",
                "idempotency_key": f"key-{next(_NUMBERS)}",
            },
            "human": {"reason": "unsure"},
            "ack": {},
        }
        token = args.pop("token", None)
        return self.change(op, token=token, delivery_id=delivery_id, **(needed[op] | args))

    def do(self, op: str, delivery_id: str, **args: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.bus.done(self.held(op, delivery_id, **args)).result
        return answer

    def refused(self, op: str, delivery_id: str, **args: Any) -> BusError:
        return self.bus.refused(self.held(op, delivery_id, **args))


def told(outcome: Done) -> list[DeliveryView]:
    """What inboxes hear of it."""
    return views(outcome.facts)


def views(facts: tuple[Fact, ...]) -> list[DeliveryView]:
    return [fact.delivery for fact in facts if isinstance(fact, DeliveryChanged)]


def delivery(bus: Bus, delivery_id: str) -> DeliveryRow:
    """The row as committed."""
    (row,) = _rows(bus, "SELECT * FROM deliveries WHERE id = ?", delivery_id)
    return DeliveryRow(*row)


def deliveries(bus: Bus) -> list[DeliveryRow]:
    return [
        DeliveryRow(*row) for row in _rows(bus, "SELECT * FROM deliveries ORDER BY sequence, id")
    ]


def intervention(bus: Bus, delivery_id: str) -> InterventionRow:
    """The one that the delivery was paused by last."""
    intervention_id = delivery(bus, delivery_id).intervention
    (row,) = _rows(bus, "SELECT * FROM interventions WHERE id = ?", intervention_id)
    return InterventionRow(*row)


def require_exact_accounting(bus: Bus) -> None:
    with closing(sqlite3.connect(bus.path)) as connection:
        assert recount(connection) == bus.store.logical_bytes


def token_of(bus: Bus, delivery_id: str) -> tuple[DeliveryId, LeaseToken]:
    row = delivery(bus, delivery_id)
    assert row.token is not None
    return row.id, row.token


def _rows(bus: Bus, sql: str, *values: object) -> list[Any]:
    with closing(sqlite3.connect(bus.path)) as connection:
        return connection.execute(sql, values).fetchall()
