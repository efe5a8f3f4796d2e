"""A channel and its directory: heads, watchers, replacement after a failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.base import Address
from actors.channel import ChannelActor, ChannelDirectory
from actors.messages import ChannelMessage, Projected, Unwatch, Wake, Watch
from actors.pool import Dispatcher
from agentbus.ids import ChannelId, Sequence
from tests.eventually import PATIENCE_S
from tests.probe import Probe, settle

CHANNEL = ChannelId(7)


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(threads=2)
    yield dispatcher
    assert dispatcher.stop(PATIENCE_S)


@pytest.fixture
def channel(dispatcher: Dispatcher) -> Address[ChannelMessage]:
    return dispatcher.start(ChannelActor(CHANNEL))


@pytest.fixture
def watcher() -> Iterator[Probe]:
    with Probe() as probe:
        yield probe


def wakes(watcher: Probe, channel: Address[ChannelMessage]) -> list[int]:
    settle(channel)
    return [message.head for message in watcher.received() if isinstance(message, Wake)]


def test_every_new_head_wakes_every_watcher(
    channel: Address[ChannelMessage], watcher: Probe
) -> None:
    with Probe() as other:
        for probe in (watcher, other):
            channel.tell(Watch(probe.address, Sequence(0)))
        channel.tell(Projected(Sequence(3)))
        channel.tell(Projected(Sequence(8)))
        for probe in (watcher, other):
            assert probe.expect(Wake) == Wake(CHANNEL, Sequence(3))
            assert probe.expect(Wake) == Wake(CHANNEL, Sequence(8))


def test_a_watcher_that_is_behind_is_woken_at_once_and_one_that_is_not_is_left_alone(
    channel: Address[ChannelMessage], watcher: Probe
) -> None:
    channel.tell(Projected(Sequence(5)))
    channel.tell(Watch(watcher.address, Sequence(5)))
    assert wakes(watcher, channel) == []
    channel.tell(Watch(watcher.address, Sequence(4)))
    assert wakes(watcher, channel) == [5]


def test_the_head_never_goes_back(channel: Address[ChannelMessage], watcher: Probe) -> None:
    channel.tell(Watch(watcher.address, Sequence(0)))
    for head in (5, 3, 5, 6):
        channel.tell(Projected(Sequence(head)))
    assert wakes(watcher, channel) == [5, 6]


def test_watching_twice_is_watching_once(channel: Address[ChannelMessage], watcher: Probe) -> None:
    for _ in range(2):
        channel.tell(Watch(watcher.address, Sequence(0)))
    channel.tell(Projected(Sequence(1)))
    assert wakes(watcher, channel) == [1]


def test_who_no_longer_watches_is_not_woken(
    channel: Address[ChannelMessage], watcher: Probe
) -> None:
    channel.tell(Watch(watcher.address, Sequence(0)))
    channel.tell(Unwatch(watcher.address))
    channel.tell(Unwatch(watcher.address))  # of a stranger: nothing happens
    channel.tell(Projected(Sequence(1)))
    assert wakes(watcher, channel) == []


def test_a_watcher_that_died_does_not_hurt_the_others(
    channel: Address[ChannelMessage], watcher: Probe
) -> None:
    with Probe() as dead:
        channel.tell(Watch(dead.address, Sequence(0)))
    channel.tell(Watch(watcher.address, Sequence(0)))
    channel.tell(Projected(Sequence(1)))
    assert watcher.expect(Wake).head == 1
    settle(channel)
    assert dead.address.statistics().dead_tells == 0  # it was forgotten, not told


def test_the_directory_knows_one_actor_per_channel(dispatcher: Dispatcher) -> None:
    directory = ChannelDirectory(dispatcher, lambda name, error: None)
    first = directory.address(ChannelId(1))
    assert directory.address(ChannelId(1)) == first
    assert directory.address(ChannelId(2)) != first
    assert len(directory.addresses()) == 2


def test_a_channel_that_failed_is_replaced_at_the_next_look(dispatcher: Dispatcher) -> None:
    crashed: list[str] = []
    directory = ChannelDirectory(dispatcher, lambda name, error: crashed.append(name))
    first = directory.address(CHANNEL)
    first.tell("nonsense")  # type: ignore[arg-type]
    first.ref.actor_stopped.wait(PATIENCE_S)
    second = directory.address(CHANNEL)
    assert second != first
    assert second.alive
    settle(second)
    assert crashed == ["ChannelActor-7"]
