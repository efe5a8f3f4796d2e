"""Runs a command line as a person would: a process of its own, real exit code and streams."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.bus_fixture import ROOT, ThrowAwayBus

COMMAND_S = 50


def agentbus(bus: ThrowAwayBus, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`agentbus ...` on this bus, without a terminal."""
    return run(["-m", "agentbus", *arguments], bus.environment)


def agentbus_admin(bus: ThrowAwayBus, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`agentbus-admin ...` on this bus, without a terminal."""
    code = "import sys; from agentbus.cli.admin import main; sys.exit(main())"
    return run(["-c", code, *arguments], bus.environment)


def run(
    arguments: list[str], environment: Mapping[str, str], cwd: Path = ROOT, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """Python with these arguments; `typed` is what its stdin holds."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=dict(environment),
        cwd=cwd,
        input=typed,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )


def answer_at_terminal(
    bus: ThrowAwayBus, arguments: list[str], typed: str
) -> subprocess.CompletedProcess[str]:
    """`agentbus ...` with a terminal as its stdin, at which somebody types."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "agentbus", *arguments],
            env=bus.environment,
            cwd=ROOT,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            os.write(ours, typed.encode())
            out, err = process.communicate(timeout=COMMAND_S)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)
    finally:
        os.close(ours)
        os.close(theirs)
