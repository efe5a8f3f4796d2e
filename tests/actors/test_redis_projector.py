"""The projector with a real Redis that dies, hangs, comes back empty or is somebody else's."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import agentbus.projection.rebuild
from actors import redis_projector
from actors.base import Address, start_actor, stop_actor
from actors.channel import ChannelDirectory
from actors.cleanup_messages import CapacityReached, MeasureRedis, RedisMeasured, WatchCapacity
from actors.messages import (
    CatchUp,
    CheckRedis,
    Committed,
    ProjectionAdvanced,
    ProjectorMessage,
    StartRedis,
    Wake,
    Watch,
)
from actors.pool import Dispatcher
from actors.projections import PAGE_ROWS
from actors.redis_projector import RedisProjectorActor
from actors.supervisor_messages import (
    CatchUpFailed,
    CatchUpProgressed,
    CaughtUp,
    ProjectionLost,
    RedisRefused,
    RedisStarted,
)
from agentbus.ids import BusId, ChannelId, RecoveryEpoch, Sequence
from agentbus.projection import keys
from agentbus.projection.connection import connect
from agentbus.projection.errors import RedisUnusableError
from agentbus.projection.launching import RedisSettings
from agentbus.projection.rebuild import UpToDate, needs
from agentbus.projection.server import RedisServer
from agentbus.store.changes import Fact, MessageAppended, PruneSlice
from tests.eventually import PATIENCE_S, eventually
from tests.exhaustion import no_descriptor_left
from tests.probe import Probe
from tests.redis_fixture import private_redis, redis_settings
from tests.signals import freeze, kill
from tests.store.bus import Bus

GENERAL = ChannelId(1)


SIZE_BYTES = 500
"""Of what each `Committed` of these tests says that it holds."""


class Counted(Address[ProjectorMessage]):
    """Counts what the actor was told, and what of that it has handled.

    Its statistics do not tell: a message that it has just taken is in no mailbox any more, and it
    is not busy yet.
    """

    def __init__(self, actor: RedisProjectorActor) -> None:
        super().__init__(actor.address.name, actor.address.ref)
        self.told = self.handled = 0
        self._receive = actor.receive
        actor.receive = self._counted  # type: ignore[method-assign]

    def tell(self, message: ProjectorMessage) -> None:
        self.told += 1
        super().tell(message)

    def _counted(self, message: ProjectorMessage) -> None:
        try:
            self._receive(message)
        finally:
            self.handled += 1


class Projection:
    """A projector; the test plays the ledger and the supervisor."""

    def __init__(self, folder: Path, settings: RedisSettings) -> None:
        self.bus = Bus(folder)
        self.sam = self.bus.attach()
        self.settings = settings
        self.server = RedisServer(self.settings)
        self.supervisor, self.watcher, self.ledger = Probe(), Probe(), Probe()
        self.dispatcher = Dispatcher(threads=1)
        self.channels = ChannelDirectory(self.dispatcher, lambda name, error: None)
        self.actor = RedisProjectorActor(
            self.server, self.bus.reader, self.channels, self.supervisor.address
        )
        self.epoch = 0
        self.address = Counted(self.actor)
        start_actor(self.actor)
        self.address.tell(StartRedis())
        self.supervisor.expect(RedisStarted)
        self.channels.address(GENERAL).tell(Watch(self.watcher.address, Sequence(0)))

    def order(self) -> RecoveryEpoch:
        self.epoch += 1
        epoch = RecoveryEpoch(self.epoch)
        self.address.tell(CatchUp(epoch, self.bus.store.last_sequence, self.ledger.address))
        return epoch

    def catch_up(self) -> dict[str, Any]:
        epoch = self.order()
        caught_up = self.supervisor.expect(CaughtUp)
        assert caught_up.epoch == epoch
        return caught_up.redis

    def send(self, *contents: str) -> None:
        done = [self.bus.done(self.sam.send(content)) for content in contents]
        facts = tuple(fact for each in done for fact in each.facts)
        self.address.tell(Committed(facts, self.bus.store.last_sequence, SIZE_BYTES))

    def settle(self) -> None:
        """Wait until it has projected all it was told. An `ask` would lie in its mailbox, and it
        projects when that is empty."""
        eventually(lambda: self.address.handled == self.address.told)

    def stream(self, channel_id: ChannelId = GENERAL) -> list[int]:
        self.settle()
        with closing(connect(self.settings.socket_path)) as client:
            found: Any = client.xrange(keys.stream(channel_id))
        return [keys.entry_sequence(entry) for entry, _ in found]

    def up_to_date(self) -> bool:
        with closing(connect(self.settings.socket_path)) as client:
            return isinstance(
                needs(
                    client,
                    self.bus.store.bus_id,
                    self.bus.store.last_sequence,
                    Sequence(0),
                    search=self.actor.search_engine == "redis",
                ),
                UpToDate,
            )

    def redis_pid(self) -> int:
        return int(self.actor._info.pid)

    def close(self) -> None:
        stop_actor(self.address, PATIENCE_S)
        self.dispatcher.stop(PATIENCE_S)
        self.supervisor.stop()
        self.watcher.stop()
        self.ledger.stop()
        self.bus.close()


@pytest.fixture
def projection(tmp_path: Path) -> Iterator[Projection]:
    with redis_settings() as settings:
        projection = Projection(tmp_path, settings)
        yield projection
        projection.close()


def test_an_empty_bus_is_caught_up_at_once_and_says_what_runs(projection: Projection) -> None:
    redis = projection.catch_up()
    assert redis["pid"] == projection.redis_pid()
    assert redis["version"]
    assert projection.up_to_date()


def test_nothing_is_projected_before_the_first_catch_up_which_fills_it(
    projection: Projection,
) -> None:
    projection.send("a", "b")
    assert projection.stream() == []
    projection.catch_up()
    assert projection.stream() == [1, 2]


def test_a_channel_hears_of_a_head_that_redis_holds(projection: Projection) -> None:
    projection.catch_up()
    projection.send("a", "b", "c")
    wake = projection.watcher.expect(Wake)
    assert (wake.channel_id, wake.head) == (GENERAL, Sequence(3))
    assert projection.stream() == [1, 2, 3]
    assert projection.actor.projector_statistics().projected == 3


def test_commits_that_wait_together_are_one_pipeline(projection: Projection) -> None:
    projection.catch_up()
    done = [projection.bus.done(projection.sam.send(f"m{number}")) for number in range(20)]
    for sequence, each in enumerate(done, 1):  # far quicker than one round trip to Redis
        projection.address.tell(Committed(each.facts, Sequence(sequence), SIZE_BYTES))
    assert projection.stream() == list(range(1, 21))
    assert projection.actor.projector_statistics().pipelines < 20


def test_projecting_twice_is_harmless(projection: Projection) -> None:
    projection.catch_up()
    done = projection.bus.done(projection.sam.send("a"))
    for _ in range(2):
        projection.address.tell(Committed(done.facts, Sequence(1), SIZE_BYTES))
    assert projection.stream() == [1]
    projection.supervisor.expect_nothing_of(ProjectionLost)


def test_removals_follow_in_order(projection: Projection) -> None:
    projection.catch_up()
    projection.send("a", "b")
    projection.bus.clock.advance(hours=169)
    done = projection.bus.done(PruneSlice("messages_by_age", 10))
    projection.address.tell(Committed(done.facts, projection.bus.store.last_sequence, 0))
    projection.send("c")
    assert projection.stream() == [3]


def test_a_removal_that_was_not_projected_is_made_up_for_when_nothing_else_is_missing(
    projection: Projection,
) -> None:
    projection.catch_up()
    projection.send("a", "b")
    assert projection.stream() == [1, 2]
    projection.bus.done(PruneSlice("messages_by_capacity", 10, free_bytes=1))
    assert projection.up_to_date()
    projection.catch_up()
    assert projection.stream() == [2]


def test_a_full_dataset_is_told_to_who_watches_it_when_projecting_checking_and_filling(
    projection: Projection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Probe() as watcher:
        projection.address.tell(WatchCapacity(watcher.address))
        projection.catch_up()
        projection.address.tell(CheckRedis())
        projection.settle()
        watcher.expect_nothing_of(CapacityReached)
        monkeypatch.setattr(RedisServer, "budget_bytes", 1000)
        projection.send("a")
        watcher.expect(CapacityReached)
        projection.address.tell(CheckRedis())
        watcher.expect(CapacityReached)
        projection.catch_up()
        assert watcher.expect(CapacityReached) == CapacityReached("redis")
        projection.address.tell(MeasureRedis(patient=True))
        measured = watcher.expect(RedisMeasured).dataset_bytes
        assert measured is not None
        assert measured > 1000


def test_a_lost_redis_is_not_measured(projection: Projection) -> None:
    with Probe() as watcher:
        projection.address.tell(WatchCapacity(watcher.address))
        projection.address.tell(MeasureRedis(patient=False))
        assert watcher.expect(RedisMeasured).dataset_bytes is None


def test_a_dead_redis_is_noticed_by_the_next_commit_and_refilled(projection: Projection) -> None:
    projection.catch_up()
    projection.send("a")
    assert projection.stream() == [1]
    kill(projection.redis_pid())
    projection.send("b")
    projection.supervisor.expect(ProjectionLost)
    projection.send("c")  # committed while it was lost
    projection.catch_up()
    assert projection.stream() == [1, 2, 3]
    projection.send("d")
    assert projection.stream() == [1, 2, 3, 4]


def test_an_idle_projector_notices_a_dead_redis_when_it_is_told_to_look(
    projection: Projection,
) -> None:
    projection.catch_up()
    projection.address.tell(CheckRedis())
    projection.supervisor.expect_nothing_of(ProjectionLost, through=(projection.address,))
    kill(projection.redis_pid())
    projection.address.tell(CheckRedis())
    projection.supervisor.expect(ProjectionLost)
    projection.address.tell(CheckRedis())  # told once
    projection.supervisor.expect_nothing_of(ProjectionLost, through=(projection.address,))


def test_a_redis_whose_socket_was_removed_is_lost_for_all_who_come_later(
    projection: Projection,
) -> None:
    projection.catch_up()
    first = projection.redis_pid()
    projection.settings.socket_path.unlink()
    projection.address.tell(CheckRedis())
    assert "was removed" in projection.supervisor.expect(ProjectionLost).reason
    projection.catch_up()
    assert projection.redis_pid() != first
    assert projection.up_to_date()


def test_a_process_without_descriptors_has_not_lost_its_redis(projection: Projection) -> None:
    projection.catch_up()
    with no_descriptor_left():
        projection.address.tell(CheckRedis())
        projection.settle()
    projection.supervisor.expect_nothing_of(ProjectionLost, through=(projection.address,))


def test_a_redis_that_hangs_is_given_up_within_its_time_limit_and_replaced(
    projection: Projection,
) -> None:
    projection.catch_up()
    hung = projection.redis_pid()
    freeze(hung)
    projection.send("a")
    projection.supervisor.expect(ProjectionLost)
    projection.catch_up()
    assert projection.redis_pid() != hung
    assert projection.stream() == [1]


def test_a_redis_that_hung_for_a_moment_gets_only_what_it_misses(projection: Projection) -> None:
    projection.catch_up()
    projection.send("a")
    assert projection.stream() == [1]
    same = projection.redis_pid()
    freeze(same)
    projection.send("b")
    projection.supervisor.expect(ProjectionLost)
    os.kill(same, signal.SIGCONT)
    with closing(connect(projection.settings.socket_path)) as client:
        client.hset("witness", "kept", "1")  # a rebuild would clear it
        projection.catch_up()
        assert client.exists("witness")
    assert projection.redis_pid() == same
    assert projection.stream() == [1, 2]


def test_a_marker_of_another_bus_in_our_own_instance_is_cleared_and_rebuilt(
    projection: Projection,
) -> None:
    projection.catch_up()
    projection.send("a", "b")
    assert projection.stream() == [1, 2]
    with closing(connect(projection.settings.socket_path)) as client:
        client.hset(keys.MARKER, keys.MARKER_BUS_ID, "another")
        client.hset("witness", "kept", "1")
        projection.catch_up()
        assert not client.exists("witness")
    assert projection.stream() == [1, 2]
    assert projection.up_to_date()


def test_a_rebuild_tells_its_progress(projection: Projection) -> None:
    projection.bus.store.apply([projection.sam.send(f"m{number}") for number in range(1500)])
    projection.catch_up()
    assert projection.supervisor.expect(CatchUpProgressed).work == "clearing Redis"
    progressed = projection.supervisor.expect(CatchUpProgressed)
    assert (progressed.work, progressed.total) == ("filling Redis", 1500)
    assert len(projection.stream()) == 1500


@pytest.mark.parametrize(("batches", "filled"), [(1, {"facts"}), (2, {"facts", "read"})])
def test_a_rebuild_fills_memories_first_then_channels_that_somebody_reads(
    projection: Projection, monkeypatch: pytest.MonkeyPatch, batches: int, filled: set[str]
) -> None:
    bus, sam = projection.bus, projection.sam
    for channel, kind in (("unread", "ordinary"), ("read", "ordinary"), ("facts", "memory")):
        bus.done(sam.make(channel, kind))
    bus.done(sam.unsubscribe("general"))
    bus.done(sam.subscribe("read"))
    for channel in ("general", "unread", "read"):
        bus.store.apply([sam.send(str(n), channel) for n in range(PAGE_ROWS)])
    bus.done(sam.send("a fact", "facts"))
    found: list[set[str]] = []

    def look() -> None:
        with closing(connect(projection.settings.socket_path)) as client:
            ids = {row.channel: row.channel_id for row in bus.reader().channels()}
            found.append({name for name, id_ in ids.items() if client.exists(keys.stream(id_))})

    strike_at(monkeypatch, ("during_rebuild", batches), look)
    projection.catch_up()
    assert found == [filled]


def kill_redis(projection: Projection) -> None:
    kill(projection.redis_pid())


def empty(projection: Projection) -> None:
    with closing(connect(projection.settings.socket_path)) as client:
        client.flushall()


@pytest.mark.parametrize("strike", [kill_redis, empty])
@pytest.mark.parametrize(
    "arrival", [("during_rebuild", 1), ("during_rebuild", 2), ("before_mark", 1)]
)
def test_a_redis_that_is_lost_at_any_step_of_a_rebuild_is_filled_by_the_next_one(
    projection: Projection,
    monkeypatch: pytest.MonkeyPatch,
    strike: Callable[[Projection], None],
    arrival: tuple[str, int],
) -> None:
    contents = [f"m{number}" for number in range(1200)]
    projection.bus.store.apply([projection.sam.send(content) for content in contents])
    struck = strike_at(monkeypatch, arrival, lambda: strike(projection))
    epoch = projection.order()
    assert projection.supervisor.expect(CatchUpFailed).epoch == epoch
    assert struck.is_set()
    projection.catch_up()
    assert projection.up_to_date()
    assert projection.stream() == list(range(1, 1201))


@pytest.mark.parametrize("strike", [kill_redis, empty])
def test_a_redis_that_is_lost_in_a_replay_is_filled_by_the_next_one(
    projection: Projection,
    monkeypatch: pytest.MonkeyPatch,
    strike: Callable[[Projection], None],
) -> None:
    projection.catch_up()
    projection.send("projected")
    projection.settle()
    projection.bus.store.apply([projection.sam.send(f"m{number}") for number in range(40)])
    struck = strike_at(monkeypatch, ("during_replay", 1), lambda: strike(projection))
    epoch = projection.order()
    assert projection.supervisor.expect(CatchUpFailed).epoch == epoch
    assert struck.is_set()
    projection.catch_up()
    assert projection.up_to_date()
    assert projection.stream() == list(range(1, 42))


def strike_at(
    monkeypatch: pytest.MonkeyPatch, arrival: tuple[str, int], strike: Callable[[], None]
) -> threading.Event:
    """Do that once, when execution gets to the failpoint for the Nth time."""
    struck = threading.Event()
    name, left = arrival

    def reach(point: str) -> None:
        nonlocal left
        if point == name:
            left -= 1
            if not left:
                strike()
                struck.set()

    monkeypatch.setattr(agentbus.projection.rebuild, "reach", reach)
    return struck


def test_a_catch_up_is_given_up_for_a_stop_between_two_batches(
    projection: Projection, monkeypatch: pytest.MonkeyPatch
) -> None:
    projection.bus.store.apply([projection.sam.send(f"m{number}") for number in range(1200)])
    stopped = strike_at(monkeypatch, ("during_rebuild", 1), projection.address.stop)
    projection.order()
    assert stopped.wait(20.0)
    assert stop_actor(projection.address, PATIENCE_S)
    projection.supervisor.expect_nothing_of(CaughtUp)
    projection.supervisor.expect_nothing_of(CatchUpFailed)
    assert not projection.settings.socket_path.exists()


def test_a_foreign_instance_on_the_path_refuses_the_start_and_is_left_alone(
    tmp_path: Path,
) -> None:
    with private_redis(BusId("foreign")) as foreign:
        foreign.client.hset("theirs", "kept", "1")
        foreign.settings.record_path.unlink()  # without it nothing says that it is ours
        bus = Bus(tmp_path)
        dispatcher = Dispatcher(threads=1)
        channels = ChannelDirectory(dispatcher, lambda name, error: None)
        with Probe() as supervisor:
            server = RedisServer(foreign.settings)
            projector = start_actor(
                RedisProjectorActor(server, bus.reader, channels, supervisor.address)
            )
            projector.tell(StartRedis())
            refused = supervisor.expect(RedisRefused).error
            assert isinstance(refused, RedisUnusableError)
            assert "this bus" in str(refused)
            assert stop_actor(projector, PATIENCE_S)
        dispatcher.stop(PATIENCE_S)
        bus.close()
        assert foreign.client.hgetall("theirs") == {b"kept": b"1"}


def test_a_restart_that_fails_is_told_and_tried_again(projection: Projection) -> None:
    projection.catch_up()
    projection.send("a")
    projection.settle()
    kill(projection.redis_pid())
    projection.address.tell(CheckRedis())
    projection.supervisor.expect(ProjectionLost)
    folder = projection.settings.working_directory
    shutil.rmtree(folder)
    folder.write_text("in the way of the folder that Redis works in")
    epoch = projection.order()
    assert projection.supervisor.expect(CatchUpFailed).epoch == epoch
    folder.unlink()
    projection.catch_up()
    assert projection.stream() == [1]


def test_the_end_projects_what_was_told_and_takes_redis_along(tmp_path: Path) -> None:
    with redis_settings() as settings:
        projection = Projection(tmp_path, settings)
        projection.catch_up()
        pid = projection.redis_pid()
        projection.send("a")
        projection.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert not settings.socket_path.exists()


def test_what_cannot_be_projected_at_the_end_does_not_keep_redis_alive(tmp_path: Path) -> None:
    with redis_settings() as settings:
        projection = Projection(tmp_path, settings)
        projection.catch_up()
        pid = projection.redis_pid()
        told = threading.Event()
        (fact,) = projection.bus.done(projection.sam.send("a")).facts
        assert isinstance(fact, MessageAppended)

        def facts() -> Iterator[Fact]:
            assert told.wait(PATIENCE_S)  # until the stop waits behind it
            yield replace(fact, sender=None)  # type: ignore[arg-type]

        projection.address.tell(Committed(facts(), Sequence(1), SIZE_BYTES))  # type: ignore[arg-type]
        projection.address.stop()
        told.set()
        projection.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_ledger_hears_how_the_projection_advances_but_not_of_every_message(
    projection: Projection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_projector, "TELL_BYTES", 2 * SIZE_BYTES)
    projection.catch_up()
    for content in ("a", "b", "c"):
        projection.send(content)
        projection.settle()
    advanced = [m for m in projection.ledger.received() if isinstance(m, ProjectionAdvanced)]
    assert [message.size_bytes for message in advanced] == [2 * SIZE_BYTES]
    assert {message.epoch for message in advanced} == {projection.epoch}
