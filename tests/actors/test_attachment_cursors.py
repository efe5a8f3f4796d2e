"""What an attachment keeps in step with the ledger: cursors, subscriptions, recovery, gaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors import queries
from actors.base import FutureReply
from actors.messages import (
    CheckRedis,
    Detached,
    ReadinessChanged,
    Request,
    Submit,
    SubscriptionsChanged,
)
from agentbus.encoding import decode_trusted, encode
from agentbus.errors import (
    StaleAttachmentError,
    UnavailableError,
)
from agentbus.ids import RecoveryEpoch
from agentbus.limits import HANDOFF_FLUSH_REPORTS, MIB
from agentbus.projection import streams
from agentbus.projection.streams import StreamReader, StreamSlice
from agentbus.protocol.operations import Send
from agentbus.store.changes import MoveCursors, PruneSlice
from tests.actors.stage import Stage, stage_on
from tests.eventually import PATIENCE_S
from tests.redis_fixture import private_redis


def only_change(stage: Stage) -> Any:
    """The one change that the attachment has submitted; it stays with the ledger."""
    stage.settle()
    (submit,) = [m for m in stage.ledger.received() if isinstance(m, Submit)]
    return submit.change


# --- reports ---


def test_reports_are_committed_together_after_20_ms_and_answered_after_the_commit(
    stage: Stage,
) -> None:
    stage.attach()
    stage.say("a", "b", "c")
    stage.pushed()
    replies = [stage.report(number, {stage.general: number}) for number in (1, 2, 3)]
    stage.settle()
    stage.ledger.expect_nothing_of(Submit, through=(stage.address,))
    change = stage.flush()
    assert change.handed_off == {stage.general: 3}
    assert change.confirmed == {}
    assert not any(reply._future.done() for reply in replies)
    stage.settle_changes()
    assert [reply.get(PATIENCE_S) for reply in replies] == [{"report": n} for n in (1, 2, 3)]
    assert stage.positions() == (3, 0)


def test_a_hundred_reports_do_not_wait_for_the_clock(stage: Stage) -> None:
    stage.attach()
    stage.say("a")
    stage.pushed()
    for number in range(1, HANDOFF_FLUSH_REPORTS):
        stage.report(number, {stage.general: 1})
    stage.ledger.expect_nothing_of(Submit, through=(stage.address,))
    last = stage.report(HANDOFF_FLUSH_REPORTS, {stage.general: 1})
    stage.settle_changes()
    assert last.get(PATIENCE_S) == {"report": HANDOFF_FLUSH_REPORTS}


def test_a_later_call_confirms_what_was_handed_off_before(stage: Stage) -> None:
    stage.attach()
    stage.say("a", "b", "c")
    stage.pushed()
    stage.report(1, {stage.general: 1})
    stage.report(2, {stage.general: 3})
    stage.used(1, ("general",))
    change = stage.flush()
    assert change.handed_off == {stage.general: 3}
    assert change.confirmed == {stage.general: 1}
    assert change.renewed == (stage.general,)
    stage.settle_changes()
    assert stage.positions() == (3, 1)


def test_a_call_that_is_no_receive_confirms_but_renews_nothing(stage: Stage) -> None:
    stage.attach()
    stage.say("a")
    stage.pushed()
    stage.report(1, {stage.general: 1})
    stage.used(1)
    change = stage.flush()
    assert change.confirmed == {stage.general: 1}
    assert change.renewed == ()


def test_an_empty_receive_of_all_channels_renews_them_all(stage: Stage) -> None:
    stage.attach()
    stage.used(0, ())
    change = stage.flush()
    assert change.renewed == (stage.general,)


def test_reports_of_an_older_epoch_move_nothing_and_are_counted(stage: Stage) -> None:
    stage.attach(readiness=ReadinessChanged("ready", RecoveryEpoch(4), 0))
    stage.say("a")
    stage.pushed()
    reply = stage.report(1, {stage.general: 1}, epoch=3)
    assert reply.get(PATIENCE_S) == {"report": 1, "stale": True}
    stage.no_flush()
    assert stage.actor.stale_reports == 1


def test_reports_cannot_move_beyond_what_was_sent_nor_foreign_subscriptions(stage: Stage) -> None:
    stage.attach(window=(1, MIB))
    stage.say("a", "b")
    stage.pushed()
    foreign = stage.bus.reader().subscriptions(stage.ada.session_id)[0].subscription_id
    reply = stage.report(1, {stage.general: 2, foreign: 1, 999: 1})
    change = stage.flush()
    assert change.handed_off == {}
    stage.settle_changes()
    assert reply.get(PATIENCE_S) == {"report": 1}
    assert stage.positions() == (0, 0)


def test_a_flush_that_was_refused_answers_its_reports_with_the_error(stage: Stage) -> None:
    stage.attach()
    stage.say("a")
    stage.pushed()
    reply = stage.report(1, {stage.general: 1})
    stage.flush()
    stage.ledger.expect(Submit).reply_to.set_exception(UnavailableError("no"))
    with pytest.raises(UnavailableError):
        reply.get(PATIENCE_S)


def test_detaching_flushes_reports_and_ends_waiting_pulls(stage: Stage) -> None:
    stage.attach()
    stage.say("a")
    stage.pushed()
    stage.report(1, {stage.general: 1})
    waiting = stage.pull(1, wait_ms=5000)
    stage.tell(Detached())
    with pytest.raises(StaleAttachmentError):
        waiting.get(PATIENCE_S)
    submit = stage.ledger.expect(Submit)
    assert isinstance(submit.change, MoveCursors)
    assert submit.change.handed_off == {stage.general: 1}
    assert stage.actor.actor_stopped.wait(PATIENCE_S)
    late = FutureReply()
    stage.tell(Request(Send("general", "x", operation_id="k"), stage.attachment, late))
    with pytest.raises(UnavailableError):
        late.get(PATIENCE_S)


# --- attaching again ---


def test_what_was_handed_off_without_confirmation_comes_first_and_is_marked(stage: Stage) -> None:
    stage.attach()
    stage.say("a", "b", "c")
    stage.pushed()
    stage.report(1, {stage.general: 1})
    stage.report(2, {stage.general: 2})
    stage.used(1)
    stage.tell(Detached())
    _commit_waiting(stage)
    assert stage.positions() == (2, 1)
    stage.attach()
    (params,) = stage.deliveries()
    delivery = params["delivery"]
    assert [position for position, _ in delivery["records"]] == [2, 3]
    assert delivery["redelivered_through"] == 2


def _commit_waiting(stage: Stage) -> None:
    """Commit what an attachment that has ended left with the ledger."""
    assert stage.actor.actor_stopped.wait(PATIENCE_S)
    for message in stage.ledger.received():
        if isinstance(message, Submit):
            stage.bus.done(message.change)
            stage.ledger.expect(Submit)


# --- subscriptions ---


def test_a_new_subscription_is_fed_from_its_position(stage: Stage) -> None:
    stage.attach()
    stage.operate("create_channel", name="work")
    stage.say("before", channel="work")
    answer = stage.operate("subscribe", channel="work")
    assert answer["resumed"] is False
    stage.say("after", channel="work")
    assert stage.pushed() == [2]
    assert stage.operate("subscribe", channel="work")["resumed"] is True
    assert stage.pushed() == []


def test_a_subscription_from_the_oldest_gets_what_is_retained(stage: Stage) -> None:
    stage.attach()
    stage.operate("create_channel", name="work")
    stage.say("a", "b", channel="work")
    stage.operate("subscribe", channel="work", **{"from": "oldest"})
    assert stage.pushed() == [1, 2]


def test_a_closed_subscription_is_no_longer_fed_and_its_late_report_moves_nothing(
    stage: Stage,
) -> None:
    stage.attach()
    stage.say("a")
    stage.pushed()
    old = stage.general
    stage.report(1, {old: 1})
    stage.operate("unsubscribe", channel="general")
    stage.operate("subscribe", channel="general")
    assert stage.general != old
    stage.say("b")
    assert stage.pushed() == [2]
    late = stage.report(2, {old: 2})
    assert stage.flush().handed_off == {}
    stage.settle_changes()
    assert late.get(PATIENCE_S) == {"report": 2}
    assert stage.positions()[0] == 1  # where the new subscription began


def test_an_expired_subscription_is_told_and_no_longer_fed(stage: Stage) -> None:
    stage.attach()
    general = stage.general
    stage.clock.advance(hours=73)
    done = stage.bus.done(PruneSlice("subscriptions", 10))
    (fact,) = [f for f in done.result.expired if f.session_id == stage.attachment.session_id]
    stage.tell(SubscriptionsChanged((fact,)))
    stage.settle()
    (told,) = stage.link.take("expired")
    assert told["subscription"] == general
    assert told["channel"] == "general"
    stage.tell(SubscriptionsChanged((fact,)))  # heard a second time: told once
    stage.settle()
    assert stage.link.take("expired") == []
    stage.say("a")
    assert stage.pushed() == []
    stage.report(1, {}, expired=(general,))
    stage.used(1)
    change = stage.flush()
    assert change.expiry_confirmed == (general,)
    stage.settle_changes()
    assert stage.rows() == ()


# --- recovery ---


def test_after_a_recovery_all_that_is_not_handed_off_is_sent_again_within_a_full_window(
    stage: Stage,
) -> None:
    stage.attach(window=(4, MIB))
    stage.say(*"abcdef")
    assert stage.pushed() == [1, 2, 3, 4]
    stage.report(1, {stage.general: 2})
    stage.flush()
    stage.settle_changes()
    unflushed = stage.report(2, {stage.general: 3})
    stage.tell(ReadinessChanged("recovering", RecoveryEpoch(2), 100))
    assert unflushed.get(PATIENCE_S) == {"report": 2, "stale": True}
    stage.grant(4)  # of the old epoch's queue; the window is full anyway
    assert stage.pushed() == []
    stage.tell(ReadinessChanged("ready", RecoveryEpoch(2), 100))
    deliveries = stage.deliveries()
    again = [position for p in deliveries for position, _ in p["delivery"]["records"]]
    assert again == [3, 4, 5, 6]
    assert {params["epoch"] for params in deliveries} == {2}
    assert stage.actor.stale_reports == 1


def test_readiness_without_a_new_epoch_sends_nothing_twice(stage: Stage) -> None:
    stage.attach()
    stage.say("a")
    assert stage.pushed() == [1]
    stage.tell(ReadinessChanged("ready", RecoveryEpoch(1), 0))
    stage.settle()
    assert stage.pushed() == []


# --- gaps ---


def prune(stage: Stage, hours: float) -> None:
    stage.clock.advance(hours=hours)
    stage.project(stage.bus.done(PruneSlice("messages_by_age", 500)))


def test_a_gap_is_exact_and_delivery_goes_on_behind_it(stage: Stage) -> None:
    stage.attach(window=(2, MIB))
    stage.say(*"abcdef")
    assert stage.pushed() == [1, 2]
    prune(stage, 169)
    stage.say("g", "h")
    stage.grant(2)
    deliveries = [params["delivery"] for params in stage.deliveries()]
    gaps = [gap for delivery in deliveries for gap in delivery.get("gaps", [])]
    assert gaps == [[3, 6, "age"]]
    assert [position for d in deliveries for position, _ in d["records"]] == [7, 8]
    assert deliveries[0]["oldest_retained"] == 7
    stage.grant(2)
    stage.say("i")
    assert [params["delivery"].get("gaps") for params in stage.deliveries()] == [None]


def test_a_gap_with_nothing_behind_it_is_told_alone_once(stage: Stage) -> None:
    stage.attach(window=(1, MIB))
    stage.say("a", "b", "c")
    assert stage.pushed() == [1]
    prune(stage, 169)
    stage.grant(1)
    (params,) = stage.deliveries()
    assert params["delivery"]["records"] == []
    assert params["delivery"]["gaps"] == [[2, 3, "age"]]
    assert params["delivery"]["through"] == 3
    stage.grant(1)
    stage.wake(1, 3)
    assert stage.deliveries() == []


def test_a_pull_tells_a_gap_as_well(stage: Stage) -> None:
    stage.attach(window=(1, MIB))
    stage.say("a", "b", "c")
    prune(stage, 169)
    stage.say("d")
    (delivery,) = stage.pull(1).get(PATIENCE_S)["deliveries"]
    assert delivery["gaps"] == [[2, 3, "age"]]
    assert delivery["oldest_retained"] == 4


def test_what_redis_still_shows_is_delivered_and_in_no_gap(stage: Stage) -> None:
    """The ledger has removed more than the projector has forgotten by now."""
    stage.attach(window=(2, MIB))
    stage.say("a", "b", "c")
    assert stage.pushed() == [1, 2]
    prune(stage, 169)
    stage.say("d", "e")
    stage.clock.advance(hours=169)
    late = stage.bus.done(PruneSlice("messages_by_age", 500))
    stage.grant(2)
    (params,) = stage.deliveries()
    assert params["delivery"]["gaps"] == [[3, 3, "age"]]
    assert [position for position, _ in params["delivery"]["records"]] == [4, 5]
    stage.project(late)
    stage.say("f")
    stage.grant(2)
    (params,) = stage.deliveries()
    assert "gaps" not in params["delivery"]
    assert [position for position, _ in params["delivery"]["records"]] == [6]


@pytest.mark.parametrize(
    ("room", "first", "then"),
    [
        (1, ([1], None), ([5], [[2, 4, "age"]])),
        (2, ([1, 2], [[3, 4, "age"]]), ([5], None)),
        (3, ([1, 2, 5], [[3, 4, "age"]]), None),
    ],
)
def test_a_removal_in_the_middle_of_a_read_is_told_once_at_its_place(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, room: int, first: Any, then: Any
) -> None:
    """Wherever the window ends. Sequences count from the first that was not sent."""
    stage.attach(window=(room, MIB))
    stage.say(*"x" * room)
    assert len(stage.pushed()) == room
    stage.say(*"abcd")
    assert stage.pushed() == []
    monkeypatch.setattr(streams, "READ_ENTRIES", 2)
    fetch, trips = StreamReader._fetch, []

    def remove_after_the_first_trip(*arguments: Any) -> list[StreamSlice]:
        trips.append(arguments)
        if len(trips) == 2:
            stage.project(removal)
            stage.project(later)
        return fetch(*arguments)

    stage.clock.advance(hours=169)
    removal = stage.bus.done(PruneSlice("messages_by_age", 500))
    later = stage.bus.done(stage.ada.send("f"))
    monkeypatch.setattr(StreamReader, "_fetch", remove_after_the_first_trip)
    told = []
    for _ in range(2):
        stage.grant(room)
        for delivery in (params["delivery"] for params in stage.deliveries()):
            gaps = [[a - room, b - room, cause] for a, b, cause in delivery.get("gaps", [])]
            told.append(([at - room for at, _ in delivery["records"]], gaps or None))
    assert told == [one for one in (first, then) if one is not None]


@pytest.mark.parametrize(
    ("direction", "pages"),
    [
        ({"after": 0}, [([], [(1, 2)]), ([], [(3, 3)]), ([5, 6], [(4, 4)])]),
        ({"before": 100}, [([5, 6], [(4, 4)]), ([], [(3, 3)]), ([], [(1, 2)])]),
    ],
)
def test_more_gaps_than_a_page_of_history_may_have_come_in_the_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, direction: dict[str, int], pages: Any
) -> None:
    monkeypatch.setattr(queries, "GAPS_PER_RESULT", 1)
    stage.attach()
    stage.say(*"abcdef")
    stage.clock.advance(hours=169)
    for what, rows in (("age", 2), ("capacity", 1), ("age", 1)):
        removal: Any = f"messages_by_{what}"
        stage.project(stage.bus.done(PruneSlice(removal, rows, free_bytes=MIB)))
    (way,) = direction
    told, more = [], True
    while more:
        page = decode_trusted(encode(stage.operate("history", channel="general", **direction)))
        sequences = [message["sequence"] for message in page["messages"]]
        gaps = [(gap["from_sequence"], gap["to_sequence"]) for gap in page["gaps"]]
        told.append((sequences, gaps))
        covered = [*sequences, *(end for gap in gaps for end in gap)]
        direction[way] = max(covered) if way == "after" else min(covered)
        more = page["more"]
    assert told == pages


def test_removals_before_the_subscription_began_are_no_gap(stage: Stage) -> None:
    stage.attach()
    stage.operate("create_channel", name="work")
    stage.say("a", "b", channel="work")
    prune(stage, 169)
    assert stage.operate("subscribe", channel="work", **{"from": "oldest"})["from_sequence"] == 3
    stage.say("c", channel="work")
    (params,) = [p for p in stage.deliveries() if p["delivery"]["channel"] == "work"]
    assert "gaps" not in params["delivery"]


# --- a projection that does not answer ---


def test_a_dead_redis_is_reported_and_read_again_later(tmp_path: Path) -> None:
    with private_redis() as redis, stage_on(tmp_path, redis) as stage:
        stage.attach()
        redis.server.stop(grace_s=0)
        stage.wake(1, 1)
        stage.projector.expect(CheckRedis)
        assert stage.pushed() == []
        with pytest.raises(UnavailableError):
            stage.pull(0).get(PATIENCE_S)
