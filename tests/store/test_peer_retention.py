"""Direct messages fall to retention like all others; their deliveries end, and go later."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentbus.store.changes import MessagesRemoved, PruneSlice
from agentbus.store.peer.changes import Decide, MarkReplyLate, MarkShown
from tests.store.bus import Bus
from tests.store.peers import (
    Peer,
    deliveries,
    delivery,
    intervention,
    require_exact_accounting,
    told,
)


@pytest.fixture
def bus(tmp_path: Path) -> Any:
    bus = Bus(tmp_path)
    yield bus
    require_exact_accounting(bus)
    bus.close()


def rows_left(bus: Bus) -> dict[str, int]:
    tables = ("deliveries", "interventions", "presented", "notices_shown", "consultations")
    with closing(sqlite3.connect(bus.path)) as connection:
        return {
            table: connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]
            for table in tables
        }


@pytest.mark.parametrize("what", ["messages_by_age", "messages_by_capacity"])
def test_open_work_is_closed_with_its_message_and_its_inboxes_are_told(
    bus: Bus, ann: Peer, bob: Peer, what: Any
) -> None:
    cid = Peer(bus, "Cid")
    ann.ask("Bob", "Cid")
    ann.send("Bob")
    leased = bob.claim()["delivery_id"]
    paused = cid.claim()["delivery_id"]
    cid.do("human", paused)
    bus.clock.advance(hours=bus.config.message_retention_hours)
    outcome = bus.done(PruneSlice(what, 500, free_bytes=10**6))
    assert isinstance(outcome.facts[0], MessagesRemoved)
    assert {view.delivery_id for view in told(outcome)} == {row.id for row in deliveries(bus)}
    for row in deliveries(bus):
        assert (row.state, row.cause, row.cancelled_reason) == (
            "cancelled",
            "retention",
            "retention",
        )
        assert (row.token, row.lease_expires_us, row.deadline_us) == (None, None, None)
        assert row.reply_state == ("cancelled" if row.kind == "request" else None)
    refused = bob.refused("progress", leased)
    assert (refused.status, refused.state) == (409, "unavailable")
    assert cid.wait().blocked is None
    assert bob.wait().delivery is None


def test_what_is_finished_or_answered_stays_what_it_was(bus: Bus, ann: Peer, bob: Peer) -> None:
    ann.ask("Bob")
    request = bob.claim()["delivery_id"]
    bob.do("reply", request, ack=False)
    bob.do("ack", request)
    ann.do("ack", ann.claim()["delivery_id"])
    before = deliveries(bus)
    bus.clock.advance(hours=bus.config.message_retention_hours)
    outcome = bus.done(PruneSlice("messages_by_age", 500))
    assert told(outcome) == []
    assert deliveries(bus) == before


def test_an_answered_request_that_is_still_worked_on_stays_replied(
    bus: Bus, ann: Peer, bob: Peer
) -> None:
    ann.ask("Bob")
    request = bob.claim()["delivery_id"]
    bob.do("reply", request, ack=False)
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.done(PruneSlice("messages_by_age", 500))
    row = delivery(bus, request)
    assert (row.state, row.reply_state, row.cause) == ("cancelled", "replied", "retention")


def test_deliveries_of_messages_that_are_retained_are_never_removed(
    bus: Bus, ann: Peer, bob: Peer
) -> None:
    ann.send("Bob")
    bob.do("ack", bob.claim()["delivery_id"])
    bus.clock.advance(hours=10 * bus.config.message_retention_hours)
    assert bus.done(PruneSlice("deliveries", 500)).result.removed_rows == 0
    assert len(deliveries(bus)) == 1


def test_deliveries_go_with_all_that_belongs_to_them_as_long_after_their_message(
    bus: Bus, ann: Peer, bob: Peer
) -> None:
    empty = rows_left(bus)
    cid = Peer(bus, "Cid")
    ann.ask("Bob", body="ünï")
    held = bob.claim()["delivery_id"]
    bob.ask("Cid")
    cid.do("reply", cid.claim()["delivery_id"])
    (response,) = (row for row in deliveries(bus) if row.kind == "response")
    bus.done(MarkShown(bob.speaker.attachment, (response.message_id,)))
    bob.do("human", held)
    question = intervention(bus, held)
    bus.done(Decide(question.id, 1, "reassign", "human:kim", instructions="go", to="Cid"))
    (moved,) = (row for row in deliveries(bus) if row.reassigned_from == held)
    bus.done(MarkReplyLate(moved.id, "overdue"))
    bus.done(MarkShown(ann.speaker.attachment, (), ((moved.id, "overdue"),)))
    full = rows_left(bus)
    assert all(full.values())
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.done(PruneSlice("messages_by_age", 500))
    bus.clock.advance(hours=bus.config.message_retention_hours, seconds=-0.001)
    assert bus.done(PruneSlice("deliveries", 500)).result.removed_rows == 0
    bus.clock.advance(seconds=0.001)
    ann.send("Bob")  # what is new stays
    assert bus.done(PruneSlice("deliveries", 500)).result.removed_rows == 4
    root = {"consultations": 1}  # what Ann asked on her own account is no delivery's
    assert rows_left(bus) == empty | {"deliveries": 1} | root


def test_what_was_finished_long_ago_is_kept_as_long_as_what_was_closed(
    bus: Bus, ann: Peer, bob: Peer
) -> None:
    ann.send("Bob")
    bob.do("ack", bob.claim()["delivery_id"])
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.done(PruneSlice("messages_by_age", 500))
    assert bus.done(PruneSlice("deliveries", 500)).result.removed_rows == 0
    bus.clock.advance(hours=bus.config.message_retention_hours)
    assert bus.done(PruneSlice("deliveries", 500)).result.removed_rows == 1


def test_a_finished_request_is_kept_until_its_sender_can_be_told_that_nobody_answers(
    tmp_path: Path,
) -> None:
    bus = Bus(tmp_path, message_retention_hours=1)
    ann, bob = Peer(bus, "Ann"), Peer(bus, "Bob")
    ann.ask("Bob")
    bob.do("ack", silent := bob.claim()["delivery_id"])
    ann.send("Bob")
    bob.do("ack", bob.claim()["delivery_id"])
    bus.done(MarkReplyLate(silent, "overdue"))
    bus.clock.advance(hours=2)
    bus.done(PruneSlice("messages_by_age", 500))
    assert bus.done(PruneSlice("deliveries", 1)).result.removed_rows == 1
    assert [row.id for row in deliveries(bus)] == [silent]
    bus.done(MarkReplyLate(silent, "unanswered"))
    (notice,) = ann.wait().notices
    assert (notice["reply_state"], notice["cause"]) == ("unanswered", "silent")
    assert bus.done(PruneSlice("deliveries", 1)).result.removed_rows == 1
    require_exact_accounting(bus)
    bus.close()


def test_all_deliveries_of_a_message_go_in_one_slice_however_small(bus: Bus, ann: Peer) -> None:
    names = [f"agent-{n}" for n in range(5)]
    for name in names:
        Peer(bus, name)
    for _ in range(3):
        ann.send(*names)
    bus.clock.advance(hours=2 * bus.config.message_retention_hours)
    bus.done(PruneSlice("messages_by_age", 500))
    removed = []
    while True:
        result = bus.done(PruneSlice("deliveries", 2)).result
        removed.append(result.removed_rows)
        require_exact_accounting(bus)
        if not result.more:
            break
    assert removed == [5, 5, 5, 0]


def test_a_full_bus_without_messages_gives_up_deliveries(bus: Bus, ann: Peer, bob: Peer) -> None:
    ann.ask("Bob")
    first = bus.done(PruneSlice("messages_by_capacity", 500, free_bytes=10**6))
    assert first.result.removed_rows == 1
    assert deliveries(bus)[0].state == "cancelled"
    second = bus.done(PruneSlice("messages_by_capacity", 500, free_bytes=10**6))
    assert second.result.removed_rows == 1
    assert deliveries(bus) == []
    assert bob.wait().delivery is None


@pytest.mark.parametrize(
    ("bodies", "removed"),
    [(14, ["deliveries", "messages"]), (10, ["messages", "messages"])],
    ids=["SQLite is full", "Redis is full"],
)
def test_what_is_left_of_gone_messages_makes_room_before_live_ones(
    tmp_path: Path, bodies: int, removed: list[str]
) -> None:
    bus = Bus(tmp_path, sqlite_budget_mib=1)
    ann, bob = Peer(bus, "Ann"), Peer(bus, "Bob")
    ann.send("Bob")
    bob.do("ack", bob.claim()["delivery_id"])
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.done(PruneSlice("messages_by_age", 500))
    for _ in range(bodies):
        ann.send("Bob", body="x" * 60_000)
    for what in removed:
        live = len(deliveries(bus))
        done = bus.done(PruneSlice("messages_by_capacity", 500, free_bytes=1))
        assert done.result.removed_rows == 1
        assert any(isinstance(fact, MessagesRemoved) for fact in done.facts) == (what == "messages")
        assert len(deliveries(bus)) == live - (what == "deliveries")
    require_exact_accounting(bus)
    bus.close()
