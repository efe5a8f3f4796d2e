"""Each named place, killed once: afterwards the judge finds nothing.

One agent and one program do some of everything; then the process that has the place gets there and
ends, somebody starts it again, and what was left open is repeated under its operation id.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from agentbus.errors import BusError
from agentbus.failpoints import POINTS, VARIABLE
from tests.cli.command import agentbus_admin
from tests.crash.clients import MEMORIES
from tests.crash.faults import ADAPTER_POINTS, DAEMON_POINTS, kill_redis
from tests.crash.judge import judge
from tests.crash.run import look
from tests.crash.world import HOOK, World
from tests.eventually import PATIENCE_S, eventually
from tests.signals import kill

OLD_S = 7000.0
"""Older than the retention of the bus."""


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    hook = HOOK if "inspection" in request.node.name else []
    world = World("failpoints", adapters=1, sockets=1, inspection_command=hook)
    try:
        world.prepare()
        yield world
    finally:
        world.close()


def some_of_everything(world: World) -> None:
    """Messages that were confirmed, handed off and neither; a memory of two revisions."""
    [adapter], [sender] = world.adapters, world.sockets
    for _ in range(2):
        sender.mutate("send", "general")
        adapter.receive(5.0, None)
    memory = sender.mutate("send", MEMORIES)
    sender.mutate("edit", MEMORIES, memory.message_id)
    sender.mutate("send", "work")


def end_daemon(world: World) -> None:
    """Everybody is gone, so that nobody but the test starts the next one; Redis lives on."""
    for client in world.clients:
        client.drop()
    handed = max((one.sequence for one in world.history.handed), default=0)
    eventually(lambda: stored_position(world) >= handed, what="commit of what was handed off")
    pid = world.daemon_pid()
    if pid is not None:
        kill(pid)
        eventually(lambda: world.daemon_pid() is None, what="end of the daemon")


def stored_position(world: World) -> int:
    with closing(sqlite3.connect(world.bus.data_directory / "agentbus.sqlite3")) as database:
        return int(database.execute("SELECT MAX(handed_off) FROM subscriptions").fetchone()[0])


def get_there(world: World, point: str, drive: Callable[[World], object]) -> None:
    """Start a daemon that is armed, and have it killed at the point."""
    world.bus.environment[VARIABLE] = point
    world.bus.launch()
    del world.bus.environment[VARIABLE]
    drive(world)
    assert world.bus.wait_ended() == -signal.SIGKILL


def ready_then(drive: Callable[[World], object]) -> Callable[[World], None]:
    def driven(world: World) -> None:
        world.bus.wait_ready()
        drive(world)

    return driven


def send(world: World) -> None:
    world.sockets[0].mutate("send", "general", attempts=1)


def edit(world: World) -> None:
    world.sockets[0].mutate("edit", MEMORIES, world.memories[0], attempts=1)


def receive(world: World) -> None:
    world.adapters[0].receive(5.0, None)


def let_time_pass(world: World) -> None:
    world.set_clock(OLD_S)


def nothing(world: World) -> None:
    """It gets there by itself while it starts."""


DRIVES: dict[str, Callable[[World], None]] = {
    **dict.fromkeys(("before_commit", "commit", "after_commit"), ready_then(send)),
    **dict.fromkeys(("after_projection", "during_inspection"), ready_then(send)),
    "during_memory_edit": ready_then(edit),
    **dict.fromkeys(("during_eviction", "before_removal"), ready_then(let_time_pass)),
    **dict.fromkeys(
        ("during_report_batch", "before_cursor_commit", "after_cursor_commit"), ready_then(receive)
    ),
    **dict.fromkeys(("during_rebuild", "before_mark", "during_replay"), nothing),
}


ELSEWHERE = {
    *("before_migration", "during_migration", "after_migration", "during_import"),
    *("before_callback", "after_callback"),
}
"""Need an older file, an export or a job with a callback: killed in tests/store/test_migrations.py,
tests/store/test_export.py and tests/jobs/test_bus.py."""


def test_each_failpoint_is_killed_somewhere() -> None:
    assert {*DRIVES} == {*DAEMON_POINTS}
    resets = {"during_reset", "after_reset"}
    assert {*DRIVES, *ADAPTER_POINTS} | resets | ELSEWHERE == {*POINTS}


def verdict_is_clean(world: World) -> None:
    [adapter], [sender] = world.adapters, world.sockets
    world.start_daemon()
    for operation in world.history.operations:
        if operation.outcome != "ok":
            sender.repeat(operation)
    sender.mutate("send", "general")
    for client in world.clients:
        client.finish()
    verdict = judge(world.history, look(world))
    assert verdict.clean, [verdict.findings, adapter.failure]
    assert verdict.counts["never_happened"] == 0


@pytest.mark.parametrize("point", DAEMON_POINTS)
def test_a_daemon_killed_there_loses_and_doubles_nothing(world: World, point: str) -> None:
    some_of_everything(world)
    end_daemon(world)
    if point in ("during_rebuild", "before_mark"):
        kill_redis(world)
    if point == "during_replay":  # what Redis then misses
        get_there(world, "after_commit", ready_then(send))
    get_there(world, point, DRIVES[point])
    verdict_is_clean(world)


@pytest.mark.parametrize("point", ADAPTER_POINTS)
def test_an_adapter_killed_there_loses_nothing_and_marks_what_comes_again(
    world: World, point: str
) -> None:
    some_of_everything(world)
    [adapter] = world.adapters
    adapter.drop()
    adapter.next_failpoint = point
    adapter.receive(5.0, None)
    assert adapter.process is not None
    assert adapter.process.wait(PATIENCE_S) == -signal.SIGKILL
    verdict_is_clean(world)


@pytest.mark.parametrize("by", ["command", "daemon"])
@pytest.mark.parametrize("point", ["during_reset", "after_reset"])
def test_a_reset_killed_halfway_leaves_the_old_bus_or_the_new_one(
    world: World, by: str, point: str
) -> None:
    some_of_everything(world)
    end_daemon(world)
    if by == "daemon":
        get_there(world, point, ready_then(ask_for_reset))
    else:
        world.bus.environment[VARIABLE] = point
        config = os.fspath(world.bus.config_path)
        command = agentbus_admin(world.bus, "reset", "--yes", "--config", config)
        del world.bus.environment[VARIABLE]
        assert command.returncode == -signal.SIGKILL, command.stderr
    if point == "during_reset":
        verdict_is_clean(world)
        return
    world.start_daemon()
    channels = world.bus.attach("Auditor").call("list_channels")["channels"]
    assert [channel["channel"] for channel in channels] == ["general"]
    truth = look(world)
    assert truth.rows == []
    assert truth.complaints == []


def ask_for_reset(world: World) -> None:
    with world.bus.client() as client, pytest.raises(BusError):
        client.request("reset", {}, 10.0)
