"""What arming a failpoint does, in a process that it may end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from agentbus.failpoints import VARIABLE, reach

REACH = """
from agentbus.failpoints import reach
for letter in "abc":
    reach("commit")
    print(letter, flush=True)
"""


def run(entries: str, program: str = REACH) -> subprocess.Popen[str]:
    environment = {**os.environ, VARIABLE: entries}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("entries", "code", "output"),
    [
        ("", 0, "a\nb\nc\n"),
        ("after_commit", 0, "a\nb\nc\n"),
        ("commit", -signal.SIGKILL, ""),
        ("commit:kill", -signal.SIGKILL, ""),
        ("commit@3", -signal.SIGKILL, "a\nb\n"),
        ("commit@4", 0, "a\nb\nc\n"),
        ("after_commit, commit@2:kill", -signal.SIGKILL, "a\n"),
    ],
)
def test_a_process_is_killed_where_and_when_it_was_armed(
    entries: str, code: int, output: str
) -> None:
    process = run(entries)
    assert process.communicate()[0] == output
    assert process.returncode == code


def test_a_paused_process_goes_on_where_it_stopped() -> None:
    process = run("commit@2:pause")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    process.send_signal(signal.SIGCONT)
    assert process.communicate()[0] == "a\nb\nc\n"


def test_what_is_made_to_fail_fails_from_then_on(armed: Callable[[str], None]) -> None:
    armed("commit@2:raise")
    reach("commit")
    for _ in range(2):
        with pytest.raises(OSError, match="failpoint commit"):
            reach("commit")
    armed("")
    reach("commit")


@pytest.mark.parametrize(
    "entries", ["comit", "commit:explode", "commit@0", "commit@x", "commit@", "commit,before"]
)
def test_what_arms_nothing_is_refused(armed: Callable[[str], None], entries: str) -> None:
    with pytest.raises(ValueError, match=VARIABLE):
        armed(entries)


def test_a_process_with_a_name_that_is_none_does_not_start() -> None:
    process = run("comit")
    output, errors = process.communicate()
    assert process.returncode == 1
    assert output == ""
    assert "no failpoint 'comit'; known: before_commit" in errors
