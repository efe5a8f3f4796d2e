"""Inspection commands for tests: real executables that misbehave in every way they are told to.

    hook = Hook(folder, 'answer("allow")')          # a Python body with these helpers at hand
    hook.argv, hook.documents(), hook.pids()

Each run appends its process id and what it read to files beside the script, so a test can wait for
runs to begin, count them, and see that nothing of them is left.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

from agentbus.encoding import decode_strict
from agentbus.processes import start_mark

_PRELUDE = """\
#!{python} -ISE
import json, os, signal, sys, time

HERE = {here!r}

def note(name, text):
    with open(os.path.join(HERE, name), "a") as file:
        file.write(text + "\\n")

note("pids", str(os.getpid()))

def read():
    text = sys.stdin.read()
    note("documents", text)
    return json.loads(text)

def answer(decision, reason=None):
    print(json.dumps({{"decision": decision, **({{"reason": reason}} if reason else {{}})}}))

def hang():
    note("hanging", str(os.getpid()))
    while True:
        time.sleep(60)

def wait_for(name):
    while not os.path.exists(os.path.join(HERE, name)):
        time.sleep(0.002)

"""


class Hook:
    """One executable with the given Python body, in a folder of its own."""

    def __init__(self, folder: Path, body: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.path = folder / "hook"
        self.argv = [str(self.path)]
        self.write(body)

    def write(self, body: str) -> None:
        """Replace what it does from the next run on."""
        text = _PRELUDE.format(python=sys.executable, here=str(self.folder)) + body + "\n"
        new = self.folder / "hook.new"
        new.write_text(text)
        new.chmod(new.stat().st_mode | stat.S_IXUSR)
        new.replace(self.path)

    def release(self, name: str) -> None:
        """What `wait_for(name)` in the body waits for."""
        (self.folder / name).touch()

    def lines(self, name: str) -> list[str]:
        """What was noted under a name so far, whole lines only."""
        file = self.folder / name
        if not file.exists():
            return []
        return [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def pids(self) -> list[int]:
        """Process ids of all runs so far, and of what they noted as theirs."""
        return [int(line) for line in self.lines("pids")]

    def documents(self) -> list[Any]:
        """What the runs have read, in order."""
        return [decode_strict(line) for line in self.lines("documents")]


def is_there(pid: int) -> bool:
    """Whether a process of that id exists; a zombie that nobody has reaped counts."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_running(pid: int) -> bool:
    """Whether a process of that id runs; for those whose reaping is another process's business."""
    return start_mark(pid) is not None
