"""One live attachment: window, pulls, operations, reports, subscriptions, recovery."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from actors.base import FutureReply
from actors.messages import (
    CheckRedis,
    Detached,
    DirectoryAsked,
    RateRefunded,
    ReadinessChanged,
    Request,
    Submit,
    SubscriptionsChanged,
)
from agentbus.encoding import decode_strict, encode
from agentbus.errors import (
    DiscoveryDisabledError,
    NotFoundError,
    StaleAttachmentError,
    TooLargeError,
    UnavailableError,
    ValidationError,
)
from agentbus.ids import RecoveryEpoch, Sequence
from agentbus.limits import HANDOFF_FLUSH_REPORTS, MIB
from agentbus.protocol.operations import Send
from agentbus.store.changes import MoveCursors, PruneSlice, SendMessage
from tests.actors.stage import Stage, stage_on
from tests.redis_fixture import PrivateRedis, private_redis


@pytest.fixture(scope="module")
def redis() -> Iterator[PrivateRedis]:
    with private_redis() as running:
        yield running


@pytest.fixture
def stage(tmp_path: Path, redis: PrivateRedis) -> Iterator[Stage]:
    with stage_on(tmp_path, redis) as stage:
        yield stage


def only_change(stage: Stage) -> Any:
    """The one change that the attachment has submitted; it stays with the ledger."""
    stage.settle()
    (submit,) = [m for m in stage.ledger.received() if isinstance(m, Submit)]
    return submit.change


def records(answer: dict[str, Any]) -> list[int]:
    sent = decode_strict(encode(answer))  # records are embedded as encoded text
    return [position for d in sent["deliveries"] for position, _ in d["records"]]


# --- pushing ---


def test_what_is_committed_for_a_subscribed_channel_is_pushed_in_order(stage: Stage) -> None:
    stage.attach()
    last = stage.say("a", "b", "c")
    deliveries = [params["delivery"] for params in stage.deliveries()]
    contents = [record["content"] for d in deliveries for _, record in d["records"]]
    assert contents == ["a", "b", "c"]
    assert deliveries[-1]["through"] == last
    for earlier, later in pairwise(deliveries):
        assert later["after"] == earlier["through"]


def test_a_delivery_names_attachment_epoch_and_subscription(stage: Stage) -> None:
    bound = stage.attach()
    stage.say("a")
    (params,) = stage.deliveries()
    assert params["session_id"] == bound.session_id
    assert params["generation"] == bound.generation
    assert params["epoch"] == 1
    assert params["delivery"]["subscription"] == stage.general
    assert params["delivery"]["channel"] == "general"
    assert params["delivery"]["redelivered_through"] == bound.subscriptions[0].handed_off


def test_the_window_is_never_exceeded_in_messages(stage: Stage) -> None:
    stage.attach(window=(3, MIB))
    stage.say(*"abcdefg")
    assert stage.pushed() == [1, 2, 3]
    stage.grant(2)
    assert stage.pushed() == [4, 5]
    stage.grant(100)  # never beyond the window
    assert stage.pushed() == [6, 7]
    stage.say(*"hijkl")
    assert stage.pushed() == [8]


def test_the_window_is_never_exceeded_in_bytes_but_one_large_message_always_goes(
    stage: Stage,
) -> None:
    stage.attach(window=(10, 3000))
    stage.say("x" * 1500, "y" * 1500, "z" * 5000, "w")
    assert stage.pushed() == [1]
    stage.grant(1, 3000)
    assert stage.pushed() == [2]
    stage.grant(1, 3000)
    assert stage.pushed() == [3]  # larger than the window, alone
    stage.grant(0, 100)
    assert stage.pushed() == []
    stage.grant(1, 5500)
    assert stage.pushed() == [4]


def test_own_messages_are_left_out_and_passed_over(stage: Stage) -> None:
    stage.attach(window=(1, MIB))
    stage.say("mine", speaker=stage.sam)
    stage.say("theirs")
    stage.say("mine again", speaker=stage.sam)
    assert stage.pushed() == [2]
    stage.grant(1)
    stage.say("more")
    assert stage.pushed() == [4]


def test_channels_take_turns(stage: Stage) -> None:
    stage.attach(window=(4, MIB))
    stage.operate("create_channel", name="work")
    stage.operate("subscribe", channel="work")
    with_room = stage.pushed()
    assert with_room == []
    stage.say(*"abcd")  # takes the whole window
    stage.say(*"efgh", channel="work")
    assert len(stage.pushed()) == 4
    stage.grant(4)
    pushed = stage.pushed()
    assert len(pushed) == 4
    assert pushed == sorted(pushed)


# --- pulling ---


def test_a_pull_reads_from_where_it_says_without_using_the_window(stage: Stage) -> None:
    stage.attach(window=(1, MIB))
    stage.say(*"abcd")
    assert stage.pushed() == [1]
    answer = stage.pull(1).get(2.0)
    assert answer["epoch"] == 1
    assert records(answer) == [2, 3, 4]
    assert stage.pushed() == []
    stage.grant(1)
    stage.say("e")
    assert stage.pushed() == [5]


def test_a_pull_takes_no_more_than_it_asks_for_but_at_least_one(stage: Stage) -> None:
    stage.attach(window=(1, 1))
    stage.say("a" * 100, "b" * 3000, "c" * 100)
    stage.pushed()
    assert records(stage.pull(0, count=2).get(2.0)) == [1, 2]
    assert records(stage.pull(0, max_bytes=700).get(2.0)) == [1]
    assert records(stage.pull(1, max_bytes=10).get(2.0)) == [2]


def test_a_pull_may_include_own_messages(stage: Stage) -> None:
    stage.attach()
    stage.say("theirs")
    stage.say("mine", speaker=stage.sam)
    assert records(stage.pull(0).get(2.0)) == [1]
    assert records(stage.pull(0, include_own=True).get(2.0)) == [1, 2]


def test_a_pull_without_wait_answers_at_once_with_nothing(stage: Stage) -> None:
    stage.attach()
    assert stage.pull(0).get(2.0) == {"epoch": 1, "deliveries": []}


def test_a_waiting_pull_answers_when_something_comes(stage: Stage) -> None:
    stage.attach()
    reply = stage.pull(0, wait_ms=5000)
    stage.settle()
    stage.say("mine", speaker=stage.sam)  # an own message is nothing to answer with
    stage.settle()
    stage.say("theirs")
    assert records(reply.get(2.0)) == [2]


def test_a_waiting_pull_answers_with_nothing_when_its_time_is_over(stage: Stage) -> None:
    stage.attach()
    reply = stage.pull(0, wait_ms=5000)
    stage.settle()
    stage.clock.advance(4.999)
    stage.settle()
    assert stage.timer.statistics().delivered == 0
    stage.clock.advance(0.001)
    assert reply.get(2.0) == {"epoch": 1, "deliveries": []}


def test_a_cancelled_pull_is_answered_once(stage: Stage) -> None:
    stage.attach()
    reply = stage.pull(0, wait_ms=5000)
    stage.cancel_pull()
    assert reply.get(2.0)["deliveries"] == []
    stage.cancel_pull()
    stage.clock.advance(6)
    stage.settle()
    assert stage.timer.statistics().pending == 0


def test_a_pull_of_a_subscription_that_is_gone_answers_nothing(stage: Stage) -> None:
    stage.attach()
    reply = stage.pull(0)
    reply.get(2.0)
    general = stage.general
    stage.operate("unsubscribe", channel="general")
    assert general not in {row.subscription_id for row in _rows(stage)}
    stage.say("a")
    assert stage.pushed() == []


def _rows(stage: Stage) -> Any:
    return stage.bus.reader().subscriptions(stage.attachment.session_id)


def test_pulls_wait_no_longer_when_the_bus_is_not_ready(stage: Stage) -> None:
    stage.attach()
    reply = stage.pull(0, wait_ms=5000)
    stage.tell(ReadinessChanged("recovering", RecoveryEpoch(2), 321))
    with pytest.raises(UnavailableError) as refused:
        reply.get(2.0)
    assert refused.value.retry_after_ms == 321
    with pytest.raises(UnavailableError):
        stage.pull(0).get(2.0)


# --- operations ---


def test_operations_are_refused_while_the_bus_is_not_ready(stage: Stage) -> None:
    stage.attach(readiness=ReadinessChanged("recovering", RecoveryEpoch(1), 50))
    for name, arguments in [
        ("send", {"channel": "general", "content": "x", "operation_id": "k"}),
        ("whoami", {}),
        ("history", {"channel": "general"}),
    ]:
        with pytest.raises(UnavailableError, match="recovering"):
            stage.ask(name, **arguments).get(2.0)
    stage.ledger.expect_nothing_of(Submit, through=(stage.address,))


def test_a_send_without_an_operation_id_is_refused_on_the_wire(stage: Stage) -> None:
    stage.attach()
    with pytest.raises(ValidationError, match="operation_id"):
        stage.ask("send", channel="general", content="x").get(2.0)


def test_a_message_over_the_limit_never_reaches_the_ledger(
    tmp_path: Path, redis: PrivateRedis
) -> None:
    with stage_on(tmp_path, redis, max_message_kib=1) as stage:
        stage.attach()
        with pytest.raises(TooLargeError, match="max_message_kib"):
            stage.ask("send", channel="general", content="x" * 1100, operation_id="k").get(2.0)
        stage.ledger.expect_nothing_of(Submit, through=(stage.address,))


def test_an_empty_rate_goes_to_the_ledger_marked_so(tmp_path: Path, redis: PrivateRedis) -> None:
    with stage_on(tmp_path, redis, send_messages_per_second=2) as stage:
        stage.attach()
        for number in range(3):
            stage.ask("send", channel="general", content="x", operation_id=f"k{number}")
        stage.settle()
        sends = [stage.ledger.expect(Submit) for _ in range(3)]
        changes = [submit.change for submit in sends]
        assert all(isinstance(change, SendMessage) for change in changes)
        assert [change.rate_ok for change in changes] == [True, True, False]  # type: ignore[union-attr]
        assert changes[2].retry_after_ms == 500  # type: ignore[union-attr]
        assert [submit.reserved_bytes > 0 for submit in sends] == [True, True, False]

        stage.tell(RateRefunded(sends[0].reserved_bytes))
        stage.ask("send", channel="general", content="x", operation_id="k4")
        stage.settle()
        again = stage.ledger.expect(Submit).change
        assert isinstance(again, SendMessage)
        assert again.rate_ok
        stage.clock.advance(0.5)
        stage.ask("send", channel="general", content="x", operation_id="k5")
        stage.settle()
        later = stage.ledger.expect(Submit).change
        assert isinstance(later, SendMessage)
        assert later.rate_ok


def test_the_daemon_binds_the_sender(stage: Stage) -> None:
    bound = stage.attach()
    stage.operate("send", channel="general", content="x", operation_id="k")
    (message,) = stage.bus.reader().scan(Sequence(0), 1)
    sender = decode_strict(message.envelope)["sender"]
    assert sender["session_id"] == bound.session_id
    assert sender["display_name"] == "Sam"


def test_whoami_tells_identity_and_lag(stage: Stage) -> None:
    bound = stage.attach()
    stage.say("a", "b")
    answer = stage.operate("whoami")
    assert answer["session_id"] == bound.session_id
    assert answer["display_name"] == "Sam"
    assert answer["identity_source"] == "argument"
    assert answer["subscriptions"] == [{"channel": "general", "lag": 2, "last_handed_off": 0}]


def test_history_of_an_unknown_channel_is_not_found(stage: Stage) -> None:
    stage.attach()
    with pytest.raises(NotFoundError, match="list_channels"):
        stage.operate("history", channel="nowhere")


def test_discover_asks_the_registrar_unless_it_is_switched_off(
    tmp_path: Path, redis: PrivateRedis
) -> None:
    (tmp_path / "on").mkdir()
    with stage_on(tmp_path / "on", redis) as stage:
        stage.attach()
        stage.ask("discover", query="ada")
        assert stage.registrar.expect(DirectoryAsked).query == "ada"
    (tmp_path / "off").mkdir()
    with stage_on(tmp_path / "off", redis, discovery_enabled=False) as stage:
        stage.attach()
        with pytest.raises(DiscoveryDisabledError):
            stage.ask("discover").get(2.0)


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
    assert [reply.get(2.0) for reply in replies] == [{"report": n} for n in (1, 2, 3)]
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
    assert last.get(2.0) == {"report": HANDOFF_FLUSH_REPORTS}


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
    assert reply.get(2.0) == {"report": 1, "stale": True}
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
    assert reply.get(2.0) == {"report": 1}
    assert stage.positions() == (0, 0)


def test_a_flush_that_was_refused_answers_its_reports_with_the_error(stage: Stage) -> None:
    stage.attach()
    stage.say("a")
    stage.pushed()
    reply = stage.report(1, {stage.general: 1})
    stage.flush()
    stage.ledger.expect(Submit).reply_to.set_exception(UnavailableError("no"))
    with pytest.raises(UnavailableError):
        reply.get(2.0)


def test_detaching_flushes_reports_and_ends_waiting_pulls(stage: Stage) -> None:
    stage.attach()
    stage.say("a")
    stage.pushed()
    stage.report(1, {stage.general: 1})
    waiting = stage.pull(1, wait_ms=5000)
    stage.tell(Detached())
    with pytest.raises(StaleAttachmentError):
        waiting.get(2.0)
    submit = stage.ledger.expect(Submit)
    assert isinstance(submit.change, MoveCursors)
    assert submit.change.handed_off == {stage.general: 1}
    assert stage.actor.actor_stopped.wait(2.0)
    late = FutureReply()
    stage.tell(Request(Send("general", "x", operation_id="k"), stage.attachment, late))
    with pytest.raises(UnavailableError):
        late.get(2.0)


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
    assert stage.actor.actor_stopped.wait(2.0)
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
    assert late.get(2.0) == {"report": 2}
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
    assert _rows(stage) == ()


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
    assert unflushed.get(2.0) == {"report": 2, "stale": True}
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
    (delivery,) = stage.pull(1).get(2.0)["deliveries"]
    assert delivery["gaps"] == [[2, 3, "age"]]
    assert delivery["oldest_retained"] == 4


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
            stage.pull(0).get(5.0)
