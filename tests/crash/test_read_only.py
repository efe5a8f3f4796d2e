"""A data folder that may not be written: refused at the start, survived while the bus runs."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bus_fixture import ThrowAwayBus
from tests.eventually import eventually
from tests.exhaustion import obeying_permissions
from tests.signals import kill

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="needs Linux to take root's right to write everywhere"
)


@pytest.fixture
def bus() -> Iterator[ThrowAwayBus]:
    """Not started yet; its daemon may write only where permissions allow it."""
    bus = ThrowAwayBus()
    bus.command = obeying_permissions(bus.command)
    yield bus
    bus.close()


@contextmanager
def read_only(*paths: Path) -> Iterator[None]:
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    for path, mode in modes.items():
        path.chmod(mode & 0o555)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@pytest.mark.parametrize("holds_a_bus", [False, True])
def test_a_start_in_a_read_only_folder_is_refused_in_one_line(
    bus: ThrowAwayBus, holds_a_bus: bool
) -> None:
    if holds_a_bus:
        bus.start()
        assert bus.stop() == 0
    else:
        bus.data_directory.mkdir()
    files = [path for path in bus.data_directory.iterdir() if path.is_file()]
    with read_only(bus.data_directory, *files):
        refused = subprocess.run(
            [*bus.command, "--config", str(bus.config_path)],
            env=bus.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
        )
    assert refused.returncode == 2, refused.stderr
    (line,) = refused.stderr.splitlines()
    assert str(bus.data_directory) in line
    assert bus.redis_pid() is None
    bus.start()


def test_a_folder_that_becomes_read_only_stops_nothing_that_runs(bus: ThrowAwayBus) -> None:
    """The open files go on taking what is sent; a Redis that dies meanwhile comes back as well."""
    bus.start()
    sam = bus.attach()
    first = sam.call("send", channel="general", content="before")
    with read_only(bus.data_directory, bus.data_directory / "redis"):
        assert sam.call("send", channel="general", content="while")["sequence"] == 2
        redis = bus.redis_pid()
        assert redis is not None
        kill(redis)
        eventually(lambda: bus.redis_pid() not in (None, redis) or bus.state() == "recovering")
    bus.wait_ready()
    sam.wait_served()
    kept = eventually(lambda: sam.call("history", channel="general")["messages"])
    assert [message["content"] for message in kept] == ["before", "while"]
    assert kept[0]["message_id"] == first["message_id"]
    assert sam.call("send", channel="general", content="after")["sequence"] == 3
    assert bus.stop() == 0
