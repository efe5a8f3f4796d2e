"""Memories in the ledger: revisions, tombstones, receipts, and what is left after a purge."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentbus.encoding import decode_trusted
from agentbus.envelope import Reference
from agentbus.errors import ConflictError, NotFoundError, RateLimitedError, TooLargeError
from agentbus.ids import MessageId, Sequence
from agentbus.limits import MEMORY_CHANGES
from agentbus.store.changes import Done, MemoryRemoved, MemoryRevised, MoveCursors, PruneResult
from tests.store.bus import Bus, Speaker

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def sam(bus: Bus) -> Speaker:
    sam = bus.attach()
    bus.done(sam.make("facts", "memory"))
    return sam


def create(bus: Bus, speaker: Speaker, content: str = "first", **fields: Any) -> MessageId:
    result = bus.done(speaker.send(content, "facts", **fields)).result
    return MessageId(result["message_id"])


def rows(bus: Bus, memory_id: str) -> list[tuple[int, bool]]:
    """Revisions of a memory and whether each is live."""
    connection = sqlite3.connect(bus.path)
    try:
        sql = (
            "SELECT revision, tombstoned_at_us IS NULL FROM messages WHERE message_id = ? "
            "ORDER BY revision"
        )
        return [(revision, bool(live)) for revision, live in connection.execute(sql, (memory_id,))]
    finally:
        connection.close()


def live(bus: Bus, memory_id: MessageId) -> dict[str, Any]:
    stored = bus.reader().memory(memory_id)
    assert stored is not None
    envelope: dict[str, Any] = decode_trusted(stored.envelope)
    assert envelope["sequence"] == stored.sequence
    return envelope


def test_an_edit_makes_the_next_revision_and_names_the_one_it_replaced(
    bus: Bus, sam: Speaker
) -> None:
    memory_id = create(bus, sam)
    ann = bus.attach("Ann", "c2")
    before = live(bus, memory_id)
    done = bus.done(ann.edit(memory_id, "second", operation_id="k"))
    assert done.result == {
        "memory_id": memory_id,
        "revision": 2,
        "sequence": 2,
        "operation_id": "k",
        "duplicate": False,
        "replaced": {
            "revision": 1,
            "sender": {"display_name": "Sam", "agent": "Sam"},
            "sent_at": before["sent_at"],
        },
    }
    after = live(bus, memory_id)
    assert (after["content"], after["revision"]) == ("second", 2)
    assert (after["sequence"], after["message_id"]) == (2, memory_id)
    assert after["sender"]["agent"] == "Ann"
    (fact,) = done.facts
    assert isinstance(fact, MemoryRevised)
    assert (fact.position, fact.sequence, fact.revision) == (1, 2, 2)
    assert rows(bus, memory_id) == [(1, False), (2, True)]


def test_fields_left_out_of_an_edit_keep_their_value_and_null_clears(
    bus: Bus, sam: Speaker
) -> None:
    memory_id = create(
        bus,
        sam,
        type="note",
        subject="s",
        thread="t",
        metadata={"a": 1},
        references=(Reference("url", "http://x"),),
        tags=("x",),
    )
    bus.done(sam.edit(memory_id, "second", type=None, tags=None, subject="new"))
    envelope = live(bus, memory_id)
    assert "type" not in envelope
    assert "tags" not in envelope
    assert (envelope["subject"], envelope["thread"], envelope["metadata"]) == ("new", "t", {"a": 1})
    assert envelope["references"] == [{"kind": "url", "value": "http://x"}]


def test_a_reply_joins_the_thread_of_its_target_unless_the_edit_says_otherwise(
    bus: Bus, sam: Speaker
) -> None:
    target = bus.done(sam.send("x", thread="t")).result["message_id"]
    joins, keeps, alone = create(bus, sam), create(bus, sam, thread="own"), create(bus, sam)
    bus.done(sam.edit(joins, reply_to=target))
    bus.done(sam.edit(keeps, reply_to=target))
    bus.done(sam.edit(alone, reply_to=target, thread=None))
    threads = [live(bus, memory_id).get("thread") for memory_id in (joins, keeps, alone)]
    assert threads == ["t", "own", None]


def test_an_edit_carries_its_own_depth(bus: Bus, sam: Speaker) -> None:
    memory_id = create(bus, sam)
    bus.done(sam.edit(memory_id, depth=3))
    assert live(bus, memory_id)["depth"] == 3


def test_a_deleted_memory_is_gone_for_get_edit_and_delete(bus: Bus, sam: Speaker) -> None:
    memory_id = create(bus, sam)
    done = bus.done(sam.delete(memory_id, operation_id="k"))
    assert done.result == {
        "memory_id": memory_id,
        "revision": 1,
        "operation_id": "k",
        "duplicate": False,
    }
    assert isinstance(done.facts[0], MemoryRemoved)
    assert bus.reader().memory(memory_id) is None
    assert bus.reader().message(memory_id) is None
    assert isinstance(bus.refused(sam.edit(memory_id)), NotFoundError)
    assert isinstance(bus.refused(sam.delete(memory_id)), NotFoundError)
    assert create(bus, sam) != memory_id


def test_an_ordinary_message_is_no_memory(bus: Bus, sam: Speaker) -> None:
    message_id = bus.done(sam.send("x")).result["message_id"]
    assert bus.reader().memory(message_id) is None
    assert isinstance(bus.refused(sam.edit(message_id)), NotFoundError)
    assert isinstance(bus.refused(sam.delete(message_id)), NotFoundError)
    assert bus.reader().message(message_id) is not None


def test_repeats_of_edits_and_deletions_return_the_first_receipt(bus: Bus, sam: Speaker) -> None:
    memory_id = create(bus, sam)
    edit = sam.edit(memory_id, "second", operation_id="e")
    delete = sam.delete(memory_id, operation_id="d")
    first, again = bus.store.apply([edit, edit])
    assert isinstance(first, Done)
    assert isinstance(again, Done)
    assert again.result == {**first.result, "duplicate": True}
    assert (again.facts, again.charged) == ((), False)
    removed = bus.done(delete)
    assert bus.done(delete).result == {**removed.result, "duplicate": True}
    assert bus.done(edit).result == again.result
    assert rows(bus, memory_id) == [(1, False), (2, False)]


def test_an_operation_id_of_another_call_is_a_conflict(bus: Bus, sam: Speaker) -> None:
    memory_id = create(bus, sam, operation_id="k")
    for other in (
        sam.edit(memory_id, operation_id="k"),
        sam.delete(memory_id, operation_id="k"),
    ):
        assert isinstance(bus.refused(other), ConflictError)
    bus.done(sam.edit(memory_id, "x", operation_id="e"))
    cleared = sam.edit(memory_id, "x", subject=None, operation_id="e")
    assert isinstance(bus.refused(cleared), ConflictError)


def test_rates_hold_for_edits_and_deletions_but_not_for_their_repeats(
    bus: Bus, sam: Speaker
) -> None:
    memory_id = create(bus, sam)
    bus.done(sam.edit(memory_id, operation_id="e"))
    assert bus.done(sam.edit(memory_id, operation_id="e", rate_ok=False)).result["duplicate"]
    assert isinstance(bus.refused(sam.edit(memory_id, rate_ok=False)), RateLimitedError)
    assert isinstance(bus.refused(sam.delete(memory_id, rate_ok=False)), RateLimitedError)
    assert live(bus, memory_id)["revision"] == 2


def test_a_revision_too_large_changes_nothing(bus: Bus, sam: Speaker) -> None:
    memory_id = create(bus, sam)
    large = sam.edit(memory_id, "x" * (bus.config.max_message_kib * 1024))
    assert isinstance(bus.refused(large), TooLargeError)
    assert rows(bus, memory_id) == [(1, True)]


def test_edits_in_one_batch_follow_each_other_and_one_is_live(bus: Bus, sam: Speaker) -> None:
    memory_id = create(bus, sam)
    outcomes = bus.store.apply([sam.edit(memory_id, f"text {n}") for n in range(50)])
    assert [outcome.result["revision"] for outcome in outcomes if isinstance(outcome, Done)] == [
        *range(2, 52)
    ]
    assert rows(bus, memory_id) == [(n, n == 51) for n in range(1, 52)]
    assert live(bus, memory_id)["content"] == "text 49"


def test_an_edit_after_a_deletion_in_the_same_batch_finds_nothing(bus: Bus, sam: Speaker) -> None:
    memory_id = create(bus, sam)
    deleted, edited = bus.store.apply([sam.delete(memory_id), sam.edit(memory_id)])
    assert isinstance(deleted, Done)
    assert not isinstance(edited, Done)
    assert rows(bus, memory_id) == [(1, False)]


def test_counts_and_history_of_a_memory_channel_are_those_of_living_memories(
    bus: Bus, sam: Speaker
) -> None:
    one, two, three = (create(bus, sam, content) for content in ("one", "two", "three"))
    bus.done(sam.edit(one, "one again"))
    bus.done(sam.delete(two))
    reader = bus.reader()
    channel = reader.channel("facts")
    assert channel is not None
    assert (channel.retained, channel.newest) == (2, 4)
    page = reader.history(channel.channel_id, count=10)
    assert [message.message_id for message in page.messages] == [three, one]
    assert (page.removed, page.more) == ([], False)
    pages = [
        reader.history(channel.channel_id, after=Sequence(after), count=1) for after in (0, 3, 4)
    ]
    assert [[m.sequence for m in page.messages] for page in pages] == [[3], [4], []]


def test_the_lag_of_a_memory_channel_counts_living_memories_by_position(
    bus: Bus, sam: Speaker
) -> None:
    memories = [create(bus, sam, str(n)) for n in range(4)]
    for _ in range(3):
        bus.done(sam.edit(memories[0]))
    bus.done(sam.delete(memories[3]))
    reader = bus.reader()
    channel = reader.channel("facts")
    assert channel is not None
    lags = [reader.lag(channel.channel_id, Sequence(n)) for n in range(5)]
    assert lags == [3, 2, 1, 0, 0]


def test_tombstones_are_purged_after_their_hours_in_slices(bus: Bus, sam: Speaker) -> None:
    memory_id, deleted = create(bus, sam), create(bus, sam)
    for n in range(4):
        bus.done(sam.edit(memory_id, str(n)))
    bus.done(sam.delete(deleted))
    bus.clock.advance(hours=bus.config.tombstone_min_hours - 1)
    assert bus.prune("tombstones")[0] == PruneResult(0, False)
    bus.clock.advance(hours=1)
    assert bus.prune("tombstones", 3)[0] == PruneResult(3, True)
    assert bus.prune("tombstones", 3)[0] == PruneResult(2, False)
    assert rows(bus, memory_id) == [(5, True)]
    assert rows(bus, deleted) == []
    assert bus.reader().purged_through() == bus.store.last_sequence == 7
    after = bus.done(sam.edit(memory_id, "after"))
    assert isinstance(after.facts[0], MemoryRevised)
    assert after.facts[0].position == 1
    bus.reopen()
    assert live(bus, memory_id)["revision"] == 6


def test_age_never_removes_a_memory(bus: Bus, sam: Speaker) -> None:
    memory_id = create(bus, sam)
    bus.clock.advance(hours=bus.config.message_retention_hours * 2)
    assert bus.prune("messages_by_age")[0] == PruneResult(0, False)
    assert live(bus, memory_id)["revision"] == 1


def test_what_a_replay_needs_to_know_is_told_by_sequences(bus: Bus, sam: Speaker) -> None:
    old, edited, deleted = (create(bus, sam, content) for content in ("old", "edited", "deleted"))
    since = bus.store.last_sequence
    new = create(bus, sam, "new")
    bus.done(sam.edit(edited, "again"))
    bus.done(sam.edit(new, "new again"))
    bus.done(sam.edit(deleted))
    bus.done(sam.delete(deleted))
    reader = bus.reader()
    (channel_id,) = reader.memory_channels()
    everything = reader.scan_memories(channel_id, Sequence(0), 10)
    assert [(m.message_id, m.position, m.sequence) for m in everything] == [
        (old, 1, 1),
        (edited, 2, 5),
        (new, 4, 6),
    ]
    assert [m.message_id for m in reader.scan_memories(channel_id, since, 10)] == [new]
    assert [m.message_id for m in reader.revised_memories(since)] == [edited]
    assert [(m.memory_id, m.position) for m in reader.deleted_memories(since)] == [(deleted, 3)]
    assert reader.deleted_memories(bus.store.last_sequence) == []


# --- what changed while a session was away ---


def resumed(bus: Bus, speaker: Speaker) -> list[tuple[str, int, bool]]:
    """Attach the session again: the memories it is told of, their revisions, whether they live."""
    identity = speaker.bound.identity
    again = bus.attach(speaker.bound.agent, identity.conversation)
    return [
        (change.memory_id, change.revision, change.envelope is not None)
        for change in again.bound.memory_changes
    ]


def hand_off(bus: Bus, speaker: Speaker, subscription: int) -> None:
    newest = bus.store.last_sequence
    bus.done(
        MoveCursors(speaker.attachment, {subscription: newest}, {subscription: newest}),
    )


def test_a_resumed_session_is_told_what_changed_of_what_it_has_seen(bus: Bus, sam: Speaker) -> None:
    ann = bus.attach("Ann", "c2")
    subscription = bus.done(ann.subscribe("facts", "oldest")).result["subscription_id"]
    edited, deleted, untouched, twice = (create(bus, sam, str(n)) for n in range(4))
    hand_off(bus, ann, subscription)
    unseen = create(bus, sam)
    bus.clock.advance(seconds=1)
    bus.done(sam.edit(twice, "x"))
    bus.done(sam.edit(edited, "x"))
    bus.done(sam.delete(deleted))
    bus.done(sam.edit(twice, "y"))
    bus.done(sam.edit(unseen, "x"))
    assert untouched
    assert resumed(bus, ann) == [(edited, 2, True), (deleted, 1, False), (twice, 3, True)]
    assert resumed(bus, sam) == []  # not subscribed


def test_a_change_is_told_until_a_call_after_the_one_that_told_it(bus: Bus, sam: Speaker) -> None:
    """The last result of a session may have been lost with its adapter."""
    ann = bus.attach("Ann", "c2")
    facts = bus.done(ann.subscribe("facts")).result["subscription_id"]
    general = bus.done(ann.subscribe("general")).result["subscription_id"]
    memory_id = create(bus, sam)
    hand_off(bus, ann, facts)
    bus.done(sam.edit(memory_id))
    told = [(memory_id, 2, True)]

    def after(*renewed: int) -> list[tuple[str, int, bool]]:
        """What it is told after it attached, received from these, and attached again."""
        attached = bus.attach("Ann", "c2")
        for subscription in renewed:
            bus.done(MoveCursors(attached.attachment, renewed=(subscription,)))
        return resumed(bus, attached)

    assert after() == told
    assert after(facts) == told
    assert after(facts) == told  # another adapter, which lost its only result too
    assert after(general, general) == told  # nothing of memories was in these
    assert after(facts, facts) == []
    bus.done(sam.edit(memory_id))
    assert after() == [(memory_id, 3, True)]


def test_what_changed_after_the_clock_was_set_back_is_told_too(bus: Bus, sam: Speaker) -> None:
    ann = bus.attach("Ann", "c2")
    subscription = bus.done(ann.subscribe("facts")).result["subscription_id"]
    edited, deleted = create(bus, sam), create(bus, sam)
    hand_off(bus, ann, subscription)
    for _ in range(2):
        bus.done(MoveCursors(ann.attachment, renewed=(subscription,)))
    bus.clock.set_wall(bus.clock.wall_us() - 3_600_000_000)
    bus.done(sam.edit(edited))
    bus.done(sam.delete(deleted))
    assert resumed(bus, ann) == [(edited, 2, True), (deleted, 1, False)]


def test_the_list_of_changes_is_bounded_and_has_the_newest(bus: Bus, sam: Speaker) -> None:
    ann = bus.attach("Ann", "c2")
    subscription = bus.done(ann.subscribe("facts", "oldest")).result["subscription_id"]
    memories = [create(bus, sam, str(n)) for n in range(MEMORY_CHANGES + 5)]
    hand_off(bus, ann, subscription)
    bus.clock.advance(seconds=1)
    for memory_id in memories:
        bus.done(sam.edit(memory_id))
    told = resumed(bus, ann)
    assert [memory_id for memory_id, _, _ in told] == memories[5:]


# --- crashes ---

_EDITOR = """
import sys
from pathlib import Path
from tests.store.bus import Bus

