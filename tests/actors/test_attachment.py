"""What an attachment gives its client: pushes within the window, pulls, operations."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from actors.base import FutureReply
from actors.messages import (
    DirectoryAsked,
    PullAsked,
    RateRefunded,
    ReadinessChanged,
    Request,
    Submit,
)
from agentbus.encoding import decode_strict, encode
from agentbus.errors import (
    DiscoveryDisabledError,
    NotFoundError,
    TooLargeError,
    UnavailableError,
    ValidationError,
)
from agentbus.ids import RecoveryEpoch, Sequence
from agentbus.limits import MIB
from agentbus.protocol.operations import WhoAmI
from agentbus.protocol.session import Pull
from agentbus.store.changes import SendMessage
from tests.actors.stage import Stage, stage_on
from tests.eventually import PATIENCE_S, eventually
from tests.probe import settle
from tests.redis_fixture import PrivateRedis


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
    stage.attach(window=(1, MIB))
    stage.operate("create_channel", name="work")
    stage.operate("subscribe", channel="work")
    stage.say("a", "b")
    assert stage.pushed() == [1]
    stage.say("c", "d", channel="work")
    for expected in (3, 2, 4):
        assert stage.pushed() == []
        stage.grant(1)
        assert stage.pushed() == [expected]


def test_a_refused_request_does_not_hold_up_what_was_to_be_pushed(stage: Stage) -> None:
    stage.attach()
    stage.say("a")
    assert stage.pushed() == [1]
    entered, leave = threading.Event(), threading.Event()
    stage.tell(Request(WhoAmI(), stage.attachment, Held(entered, leave)))
    assert entered.wait(PATIENCE_S)
    stage.say("b")  # the wake-up and the refused request wait together
    settle(*stage.channels.addresses())
    refused = stage.ask("history", channel="nowhere")
    leave.set()
    with pytest.raises(NotFoundError):
        refused.get(PATIENCE_S)
    eventually(lambda: stage.link.frames, what="a delivery without any further message")


class Held:
    """A reply that keeps the answering actor busy until the test lets it go."""

    def __init__(self, entered: threading.Event, leave: threading.Event) -> None:
        self._entered, self._leave = entered, leave

    def set(self, value: Any) -> None:
        self._entered.set()
        assert self._leave.wait(PATIENCE_S)

    def set_exception(self, error: BaseException) -> None:
        raise AssertionError(error)


# --- pulling ---


def test_a_pull_reads_from_where_it_says_without_using_the_window(stage: Stage) -> None:
    stage.attach(window=(1, MIB))
    stage.say(*"abcd")
    assert stage.pushed() == [1]
    answer = stage.pull(1).get(PATIENCE_S)
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
    assert records(stage.pull(0, count=2).get(PATIENCE_S)) == [1, 2]
    assert records(stage.pull(0, max_bytes=700).get(PATIENCE_S)) == [1]
    assert records(stage.pull(1, max_bytes=10).get(PATIENCE_S)) == [2]


def test_a_pull_may_include_own_messages(stage: Stage) -> None:
    stage.attach()
    stage.say("theirs")
    stage.say("mine", speaker=stage.sam)
    assert records(stage.pull(0).get(PATIENCE_S)) == [1]
    assert records(stage.pull(0, include_own=True).get(PATIENCE_S)) == [1, 2]


def test_a_pull_without_wait_answers_at_once_with_nothing(stage: Stage) -> None:
    stage.attach()
    assert stage.pull(0).get(PATIENCE_S) == {"epoch": 1, "deliveries": []}


def test_a_waiting_pull_answers_when_something_comes(stage: Stage) -> None:
    stage.attach()
    reply = stage.pull(0, wait_ms=5000)
    stage.settle()
    stage.say("mine", speaker=stage.sam)  # an own message is nothing to answer with
    stage.settle()
    stage.say("theirs")
    assert records(reply.get(PATIENCE_S)) == [2]


def test_a_waiting_pull_answers_with_nothing_when_its_time_is_over(stage: Stage) -> None:
    stage.attach()
    reply = stage.pull(0, wait_ms=5000)
    stage.settle()
    stage.clock.advance(4.999)
    stage.settle()
    assert stage.timer.statistics().delivered == 0
    stage.clock.advance(0.001)
    assert reply.get(PATIENCE_S) == {"epoch": 1, "deliveries": []}


def test_a_cancelled_pull_is_answered_once(stage: Stage) -> None:
    stage.attach()
    reply = stage.pull(0, wait_ms=5000)
    stage.cancel_pull()
    assert reply.get(PATIENCE_S)["deliveries"] == []
    stage.cancel_pull()
    stage.clock.advance(6)
    stage.settle()
    assert stage.timer.statistics().pending == 0


def test_a_pull_whose_number_is_used_again_is_answered_as_if_cancelled(stage: Stage) -> None:
    stage.attach()
    replies = [FutureReply(), FutureReply()]
    for reply in replies:
        pull = Pull(stage.attachment, 7, {stage.general: Sequence(0)}, 100, MIB, wait_ms=5000)
        stage.tell(PullAsked(pull, reply))
    assert replies[0].get(PATIENCE_S)["deliveries"] == []
    stage.say("a")
    assert records(replies[1].get(PATIENCE_S)) == [1]


def test_a_position_that_only_a_pull_names_moves_neither_pushes_nor_cursors(stage: Stage) -> None:
    stage.attach()
    beyond = 2**63 - 1
    assert records(stage.pull(beyond).get(PATIENCE_S)) == []
    stage.report(1, {stage.general: beyond})
    assert stage.flush().handed_off == {}
    stage.say("a")
    assert stage.pushed() == [1]


def test_a_pull_of_a_subscription_that_is_gone_answers_nothing(stage: Stage) -> None:
    stage.attach()
    reply = stage.pull(0)
    reply.get(PATIENCE_S)
    general = stage.general
    stage.operate("unsubscribe", channel="general")
    assert general not in {row.subscription_id for row in stage.rows()}
    stage.say("a")
    assert stage.pushed() == []


def test_pulls_wait_no_longer_when_the_bus_is_not_ready(stage: Stage) -> None:
    stage.attach()
    reply = stage.pull(0, wait_ms=5000)
    stage.tell(ReadinessChanged("recovering", RecoveryEpoch(2), 321))
    with pytest.raises(UnavailableError) as refused:
        reply.get(PATIENCE_S)
    assert refused.value.retry_after_ms == 321
    with pytest.raises(UnavailableError):
        stage.pull(0).get(PATIENCE_S)


# --- operations ---


def test_operations_are_refused_while_the_bus_is_not_ready(stage: Stage) -> None:
    stage.attach(readiness=ReadinessChanged("recovering", RecoveryEpoch(1), 50))
    for name, arguments in [
        ("send", {"channel": "general", "content": "x", "operation_id": "k"}),
        ("whoami", {}),
        ("history", {"channel": "general"}),
    ]:
        with pytest.raises(UnavailableError, match="recovering"):
            stage.ask(name, **arguments).get(PATIENCE_S)
    stage.ledger.expect_nothing_of(Submit, through=(stage.address,))


def test_a_send_without_an_operation_id_is_refused_on_the_wire(stage: Stage) -> None:
    stage.attach()
    with pytest.raises(ValidationError, match="operation_id"):
        stage.ask("send", channel="general", content="x").get(PATIENCE_S)


def test_a_message_over_the_limit_never_reaches_the_ledger(
    tmp_path: Path, redis: PrivateRedis
) -> None:
    with stage_on(tmp_path, redis, max_message_kib=1) as stage:
        stage.attach()
        refused = stage.ask("send", channel="general", content="x" * 1100, operation_id="k")
        with pytest.raises(TooLargeError, match="max_message_kib"):
            refused.get(PATIENCE_S)
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
            stage.ask("discover").get(PATIENCE_S)
