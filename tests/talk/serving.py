"""`agentbus talk serve` as a process of a throw-away bus."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from agentbus.talk import TalkClient
from agentbus.talk.registry import DaemonRegistry
from tests.bus_fixture import ROOT, ThrowAwayBus
from tests.cli.command import agentbus
from tests.eventually import PATIENCE_S, eventually

CAT = ("cat",)


class Serving:
    """One instance, served until the test leaves it; if nobody kills it, it ends in order.

    `argv` answers, or the agent of its name when `peer` is set.
    """

    def __init__(
        self,
        bus: ThrowAwayBus,
        instance: str,
        *argv: str,
        options: tuple[str, ...] = (),
        peer: bool = False,
    ) -> None:
        self.bus = bus
        self.instance = instance
        answering = ("--peer",) if peer else ("--exec", "--", *(argv or CAT))
        self.errors_path = bus.directory / f"talk-{instance}.log"
        with self.errors_path.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "agentbus", "talk", "serve", "--instance", instance),
                    *("--config", str(bus.config_path), *options, *answering),
                ],
                env=bus.environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        told = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        if told is None:
            self.process.kill()
            self.process.communicate()
            raise AssertionError(f"{instance} is not served:\n{self.log()}")
        self.port = int(told[1])

    def log(self) -> str:
        return self.errors_path.read_text(errors="replace")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        code = self.end() if self.process.returncode is None else 0
        if error is not None:
            error.add_note(f"log of {self.instance}:\n{self.log()[-4000:]}")
        else:
            assert code == 0, self.log()


def client(bus: ThrowAwayBus, own_name: str = "reviewer", timeout_s: float = 50.0) -> TalkClient:
    """A client in the test's own process."""
    return TalkClient(
        own_name,
        config_path=bus.config_path,
        registry=DaemonRegistry(bus.runtime),
        timeout_s=timeout_s,
    )


def send(
    bus: ThrowAwayBus, to: str, prompt: str, *options: str
) -> subprocess.CompletedProcess[str]:
    """`agentbus talk send` from `reviewer`."""
    own_name = () if "--from" in options else ("--from", "reviewer")
    return agentbus(
        bus,
        *("talk", "send", "--config", str(bus.config_path), "--to", to),
        *(*own_name, *options, "--", prompt),
    )


def served(bus: ThrowAwayBus) -> dict[str, int]:
    """What the daemon's registry has: instances and their processes."""
    return {entry.instance: entry.pid for entry in DaemonRegistry(bus.runtime).all()}


def pids_in(path: Path, count: int) -> list[int]:
    """Process ids that a command has written, as soon as there are so many."""

    def written() -> list[int]:
        words = path.read_text().split() if path.exists() else []
        return [int(word) for word in words] if len(words) >= count else []

    return eventually(written, what=f"{count} process ids in {path}")
