"""Telling processes apart, and ending exactly one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from agentbus.processes import (
    ancestors,
    arguments_of,
    end_group,
    executable,
    is_running,
    start_mark,
)
from tests.eventually import eventually


def test_a_running_process_keeps_its_mark_and_another_has_another() -> None:
    mark = start_mark(os.getpid())
    assert mark is not None
    assert mark == start_mark(os.getpid())
    assert is_running(os.getpid(), mark)
    assert not is_running(os.getpid(), "another")


def test_a_zombie_and_a_pid_of_nobody_have_no_mark() -> None:
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert start_mark(child.pid) is None
    assert start_mark(child.pid) is None


def test_the_name_of_a_process_may_hold_half_a_character() -> None:
    """Linux cuts it at 15 bytes, wherever that is."""
    rename = r"""
import os
if os.path.exists("/proc/self/comm"):
    open("/proc/self/comm", "wb").write(b") S 1 \xc3")
print("done", flush=True)
input()
"""
    command = [sys.executable, "-c", rename]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        assert start_mark(child.pid) is not None
        assert ancestors(child.pid)[0] == os.getpid()
        child.kill()


def test_a_process_shows_what_it_was_started_with_and_one_that_ended_nothing() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        # Until it has become that program it shows what started it.
        eventually(lambda: arguments_of(child.pid)[:2] == ["sleep", "600"])
        child.kill()
        child.wait()
        assert arguments_of(child.pid) == []


def test_a_group_is_ended_by_force_when_it_does_not_listen() -> None:
    command = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        mark = start_mark(child.pid)
        assert mark is not None
        assert end_group(child.pid, mark, grace_s=0.05)
        assert child.wait() == -signal.SIGKILL
        assert end_group(child.pid, mark, grace_s=0.05)


def test_the_program_of_a_process_is_told_while_both_are_there(tmp_path: Path) -> None:
    sleep = Path(shutil.copy(shutil.which("sleep") or "", tmp_path / "sleeper"))
    with subprocess.Popen([sleep, "60"]) as child:
        try:
            assert executable(child.pid) == sleep
            sleep.unlink()
            assert executable(child.pid) is None
        finally:
            child.kill()
    assert executable(child.pid) is None
    assert Path(sys.executable).resolve() == executable(os.getpid())
