"""The last word of an attachment: what its client may have seen comes again marked, and reports
are answered also when their attachment has ended."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from actors.base import stop_actor
from actors.messages import Detached, HandingOff, ReadinessChanged, Released, Submit
from agentbus.errors import StaleAttachmentError, UnavailableError
from agentbus.ids import RecoveryEpoch, Sequence
from agentbus.store.changes import MoveCursors
from tests.actors.stage import Stage, stage_on
from tests.eventually import PATIENCE_S
from tests.redis_fixture import PrivateRedis


def expose(stage: Stage, position: int, subscription: int | None = None) -> None:
    key = stage.general if subscription is None else subscription
    stage.tell(HandingOff({key: Sequence(position)}))


def leave(stage: Stage) -> None:
    """End the attachment and commit what it says at last."""
    stage.tell(Detached())
    assert stage.registrar.expect(Released).attachment == stage.attachment
    stage.settle_changes()


def recover(stage: Stage, epoch: int) -> None:
    stage.tell(ReadinessChanged("recovering", RecoveryEpoch(epoch), 100))
    stage.tell(ReadinessChanged("ready", RecoveryEpoch(epoch), 100))


def delivered_anew(stage: Stage) -> list[tuple[int, bool]]:
    """What a new attachment gets, and whether it is marked."""
    stage.attach()
    return [
        (position, position <= params["delivery"]["redelivered_through"])
        for params in stage.deliveries()
        for position, _ in params["delivery"]["records"]
    ]


# --- what a client may have seen ---


def test_what_is_about_to_leave_moves_no_cursor_while_the_attachment_lives(stage: Stage) -> None:
    stage.attach()
    stage.say("a", "b")
    stage.pushed()
    expose(stage, 1)
    stage.no_flush()
    assert stage.positions() == (0, 0)


def test_what_left_without_a_report_comes_again_marked_and_the_rest_as_new(stage: Stage) -> None:
    stage.attach()
    stage.say("a", "b", "c")
    stage.pushed()
    expose(stage, 2)
    leave(stage)
    assert stage.positions() == (2, 0)
    assert delivered_anew(stage) == [(1, True), (2, True), (3, False)]


def test_what_did_not_leave_after_all_comes_as_new(stage: Stage) -> None:
    stage.attach()
    stage.say("a", "b")
    stage.pushed()
    expose(stage, 1)
    expose(stage, 2)
    expose(stage, 1)  # the second result was cancelled before its first byte
    leave(stage)
    assert delivered_anew(stage) == [(1, True), (2, False)]


def test_what_was_reported_and_committed_needs_no_last_word(stage: Stage) -> None:
    stage.attach()
    stage.say("a")
    stage.pushed()
    expose(stage, 1)
    stage.report(1, {stage.general: 1})
    stage.flush()
    stage.settle_changes()
    stage.tell(Detached())
    stage.registrar.expect(Released)
    stage.ledger.expect_nothing_of(Submit)


def test_a_client_that_names_positions_or_subscriptions_that_are_not_marks_nothing_else(
    stage: Stage,
) -> None:
    stage.attach()
    stage.say("a")
    stage.pushed()
    foreign = stage.bus.reader().subscriptions(stage.ada.session_id)[0].subscription_id
    expose(stage, 10**9)
    expose(stage, 1, foreign)
    expose(stage, 1, 999)
    leave(stage)
    assert stage.positions() == (1, 0)
    assert stage.bus.reader().subscriptions(stage.ada.session_id)[0].handed_off == 0


def test_the_last_word_goes_to_the_ledger_before_the_registrar_hears_of_the_end(
    stage: Stage,
) -> None:
    """So the bind of a successor, which the registrar submits, is behind it."""
    stage.attach()
    stage.say("a")
    stage.pushed()
    expose(stage, 1)
    stage.tell(Detached())
    stage.registrar.expect(Released)
    # Told before; the probe that plays the ledger takes it on a thread of its own.
    change = stage.ledger.expect(Submit).change
    assert isinstance(change, MoveCursors)
    assert change.exposed == {stage.general: 1}
    assert change.holds_in_any_epoch


# --- reports of an attachment that has ended ---


def test_reports_that_wait_when_the_attachment_ends_are_answered_after_the_commit(
    stage: Stage,
) -> None:
    stage.attach()
    stage.say("a", "b")
    stage.pushed()
    first = stage.report(1, {stage.general: 1})
    stage.flush()  # with the ledger, not committed yet
    second = stage.report(2, {stage.general: 2})
    stage.settle()
    stage.tell(Detached())
    stage.registrar.expect(Released)
    assert not first._future.done()
    assert not second._future.done()
    stage.settle_changes()
    assert first.get(PATIENCE_S) == {"report": 1}
    assert second.get(PATIENCE_S) == {"report": 2}
    assert stage.positions() == (2, 0)


def test_an_attachment_that_is_stopped_refuses_the_reports_it_has_not_flushed(
    stage: Stage,
) -> None:
    stage.attach()
    stage.say("a")
    stage.pushed()
    reply = stage.report(1, {stage.general: 1})
    stage.settle()
    assert stop_actor(stage.address, PATIENCE_S)
    with pytest.raises(StaleAttachmentError):
        reply.get(PATIENCE_S)


# --- recoveries ---


def test_what_an_earlier_attachment_handed_off_is_sent_again_after_a_recovery_too(
    stage: Stage,
) -> None:
    """The mark is not the receipt of this client: it has been given nothing yet."""
    stage.attach()
    stage.say("a", "b")
    stage.pushed()
    expose(stage, 2)
    leave(stage)
    assert delivered_anew(stage) == [(1, True), (2, True)]
    recover(stage, 2)
    assert stage.pushed() == [1, 2]


def test_what_is_exposed_outlives_a_recovery(stage: Stage) -> None:
    stage.attach()
    stage.say("a")
    stage.pushed()
    expose(stage, 1)
    recover(stage, 2)
    stage.settle()
    leave(stage)
    assert stage.positions() == (1, 0)


@pytest.mark.parametrize("call", ["before the recovery", "during it", "after it"])
def test_a_recovery_loses_no_confirmation_of_what_was_committed(stage: Stage, call: str) -> None:
    stage.attach()
    stage.say("a", "b")
    stage.pushed()
    stage.report(1, {stage.general: 1})
    stage.flush()
    stage.settle_changes()
    uncommitted = stage.report(2, {stage.general: 2})
    if call == "before the recovery":
        stage.used(2)
    stage.tell(ReadinessChanged("recovering", RecoveryEpoch(2), 100))
    assert uncommitted.get(PATIENCE_S)["stale"]
    if call == "during it":
        stage.used(2)
    if call == "after it":
        stage.tell(ReadinessChanged("ready", RecoveryEpoch(2), 100))
        stage.used(2)
    assert stage.flush().holds_in_any_epoch
    stage.settle_changes()
    assert stage.positions() == (1, 1)


def test_a_confirmation_whose_flush_was_refused_goes_with_the_next(stage: Stage) -> None:
    stage.attach()
    stage.say("a", "b")
    stage.pushed()
    stage.report(1, {stage.general: 1})
    stage.flush()
    stage.settle_changes()
    stage.used(1)
    reply = stage.report(2, {stage.general: 2})
    stage.flush()
    stage.settle()
    stage.ledger.expect(Submit).reply_to.set_exception(UnavailableError("recovering"))
    with pytest.raises(UnavailableError):
        reply.get(PATIENCE_S)
    stage.settle()
    leave(stage)
    assert stage.positions() == (1, 1)


# --- every history of two results, ended everywhere ---

STEPS = (
    "announce 1",
    "write 1",
    "report 1",
    "flush",
    "announce 2",
    "write 2",
    "confirm 1",
    "report 2",
    "flush",
    "confirm 2",
    "flush",
)
"""What one adapter does with two results of one message each; a flush is the daemon's 20 ms."""


