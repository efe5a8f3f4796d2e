"""The guard of commands: it ends their runs when their owner cannot any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from agentbus.command_guard import Guard
from agentbus.processes import start_mark
from tests.eventually import PATIENCE_S, eventually
from tests.signals import freeze, kill


@contextmanager
def group() -> Iterator[subprocess.Popen[bytes]]:
    """A process group of two, which would run for a minute."""
    program = "import subprocess, time; subprocess.Popen(['sleep', '60']); print(); time.sleep(60)"
    leader = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert leader.stdout is not None
        leader.stdout.readline()
        yield leader
    finally:
        if leader.returncode is None:
            os.killpg(leader.pid, signal.SIGKILL)
            leader.wait()
        leader.stdout.close()


def test_what_runs_at_the_end_is_killed_and_what_has_ended_is_left_alone() -> None:
    with closing(Guard()) as guard, group() as running, group() as ended:
        for each in (running, ended):
            guard.began(each.pid)
        guard.ended(ended.pid)
        guard.close()
        assert running.wait(PATIENCE_S) == -signal.SIGKILL
        assert running.stdout is not None
        assert running.stdout.read() == b"", "a process of the group holds its output"
        assert ended.poll() is None


_OWNER = """
import os, signal, sys
from agentbus.command_guard import Guard
Guard().began(int(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_owner_is_an_end_too() -> None:
    with group() as running:
        owner = subprocess.run([sys.executable, "-c", _OWNER, str(running.pid)])
        assert owner.returncode == -signal.SIGKILL
        assert running.wait(PATIENCE_S) == -signal.SIGKILL


@pytest.mark.parametrize("strike", [kill, freeze])
def test_one_that_has_gone_or_hangs_hinders_nothing_and_kills_nothing(
    strike: Callable[[int], None],
) -> None:
    guard = Guard()
    assert guard._process is not None
    with closing(guard), group() as other:
        strike(guard._process.pid)
        for _ in range(20_000):  # more than a pipe holds
            guard.began(other.pid)
        guard.close()
        eventually(lambda: start_mark(guard._process.pid) is None)  # type: ignore[union-attr]
        assert other.poll() is None
