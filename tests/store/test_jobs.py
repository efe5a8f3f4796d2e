"""Jobs in the ledger: order, repeats, the end, cancels, the outbox, and what retention leaves."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentbus.errors import (
    BusError,
    ConflictError,
    JobClosedError,
    NotFoundError,
    RateLimitedError,
    StaleAttachmentError,
    TooLargeError,
    UnavailableError,
    ValidationError,
)
from agentbus.limits import JOBS_AGENT
from agentbus.store import accounting
from agentbus.store.changes import ChannelMade, Done, MessageAppended, Refused
from agentbus.store.jobs.changes import (
    CallbacksWaiting,
    CancelJob,
    ChannelRemoved,
    CloseLostJob,
    ForgetJob,
    JobChanged,
    JobGone,
    ReplayCallbacks,
    SettleCallback,
)
from agentbus.store.jobs.reading import JobReader
from tests.store.bus import Bus
from tests.store.jobs import CALLBACK, TS, Emitting, read
from tests.store.peers import Peer


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path, message_retention_hours=1)
    yield bus
    assert _recounted(bus) == bus.store.logical_bytes
    bus.close()


@pytest.fixture
def job(bus: Bus) -> Emitting:
    return Emitting(bus)


def _recounted(bus: Bus) -> int:
    with closing(sqlite3.connect(bus.path)) as connection:
        return accounting.recount(connection)


def kinds(done: Done) -> list[type]:
    return [type(fact) for fact in done.facts]


# --- order ---


def test_events_are_messages_of_the_jobs_own_channel(bus: Bus, job: Emitting) -> None:
    first = job.emit(0, "accepted")
    assert kinds(first) == [ChannelMade, MessageAppended, JobChanged]
    assert kinds(job.emit(1)) == [MessageAppended, JobChanged]
    channel = bus.reader().channel("job/cake")
    assert channel is not None
    assert (channel.kind, channel.retained) == ("job", 2)
    assert read(bus)["types"] == ["accepted", "warning"]


@pytest.mark.parametrize("seq", [0, 1, 2])
def test_the_same_event_again_is_answered_as_the_first_time(
    bus: Bus, job: Emitting, seq: int
) -> None:
    first = [job.emit(0, "accepted"), job.emit(1), job.emit(2, "succeeded")][seq]
    kind = ("accepted", "warning", "succeeded")[seq]
    again = job.emit(seq, kind)
    assert again.result == first.result | {"duplicate": True}
    assert (again.facts, again.charged) == ((), False)
    assert read(bus)["seqs"] == [0, 1, 2]


def test_a_repeat_is_known_within_its_own_batch_and_after_a_restart(
    bus: Bus, job: Emitting
) -> None:
    outcomes = bus.store.apply([job.event(0, "accepted"), job.event(0, "accepted")])
    assert [outcome.result["duplicate"] for outcome in outcomes if isinstance(outcome, Done)] == [
        False,
        True,
    ]
    bus.reopen()
    assert job.emit(0, "accepted").result["duplicate"]


def test_another_event_with_a_known_sequence_is_a_conflict(bus: Bus, job: Emitting) -> None:
    job.emit(0, "accepted")
    job.emit(1)
    assert isinstance(job.refused(1, message="other"), ConflictError)
    assert isinstance(job.refused(0, "accepted", url="other"), ConflictError)


def test_a_gap_is_shown_to_readers_and_never_filled(bus: Bus, job: Emitting) -> None:
    for seq in (0, 1, 4, 9):
        job.emit(seq)
    assert read(bus) == {
        "seqs": [0, 1, 4, 9],
        "types": ["warning"] * 4,
        "missing": [(2, 3), (5, 8)],
        "next": 10,
        "closed": False,
    }
    assert isinstance(job.refused(3), ConflictError)
    assert read(bus, from_seq=2)["missing"] == [(2, 3), (5, 8)]
    assert read(bus, from_seq=3, count=1) == {
        "seqs": [4],
        "types": ["warning"],
        "missing": [(3, 3)],
        "next": 5,
        "closed": False,
    }


def test_a_job_may_begin_beyond_its_first_event(bus: Bus, job: Emitting) -> None:
    job.emit(3)
    assert read(bus)["missing"] == [(0, 2)]


def test_an_event_that_names_the_one_before_it_never_passes_it(bus: Bus, job: Emitting) -> None:
    job.emit(0, "accepted")
    assert isinstance(job.refused(2, after=1), UnavailableError)
    job.emit(1, after=0)
    job.emit(2, after=1)
    assert job.emit(1, after=0).result["duplicate"]
    assert read(bus)["seqs"] == [0, 1, 2]


# --- the end ---


@pytest.mark.parametrize("kind", ["succeeded", "failed"])
def test_nothing_comes_after_the_terminal_event(bus: Bus, job: Emitting, kind: str) -> None:
    job.emit(0, "accepted")
    job.emit(1, kind)
    assert isinstance(job.refused(2), JobClosedError)
    assert isinstance(job.refused(0, "accepted", url="other"), ConflictError)
    assert read(bus)["closed"]
    with closing(JobReader(bus.path)) as reader:
        row = reader.job("cake")
    assert row is not None
    assert (row.state, row.outcome, bool(row.synthetic)) == ("closed", kind, False)
    assert row.code == (None if kind == "succeeded" else "general")


def test_of_two_terminal_events_the_first_one_counts(bus: Bus, job: Emitting) -> None:
    first, second = job.event(0, "succeeded"), job.event(0, "failed")
    outcomes = bus.store.apply([first, second])
    assert isinstance(outcomes[0], Done)
    assert isinstance(outcomes[1], Refused)
    assert isinstance(outcomes[1].error, JobClosedError)
    assert read(bus)["types"] == ["succeeded"]


def lost(job: Emitting, seq: int) -> CloseLostJob:
    event = {"job_id": job.job_id, "seq": seq, "ts": TS, "type": "failed", "code": "lost"}
    return CloseLostJob(job.job_id, event | {"message": "silent", "synthetic": True})


def test_a_lost_job_gets_a_synthetic_end(bus: Bus, job: Emitting) -> None:
    job.emit(0, "accepted", callback=CALLBACK)
    done = bus.done(lost(job, 1))
    assert done.result is True
    assert kinds(done) == [MessageAppended, JobChanged, CallbacksWaiting]
    assert isinstance(job.refused(1, "succeeded"), JobClosedError)
    with closing(JobReader(bus.path)) as reader:
        row = reader.job("cake")
    assert row is not None
    assert (row.outcome, row.code, bool(row.synthetic)) == ("failed", "lost", True)


def test_an_end_that_comes_too_late_changes_nothing(bus: Bus, job: Emitting) -> None:
    job.emit(0, "accepted")
    job.emit(1)
    assert bus.done(lost(job, 1)).result is False
    assert bus.done(lost(Emitting(bus, "unknown"), 0)).result is False
    job.emit(2, "succeeded")
    assert bus.done(lost(job, 3)).result is False
    assert read(bus)["types"] == ["accepted", "warning", "succeeded"]


# --- who may, and how much ---


def test_an_emitter_that_was_replaced_is_fenced_off(bus: Bus, job: Emitting) -> None:
    job.emit(0, "accepted")
    newer = Emitting(bus)
    assert isinstance(job.refused(1), StaleAttachmentError)
    newer.emit(1)


def test_only_new_events_are_held_to_the_rate(bus: Bus, job: Emitting) -> None:
    assert isinstance(job.refused(0, rate_ok=False), RateLimitedError)
    job.emit(0)
    assert job.emit(0, rate_ok=False).result["duplicate"]


def test_an_event_must_fit_a_message(bus: Bus, job: Emitting) -> None:
    job.emit(0, "accepted")
    error = job.refused(1, "succeeded", result="x" * 70_000)
    assert isinstance(error, TooLargeError)
    assert "artifact" in error.message
    job.emit(1, "succeeded")


def test_nobody_sends_to_the_channel_of_a_job(bus: Bus, job: Emitting) -> None:
    job.emit(0)
    sam = bus.attach()
    for channel in ("job/cake", "job/unknown"):
        error = bus.refused(sam.send("hello", channel))
        assert isinstance(error, ValidationError)
        assert "jobs" in error.message


def test_anybody_can_subscribe_to_a_job(bus: Bus, job: Emitting) -> None:
    job.emit(0)
    bus.done(bus.attach().subscribe("job/cake", "oldest"))
    assert isinstance(bus.refused(bus.attach().subscribe("job/other")), NotFoundError)


def test_emitters_are_nobody_to_write_to(bus: Bus, job: Emitting) -> None:
    job.emit(0)
    sam = Peer(bus, "Sam")
    assert [card.agent for card in bus.reader().directory({}, 10)] == ["Sam"]
    assert isinstance(bus.refused(sam.sending(JOBS_AGENT)), NotFoundError)


# --- cancel ---


def test_a_cancel_is_told_with_every_answer(bus: Bus, job: Emitting) -> None:
    assert "cancel" not in job.emit(0).result
    assert bus.done(CancelJob("cake", "no longer needed")).result["reason"] == "no longer needed"
    assert job.emit(1).result["cancel"] == "no longer needed"
    assert job.emit(1).result["cancel"] == "no longer needed"
    again = bus.done(CancelJob("cake", "another reason"))
    assert (again.result["reason"], again.facts) == ("no longer needed", ())


def test_a_job_can_be_cancelled_before_it_begins_if_that_is_meant(bus: Bus, job: Emitting) -> None:
    assert isinstance(bus.refused(CancelJob("cake", "r")), NotFoundError)
    bus.done(CancelJob("cake", "r", ahead=True))
    assert read(bus) == {"seqs": [], "types": [], "missing": [], "next": 0, "closed": False}
    assert job.emit(0).result["cancel"] == "r"
    assert bus.done(ForgetJob("cake")).result is False


def test_a_cancel_of_what_never_begins_is_forgotten(bus: Bus) -> None:
    bus.done(CancelJob("cake", "r", ahead=True))
    done = bus.done(ForgetJob("cake"))
    assert done.facts == (JobGone("cake"),)
    assert bus.done(ForgetJob("cake")).result is False


def test_a_job_that_has_ended_cannot_be_cancelled(bus: Bus, job: Emitting) -> None:
    job.emit(0, "failed")
    assert isinstance(bus.refused(CancelJob("cake", "r")), JobClosedError)


# --- the outbox ---


def entries(bus: Bus) -> list[tuple[int, str, str, int, str | None]]:
    with closing(sqlite3.connect(bus.path)) as connection:
        return connection.execute(
            "SELECT seq, state, job, attempts, last_error FROM outbox ORDER BY id"
        ).fetchall()


def first(bus: Bus) -> list[Any]:
    with closing(JobReader(bus.path)) as reader:
        return [reader.with_body(entry) for entry in reader.first_callbacks()]


def test_an_event_and_its_callback_are_one_commit(bus: Bus, job: Emitting) -> None:
    assert CallbacksWaiting() in job.emit(0, "accepted", callback=CALLBACK).facts
    job.emit(1)
    job.emit(2, "succeeded")
    assert [entry[:2] for entry in entries(bus)] == [(seq, "pending") for seq in range(3)]
    [entry] = first(bus)
    assert entry.callback == CALLBACK
    assert entry.row.body == (
        b'{"job_id":"cake","seq":0,"ts":"' + TS.encode() + b'","type":"accepted","url":"u"}'
    )


def test_what_was_delivered_leaves_the_outbox_and_the_next_one_is_due(
    bus: Bus, job: Emitting
) -> None:
    job.emit(0, "accepted", callback=CALLBACK)
    job.emit(1)
    for seq in (0, 1):
        [entry] = first(bus)
        assert entry.row.seq == seq
        assert bus.done(SettleCallback(entry.callback_id)).result is True
        assert bus.done(SettleCallback(entry.callback_id)).result is False
    assert entries(bus) == []


def test_what_is_given_up_is_kept_and_can_be_tried_again(bus: Bus, job: Emitting) -> None:
    job.emit(0, "accepted", callback=CALLBACK)
    job.emit(1)
    [entry] = first(bus)
    later_us = bus.clock.wall_us() + 1
    bus.done(SettleCallback(entry.callback_id, "answered 503", later_us))
    assert entries(bus)[0] == (0, "pending", "cake", 1, "answered 503")
    assert isinstance(bus.refused(ReplayCallbacks(entry.callback_id)), NotFoundError)
    bus.done(SettleCallback(entry.callback_id, "x" * 600))
    assert entries(bus)[0] == (0, "dead", "cake", 2, "x" * 500)
    assert [found.row.seq for found in first(bus)] == [1]
    done = bus.done(ReplayCallbacks(None))
    assert (done.result, done.facts) == ({"replayed": 1}, (CallbacksWaiting(),))
    assert [found.row.seq for found in first(bus)] == [0]
    assert bus.done(ReplayCallbacks(None)).result == {"replayed": 0}


# --- retention ---


def test_events_fall_to_retention_and_readers_see_that(bus: Bus, job: Emitting) -> None:
    for seq in range(3):
        job.emit(seq)
    bus.clock.advance(hours=2)
    for seq in range(3, 5):
        job.emit(seq)
    assert bus.prune("messages_by_age", max_rows=2)[0].removed_rows == 2
    assert read(bus)["seqs"] == [2, 3, 4]
    bus.prune("messages_by_age")
    assert (read(bus)["seqs"], read(bus)["missing"]) == ([3, 4], [(0, 2)])
    bus.prune("jobs")
    assert job.emit(5).result["seq"] == 5


def test_a_closed_job_goes_when_nothing_of_it_is_left(bus: Bus, job: Emitting) -> None:
    job.emit(0, "accepted")
    job.emit(1, "succeeded")
    Emitting(bus, "newer").emit(0)
    bus.prune("jobs")
    assert read(bus)["closed"]
    bus.clock.advance(hours=2)
    Emitting(bus, "newer").emit(1)
    bus.prune("messages_by_age")
    result, done = bus.prune("jobs")
    assert result.removed_rows == 1
    assert kinds(done) == [JobGone, ChannelRemoved]
    assert bus.reader().channel("job/cake") is None
    assert read(bus)["seqs"] == []
    with closing(JobReader(bus.path)) as reader:
        assert [row.id for row in reader.jobs(10, only_open=False)] == ["newer"]
    assert Emitting(bus).emit(0).facts[0] == ChannelMade(4, "job/cake", "job")


@pytest.mark.parametrize("still", ["subscribed", "a callback", "the newest channel"])
def test_a_closed_job_stays_while_somebody_needs_it(bus: Bus, job: Emitting, still: str) -> None:
    job.emit(0, "succeeded", callback=CALLBACK if still == "a callback" else None)
    if still != "the newest channel":
        Emitting(bus, "newer").emit(0)
    sam = bus.attach()
    if still == "subscribed":
        bus.done(sam.subscribe("job/cake"))
    bus.clock.advance(hours=2)
    bus.prune("messages_by_age")
    assert bus.prune("jobs")[0].removed_rows == 0
    if still == "subscribed":
        bus.done(sam.unsubscribe("job/cake"))
    elif still == "a callback":
        bus.done(SettleCallback(first(bus)[0].callback_id))
    else:
        bus.done(sam.make("another"))
    assert bus.prune("jobs")[0].removed_rows == 1


def test_dead_letters_are_kept_as_long_as_messages(bus: Bus, job: Emitting) -> None:
    job.emit(0, "succeeded", callback=CALLBACK)
    bus.done(bus.attach().make("another"))
    bus.done(SettleCallback(first(bus)[0].callback_id, "refused"))
    bus.clock.advance(hours=0.9)
    bus.prune("jobs")
    assert len(entries(bus)) == 1
    bus.clock.advance(hours=0.2)
    bus.prune("messages_by_age")
    assert bus.prune("jobs")[0].removed_rows == 2
    assert entries(bus) == []


def test_a_job_that_was_only_cancelled_is_listed(bus: Bus) -> None:
    bus.done(CancelJob("cake", "r", ahead=True))
    with closing(JobReader(bus.path)) as reader:
        [view] = reader.open_jobs()
    assert (view.job_id, view.last_seq, view.cancel_reason) == ("cake", -1, "r")


def test_a_refusal_in_a_batch_leaves_the_others_alone(bus: Bus, job: Emitting) -> None:
    sam = bus.attach()
    batch = [sam.send(), job.event(0, "accepted"), job.event(0), sam.send(), job.event(1)]
    outcomes = bus.store.apply(batch)
    assert [isinstance(outcome, Done) for outcome in outcomes] == [True, True, False, True, True]
    assert isinstance(outcomes[2], Refused)
    assert isinstance(outcomes[2].error, BusError)
