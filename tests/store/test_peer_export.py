"""Direct messages in exports: they come out whole, and only what fits together goes in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentbus.store.changes import PruneSlice
from agentbus.store.peer.changes import Decide, MarkReplyLate, MarkShown
from tests.store.bus import Bus
from tests.store.peers import Peer, deliveries, intervention, require_exact_accounting
from tests.store.test_export import (
    change_of,
    content,
    exported,
    imported,
    lines_of,
    refusal,
    sealed,
)


def fill_inboxes(bus: Bus) -> None:
    """Direct messages in every state that a delivery can have, and all that belongs to them."""
    ann, bob, cid = Peer(bus, "Ann", capabilities=("c", "ü")), Peer(bus, "Bob"), Peer(bus, "Cid")
    bus.done(ann.change("describe", description="knows\n\tmuch"))
    ann.ask("Bob", body="gone", capability="c")
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.done(PruneSlice("messages_by_age", 500))
    ann.ask("Bob", "Cid", body='"quoted" \u202e')
    held = bob.claim()["delivery_id"]
    bob.ask("Cid")
    bob.do("checkpoint", held, action_type="destructive", missing_information=["why"])
    moved = bus.done(
        Decide(intervention(bus, held).id, 1, "reassign", "human:kim", "look twice", "Cid")
    ).result["reassigned_to"]
    bus.done(MarkReplyLate(moved, "overdue"))
    bus.done(MarkShown(ann.speaker.attachment, (), ((moved, "overdue"),)))
    cid.do("reply", cid.claim()["delivery_id"])
    (response,) = (row for row in deliveries(bus) if row.kind == "response")
    bus.done(MarkShown(ann.speaker.attachment, (response.message_id,)))
    cid.do("human", cid.claim()["delivery_id"])
    ann.send(bob.session_id)
    bob.claim()


@pytest.fixture
def inboxes(tmp_path: Path) -> Bus:
    folder = tmp_path / "inboxes"
    folder.mkdir()
    bus = Bus(folder)
    fill_inboxes(bus)
    return bus


@pytest.fixture(scope="module")
def inboxes_exported(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    bus = Bus(tmp_path_factory.mktemp("inboxes"))
    fill_inboxes(bus)
    bus.close()
    return exported(bus.path)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    folder = tmp_path / "new"
    folder.mkdir()
    return folder / "bus.sqlite3"


def test_direct_messages_export_the_same_bytes_and_their_work_goes_on(
    inboxes: Bus, new: Path
) -> None:
    export = exported(inboxes.path)
    counts = imported(new, export).counts
    assert content(exported(new)) == content(export)
    for kind in ("deliveries", "interventions", "presented", "notices_shown", "consultations"):
        assert counts[kind] > 0, kind
    bus = Bus(new.parent)
    bus.clock.set_wall(inboxes.clock.wall_us())
    assert bus.store.logical_bytes == inboxes.store.logical_bytes
    before = deliveries(inboxes)
    assert deliveries(bus) == before
    bob = Peer(bus, "Bob")
    (held,) = (row for row in before if row.state == "leased")
    bob.do("ack", held.id, token=held.token)
    (paused,) = (row for row in before if row.state == "paused")
    question = intervention(bus, paused.id)
    bus.done(Decide(question.id, question.version, "approve", "human:kim"))
    assert Peer(bus, "Cid").claim()["delivery_id"] == paused.id
    require_exact_accounting(bus)
    bus.close()
    inboxes.close()


def _last(lines: list[Any], kind: str, /, **wanted: Any) -> dict[str, Any]:
    """The last record of a kind that is like this."""
    return [
        line[kind]
        for line in lines
        if kind in line and all(line[kind][name] == value for name, value in wanted.items())
    ][-1]


def _alter(kind: str, wanted: dict[str, Any], /, **changes: Any) -> Callable[[list[Any]], None]:
    return lambda lines: _last(lines, kind, **wanted).update(changes)


def _without_question(lines: list[Any]) -> None:
    question = _last(lines, "delivery", state="paused")["intervention"]
    lines[:] = [line for line in lines if line.get("intervention", {}).get("id") != question]


_LEASED, _PAUSED = {"state": "leased"}, {"state": "paused"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_alter("agent", {}, capabilities="c"), "capabilities must be a list"),
        (_alter("agent", {}, description=7), "description must be text"),
        (_alter("channel", {"kind": "inbox"}, name="Bob"), "an inbox is named @"),
        (_alter("channel", {"kind": "inbox"}, name="@Dan"), "an inbox is named @"),
        (_alter("delivery", _LEASED, kind="shout"), "kind must be one of"),
        (_alter("delivery", _LEASED, state="lost"), "state must be one of"),
        (_alter("delivery", _LEASED, attempt=None), "attempt must be a whole number"),
        (_alter("delivery", _LEASED, sender_agent="x"), "sender_agent is no agent"),
        (_alter("delivery", _LEASED, recipient_agent="x"), "recipient_agent is no agent"),
        (_alter("delivery", _LEASED, sender_session="x"), "sender_session is no session"),
        (_alter("delivery", _LEASED, recipient_session="x"), "recipient_session is no session"),
        (_alter("delivery", _LEASED, holder="x"), "holder is no session"),
        (_alter("delivery", _LEASED, holder=None), "holder is missing though it is leased"),
        (_alter("delivery", _LEASED, token=None), "a token goes with the state leased"),
        (_alter("delivery", _PAUSED, token="x"), "a token goes with the state leased"),
        (_alter("delivery", _LEASED, deadline_us=None), "deadline_us is missing"),
        (_alter("delivery", _LEASED, sequence=10**6), "sequence is above last_sequence"),
        (_alter("delivery", _LEASED, sequence=1), "sequence is another than its message's"),
        (_alter("delivery", _LEASED, thread="x"), "thread is another than its message's"),
        (_alter("delivery", _LEASED, message_id="x"), "so it cannot be open"),
        (_alter("delivery", {"kind": "info"}, reply_state="replied"), "only a request"),
        (_alter("delivery", {"reply_state": "awaiting"}, reply_due_us=None), "reply_due_us is"),
        (_alter("delivery", _LEASED, reassigned_from="x"), "is no delivery before it"),
        (_alter("delivery", _PAUSED, intervention=None), "nothing is to be decided"),
        (_alter("delivery", _LEASED, intervention="x"), "intervention is none of it"),
        (_without_question, "intervention is none of it"),
        (_alter("intervention", {"action": None}, action="approve"), "go together"),
        (_alter("intervention", {"action": None}, version=0), "version must be 1"),
        (_alter("intervention", {"action": None}, delivery="x"), "delivery is no delivery"),
        (_alter("intervention", {}, detail=[]), "detail must be an object"),
        (_alter("intervention", {}, told=0), "told must be"),
        (_alter("presented", {}, session="x"), "session is no session"),
        (_alter("notice_shown", {}, delivery="x"), "delivery is no delivery"),
        (_alter("notice_shown", {}, reply_state="x"), "reply_state must be one of"),
        (_alter("consultation", {}, delivery="x"), "delivery is no delivery"),
        (_alter("consultation", {}, requests=0), "requests must be 1"),
        (change_of("message", envelope__to=[]), "envelope.to must be a list of one or more"),
        (change_of("message", envelope__to=[{"agent": "Bob"}]), "envelope.to.agent_id is missing"),
        (change_of("message", envelope__type="report"), "envelope.type must be one of"),
        (change_of("message", envelope__thread=...), "envelope.thread is missing"),
        (change_of("message", envelope__metadata={}), "envelope.metadata is no field"),
        (
            change_of("message", envelope__to=[{"agent": "x", "agent_id": "x"}]),
            "envelope.to.agent_id is no agent",
        ),
    ],
)
def test_records_of_direct_messages_that_are_not_right_are_refused(
    inboxes_exported: bytes, new: Path, change: Callable[[list[Any]], None], problem: str
) -> None:
    """Taken in, each would leave work that nobody can claim, finish or decide about."""
    lines = lines_of(inboxes_exported)
    change(lines)
    assert problem in refusal(new, sealed(lines))