@dataclass
class _Truth:
    written: set[int] = field(default_factory=set)
    announced: int = 0
    committed: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)


def _commit(stage: Stage, *, fenced: bool) -> list[MoveCursors]:
    """The ledger's part; what a fence refuses is refused."""
    stage.settle()
    taken: list[MoveCursors] = []
    kept: list[Submit] = []
    for submit in [m for m in stage.ledger.received() if isinstance(m, Submit)]:
        stage.ledger.expect(Submit)
        assert isinstance(submit.change, MoveCursors)
        if fenced and not submit.change.holds_in_any_epoch:
            submit.reply_to.set_exception(UnavailableError("recovering"))
        else:
            taken.append(submit.change)
            kept.append(submit)
    for submit in kept:
        stage.ledger.address.tell(submit)
    stage.settle_changes()
    return taken


def _play(stage: Stage, end: int, recovery: int | None, *, recovered: bool) -> None:
    """The first `end` steps with a recovery before step `recovery`; then the adapter is killed."""
    stage.attach()
    stage.say("a", "b", "c")
    assert stage.pushed() == [1, 2, 3]
    truth, fenced, epoch = _Truth(), False, 1
    for number, step in enumerate(STEPS[:end]):
        if number == recovery:
            epoch, fenced = 2, not recovered
            stage.tell(ReadinessChanged("recovering", RecoveryEpoch(2), 100))
            if recovered:
                stage.tell(ReadinessChanged("ready", RecoveryEpoch(2), 100))
            stage.pushed()
        match step.split():
            case ["announce", result]:
                truth.announced = int(result)
                expose(stage, truth.announced)
            case ["write", result]:
                truth.written.add(int(result))
            case ["report", result]:
                stage.report(int(result), {stage.general: int(result)}, epoch=epoch)
            case ["confirm", result]:
                stage.used(int(result))
            case ["flush"]:
                stage.settle()
                stage.clock.advance(1)
                for change in _commit(stage, fenced=fenced):
                    truth.committed.update(change.handed_off.values())
                    truth.confirmed.update(change.confirmed.values())
    stage.tell(Detached())
    stage.registrar.expect(Released)
    _commit(stage, fenced=fenced)
    again = dict(delivered_anew(stage))
    confirmed = stage.rows()[0].confirmed
    assert confirmed in {0} | truth.written, "confirmed what was never written"
    assert confirmed >= max(truth.confirmed, default=0), "a committed confirmation was undone"
    assert sorted(again) == [n for n in (1, 2, 3) if n > confirmed], "lost, or out of order"
    assert all(again[n] for n in truth.written if n in again), "an unmarked duplicate"
    assert not any(again[n] for n in again if n > truth.announced), "marked, but never written"


HISTORIES = [
    (end, recovery, recovered)
    for end, recovery in itertools.product(range(len(STEPS) + 1), [None, 2, 3, 5, 8])
    if recovery is None or recovery < end
    for recovered in ([True, False] if recovery is not None else [True])
]


def test_no_end_of_any_history_loses_a_message_or_repeats_one_unmarked(
    tmp_path: Path, redis: PrivateRedis
) -> None:
    for number, (end, recovery, recovered) in enumerate(HISTORIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        with stage_on(folder, redis, sqlite_synchronous="normal") as stage:
            try:
                _play(stage, end, recovery, recovered=recovered)
            except AssertionError as error:
                raise AssertionError(f"{STEPS[:end]}, {recovery=}, {recovered=}: {error}") from None
