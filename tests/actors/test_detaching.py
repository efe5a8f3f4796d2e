"""The daemon leaves the tree of whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.bus_fixture import ROOT

SERVES = 0
FAILS = 3

_DAEMON = """
import os, sys
from actors.detaching import detach

serves = detach()
print(os.getpid(), flush=True)
if (word := sys.stdin.readline()) == "fail\\n":
    sys.exit(3)
serves()
print("serves", flush=True)
"""


def started() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _DAEMON],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("word", "code"), [("go", SERVES), ("fail", FAILS)])
def test_whoever_started_it_is_told_how_the_start_went(word: str, code: int) -> None:
    with started() as starter:
        assert starter.stdin is not None
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert pid != starter.pid
        starter.stdin.write(word + "\n")
        starter.stdin.flush()
        assert starter.wait() == code


def test_a_starter_that_is_ended_meanwhile_does_not_take_the_daemon_with_it() -> None:
    with started() as starter:
        assert starter.stdin is not None
        assert starter.stdout is not None
        starter.stdout.readline()
        os.kill(starter.pid, signal.SIGKILL)
        starter.wait()
        starter.stdin.write("go\n")
        starter.stdin.flush()
        assert starter.stdout.readline() == "serves\n"
