"""What an attachment makes of a projection that fails in the middle, and of a very large window."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from actors import feeds
from actors.attachment import READ_RETRY_S
from actors.base import FutureReply
from actors.messages import CheckRedis, Detached, PullAsked, SubscriptionsChanged
from agentbus.encoding import encode
from agentbus.errors import UnavailableError
from agentbus.ids import ChannelId, Sequence
from agentbus.limits import FRAME_BYTES, KIB, MIB
from agentbus.projection import keys
from agentbus.projection.errors import ProjectionError
from agentbus.projection.streams import StreamReader, StreamSlice
from agentbus.protocol.session import Pull
from agentbus.store.changes import SubscriptionExpired, SubscriptionOpened
from tests.actors.stage import Stage
from tests.eventually import PATIENCE_S, eventually


def test_a_pull_that_fails_in_its_second_channel_leaves_no_hole_in_the_first(stage: Stage) -> None:
    stage.attach(window=(1, MIB))
    stage.operate("create_channel", name="work")
    stage.operate("subscribe", channel="work")
    stage.say("a", "b", "c")
    assert stage.pushed() == [1]
    work = next(row.channel_id for row in stage.rows() if row.channel == "work")
    stage.redis.client.set(keys.stream(work), "no stream, so that reading it fails")
    reply = FutureReply()
    after = {stage.general: Sequence(1), stage.subscription("work"): Sequence(0)}
    stage.tell(PullAsked(Pull(stage.attachment, 1, after, 100, MIB), reply))
    with pytest.raises(UnavailableError):
        reply.get(PATIENCE_S)
    stage.redis.client.delete(keys.stream(work))
    stage.clock.advance(READ_RETRY_S)
    stage.grant(1)
    assert eventually(stage.pushed) == [2]
    stage.grant(1)
    assert stage.pushed() == [3]


def attach_behind(stage: Stage, window: tuple[int, int], *contents: str) -> None:
    """Attach with these messages waiting, so that they are read at once."""
    stage.attach()
    stage.tell(Detached())
    eventually(lambda: not stage.address.alive, what="the first attachment gone")
    stage.say(*contents)
    stage.attach(window)


def test_a_push_that_fails_halfway_gives_its_room_in_the_window_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failing = StreamReader.read, threading.Event()

    def fail_at_ten(
        reader: StreamReader, channel: ChannelId, after: Sequence, count: int, max_bytes: int
    ) -> StreamSlice:
        if failing.is_set() and after == 10:
            raise ProjectionError("Redis did not answer")
        return read(reader, channel, after, count, max_bytes)

    monkeypatch.setattr(StreamReader, "read", fail_at_ten)
    monkeypatch.setattr(feeds, "READ_ENTRIES", 10)
    failing.set()
    attach_behind(stage, (12, MIB), *("x" for _ in range(15)))
    stage.projector.expect(CheckRedis)
    assert stage.pushed() == []
    failing.clear()
    stage.clock.advance(READ_RETRY_S)
    assert eventually(stage.pushed) == list(range(1, 13))


def test_a_push_stays_below_the_frame_limit_in_a_window_larger_than_a_frame(
    stage: Stage,
) -> None:
    attach_behind(stage, (4096, 32 * MIB), *("x" * 60 * KIB for _ in range(150)))
    sizes = [len(encode(params)) for params in stage.deliveries()]
    assert sum(sizes) > FRAME_BYTES
    assert max(sizes) < FRAME_BYTES


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_an_attachment_closes_its_connections_to_redis(
    stage: Stage, fails: bool
) -> None:
    def connections() -> int:
        return len(stage.redis.client.client_list())

    before = connections()
    stage.attach()
    stage.say("a")
    assert stage.pushed() == [1]
    assert connections() > before
    stage.tell("nonsense" if fails else Detached())  # type: ignore[arg-type]
    eventually(lambda: connections() == before, what="its connections closed")


def test_a_subscription_made_before_the_end_of_the_old_one_was_told_misses_no_wake_up(
    stage: Stage,
) -> None:
    bound = stage.attach()
    old = bound.subscriptions[0]
    stage.say("a")
    assert stage.pushed() == [1]
    one = Sequence(1)
    new = replace(old, subscription_id=old.subscription_id + 1, handed_off=one, confirmed=one)
    session_id = bound.session_id
    stage.tell(SubscriptionsChanged((SubscriptionOpened(session_id, new),)))
    stage.settle()
    stage.say("b")
    stage.deliveries()  # for the old one
    expired = SubscriptionExpired(
        session_id, old.subscription_id, old.channel_id, old.channel, expired_at_us=1
    )
    stage.tell(SubscriptionsChanged((expired,)))
    (params,) = stage.deliveries()
    assert params["delivery"]["subscription"] == new.subscription_id
    assert [position for position, _ in params["delivery"]["records"]] == [2]