bus = Bus(Path(sys.argv[1]))
sam = bus.attach()
{change}
"""


@pytest.mark.parametrize(
    ("failpoint", "committed"),
    [("before_commit", False), ("commit", False), ("after_commit", True)],
)
@pytest.mark.parametrize("operation", ["edit", "delete"])
def test_killed_at_each_failpoint_a_memory_has_one_live_revision_or_is_deleted(
    tmp_path: Path, operation: str, failpoint: str, committed: bool
) -> None:
    bus = Bus(tmp_path)
    sam = bus.attach()
    bus.done(sam.make("facts", "memory"))
    memory_id = create(bus, sam)
    bus.close()
    change = f"bus.store.apply([sam.{operation}({memory_id!r}, operation_id='k')])"
    ended = subprocess.run(
        [sys.executable, "-c", _EDITOR.format(change=change), str(tmp_path)],
        cwd=PROJECT,
        env={**os.environ, "AGENTBUS_TEST_FAILPOINT": failpoint, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    bus = Bus(tmp_path)
    after_edit = [(1, False), (2, True)] if committed else [(1, True)]
    after_delete = [(1, not committed)]
    assert rows(bus, memory_id) == (after_edit if operation == "edit" else after_delete)
    sam = bus.attach()
    repeat = sam.edit if operation == "edit" else sam.delete
    assert bus.done(repeat(memory_id, operation_id="k")).result["duplicate"] is committed
    alive = [revision for revision, is_live in rows(bus, memory_id) if is_live]
    assert alive == ([2] if operation == "edit" else [])
    bus.close()
