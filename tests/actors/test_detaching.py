"""The daemon leaves the tree of whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.bus_fixture import ROOT

SERVES = 0
REFUSED = 65
ENDED = 1

_DAEMON = """
import os, sys
from actors.detaching import detach
from agentbus.processes import ancestors

starter = os.getpid()
tell = detach()
print(os.getpid(), starter in ancestors(os.getpid()), flush=True)
if word := sys.stdin.readline().strip():
    tell(int(word))
    tell(9)
    print("told", flush=True)
"""


def started() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _DAEMON],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("word", "code"),
    [
        pytest.param(f"{SERVES}\n", SERVES, id="serves"),
        pytest.param(f"{REFUSED}\n", REFUSED, id="refused"),
        pytest.param("\n", ENDED, id="ends without a word"),
    ],
)
def test_whoever_started_it_is_told_how_the_start_went(word: str, code: int) -> None:
    with started() as starter:
        assert starter.stdin is not None
        assert starter.stdout is not None
        pid, descends = starter.stdout.readline().split()
        assert int(pid) != starter.pid
        assert descends == "False"  # already at its first step
        starter.stdin.write(word)
        starter.stdin.flush()
        assert starter.wait() == code


def test_a_killed_daemon_is_a_failed_start() -> None:
    with started() as starter:
        assert starter.stdout is not None
        pid, _ = starter.stdout.readline().split()
        os.kill(int(pid), signal.SIGKILL)
        assert starter.wait() == ENDED


def test_a_starter_that_is_ended_meanwhile_does_not_take_the_daemon_with_it() -> None:
    with started() as starter:
        assert starter.stdin is not None
        assert starter.stdout is not None
        starter.stdout.readline()
        os.kill(starter.pid, signal.SIGKILL)
        starter.wait()
        starter.stdin.write(f"{SERVES}\n")
        starter.stdin.flush()
        assert starter.stdout.readline() == "told\n"
