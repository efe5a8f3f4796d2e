"""A stop that comes at any moment of a start leaves nothing behind, and the next start is whole."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from agentbus.config import DATABASE_NAME
from agentbus.processes import is_running, start_mark
from tests.bus_fixture import ThrowAwayBus
from tests.eventually import eventually

MOMENTS: dict[str, Callable[[ThrowAwayBus], bool]] = {
    "the process is there": lambda bus: bus.daemon is not None,
    "the lock is taken": lambda bus: bus.runtime.lock.exists(),
    "the database is made": lambda bus: (bus.data_directory / DATABASE_NAME).exists(),
    "Redis is about to start": lambda bus: (bus.runtime.directory / "redis.json").exists(),
    "Redis runs": lambda bus: bus.redis_pid() is not None,
    "the socket is bound": lambda bus: bus.runtime.socket.exists(),
    "it answers": lambda bus: bus.state() is not None,
}


@pytest.fixture
def bus() -> Iterator[ThrowAwayBus]:
    """Not started yet."""
    bus = ThrowAwayBus()
    yield bus
    bus.close()


def test_a_stop_at_any_moment_of_a_start_leaves_nothing_and_hinders_nobody(
    bus: ThrowAwayBus,
) -> None:
    for moment, has_come in MOMENTS.items():
        bus.launch()
        eventually(lambda: has_come(bus), 30.0, what=moment)  # noqa: B023
        redis = bus.redis_pid()
        mark = None if redis is None else start_mark(redis)
        code = bus.stop()
        # Before the daemon looks out for signals there is nothing that it would have to end.
        assert code in (0, -signal.SIGTERM), moment
        assert not bus.runtime.socket.exists(), moment
        assert bus.redis_pid() is None, moment
        if redis is not None and mark is not None:
            assert not is_running(redis, mark), moment
        for made in bus.runtime.directory.glob("*"):
            made.unlink()
    bus.start()
    assert bus.attach().call("send", channel="general", content="hello")["sequence"] == 1
    assert bus.stop() == 0
