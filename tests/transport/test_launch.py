"""Finding or starting the daemon: races, early deaths, and what the daemon must not inherit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbus.errors import ForbiddenError, UnavailableError, ValidationError
from agentbus.launch import daemon_command, ensure_daemon
from agentbus.transport.client import Client
from agentbus.transport.singleton import (
    DaemonLock,
    RuntimePaths,
    holder_pid,
    prepare_directory,
    runtime_directory,
)
from tests.eventually import PATIENCE_S, eventually
from tests.signals import freeze, kill

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tests.transport.small_daemon"]


class Place:
    """A runtime folder for small daemons, and the record of their starts."""

    def __init__(self, folder: Path) -> None:
        self.starts_file = folder / "starts"
        self.env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "AGENTBUS_RUNTIME_DIR": str(folder / "run"),
            "SMALL_DAEMON_STARTS": str(self.starts_file),
        }
        self.paths: RuntimePaths = runtime_directory(self.env, os.getuid())

    def ensure(self, deadline_s: float = 20.0, **options: Any) -> Client:
        return ensure_daemon(
            self.paths,
            Path("/nowhere/config.json"),
            deadline_s=deadline_s,
            command=options.pop("command", COMMAND),
            env=self.env,
            **options,
        )

    def starts(self) -> list[int]:
        if not self.starts_file.exists():
            return []
        return [int(line) for line in self.starts_file.read_text().split()]

    def pid(self) -> int:
        with self.ensure(allow_start=False) as client:
            pid: int = client.request("facts", {}, PATIENCE_S)["pid"]
            return pid


@pytest.fixture
def place(folder: Path) -> Iterator[Place]:
    place = Place(folder)
    yield place
    lock = DaemonLock(place.paths.lock)
    if place.paths.directory.exists() and lock.held_by_another():
        pid = holder_pid(place.paths.lock)
        if pid in place.starts():
            kill(pid)
        eventually(lambda: not lock.held_by_another())


def test_daemon_is_started_when_there_is_none_and_found_when_there_is(place: Place) -> None:
    with place.ensure() as client:
        pid = client.request("facts", {}, PATIENCE_S)["pid"]
    with place.ensure() as client:
        assert client.request("facts", {}, PATIENCE_S)["pid"] == pid
    assert place.starts() == [pid]


def test_daemon_is_not_started_when_that_is_not_allowed(place: Place) -> None:
    with pytest.raises(UnavailableError, match="agentbus daemon"):
        place.ensure(allow_start=False)
    assert place.starts() == []
    assert not place.paths.directory.exists()


def test_daemon_is_detached_from_everything_of_its_starter(place: Place) -> None:
    place.env["SMALL_DAEMON_MARKER"] = "passed through"
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    with place.ensure() as client:
        facts = client.request("facts", {}, PATIENCE_S)
    assert facts["session"] == facts["pid"] != os.getsid(0)
    assert facts["cwd"] == "/"
    assert facts["marker"] == "passed through"
    for standard in (facts["stdin"], facts["stdout"]):
        assert standard == os.stat(os.devnull).st_rdev
    os.close(writing)
    os.set_blocking(reading, False)
    assert os.read(reading, 1) == b"", "the daemon holds a pipe of its starter"
    os.close(reading)


def test_command_names_the_daemon_and_the_configuration() -> None:
    assert daemon_command(Path("/etc/c.json")) == [
        sys.executable,
        "-m",
        "actors",
        "--config",
        "/etc/c.json",
    ]


_START = """
import os, sys
from pathlib import Path
from agentbus.launch import ensure_daemon
from agentbus.transport.singleton import runtime_directory
paths = runtime_directory(os.environ, os.getuid())
command = [sys.executable, "-m", "tests.transport.small_daemon"]
print("ready", flush=True)
sys.stdin.readline()
with ensure_daemon(paths, Path("/nowhere"), deadline_s=40.0, command=command) as client:
    print(client.request("facts", {}, 20.0)["pid"], flush=True)
"""


@pytest.mark.timeout(180)  # they are all started at once, on a machine that may be busy
def test_twenty_processes_at_once_end_with_one_daemon(place: Place) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=place.env,
            text=True,
        )
        for _ in range(20)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate()[0].strip() for process in processes]
    assert len(set(answers)) == 1
    assert place.starts() == [int(answers[0])]


def test_many_threads_at_once_end_with_one_daemon(place: Place) -> None:
    found: list[int] = []

    def ensure() -> None:
        with place.ensure() as client:
            found.append(client.request("facts", {}, 10.0)["pid"])

    threads = [threading.Thread(target=ensure) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == place.starts() * 10


def test_killed_daemon_is_replaced_although_its_socket_is_still_there(place: Place) -> None:
    place.ensure().close()
    first = place.pid()
    kill(first)
    eventually(lambda: not DaemonLock(place.paths.lock).held_by_another())
    assert place.paths.socket.exists()
    place.ensure().close()
    assert place.starts() == [first, place.pid()]


def test_start_during_stop_waits_and_gets_a_new_daemon(place: Place) -> None:
    with place.ensure() as client:
        client.request("stop", {}, PATIENCE_S)
    place.ensure().close()
    assert len(place.starts()) == 2


def test_daemon_lock_that_is_held_without_a_socket_starts_nothing(place: Place) -> None:
    prepare_directory(place.paths, os.getuid())
    lock = DaemonLock(place.paths.lock)
    assert lock.acquire()
    with pytest.raises(UnavailableError, match=f"process {os.getpid()} starts, stops or hangs"):
        place.ensure(0.3)
    assert place.starts() == []
    lock.release()


def test_refused_configuration_is_told_in_the_daemons_own_words(place: Place) -> None:
    place.env["SMALL_DAEMON_FAULT"] = "configuration"
    with pytest.raises(ValidationError) as caught:
        place.ensure()
    assert caught.value.message == "config.json: unknown key 'colour'; remove it"
    assert len(place.starts()) == 1


def test_daemon_that_keeps_dying_is_given_up_with_its_last_words(place: Place) -> None:
    place.env["SMALL_DAEMON_FAULT"] = "crash"
    with pytest.raises(UnavailableError, match=r"died 3 times.*out of luck"):
        place.ensure()
    assert len(place.starts()) == 3


def test_command_that_cannot_be_run_is_explained(place: Place) -> None:
    with pytest.raises(UnavailableError, match="repair the installation"):
        place.ensure(command=["/nowhere/python"])


def test_stopped_daemon_process_is_a_time_limit_not_a_hang(place: Place) -> None:
    place.ensure().close()
    pid = place.pid()
    freeze(pid)
    before_s = time.monotonic()
    with pytest.raises(UnavailableError, match="did not answer"):
        place.ensure(0.5).close()
    assert time.monotonic() - before_s < 20.0
    os.kill(pid, signal.SIGCONT)
    place.ensure().close()
    assert place.starts() == [pid]


def test_unsafe_runtime_folder_is_refused_before_anything_is_sent(place: Place) -> None:
    place.paths.directory.mkdir(mode=0o700)
    place.paths.directory.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place.paths.socket))
        listening.listen()
        for allow_start in (True, False):
            with pytest.raises(ForbiddenError, match="chmod 700"):
                place.ensure(allow_start=allow_start)
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_dead_child_is_no_zombie(place: Place) -> None:
    place.ensure().close()
    pid = place.pid()
    kill(pid)
    eventually(lambda: not _exists(pid))


def _exists(pid: int) -> bool:
    """A zombie does."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
