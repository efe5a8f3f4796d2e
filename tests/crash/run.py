"""One schedule from its seed to its verdict."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from agentbus.errors import BusError
from tests.crash import audit
from tests.crash.faults import FAULTS
from tests.crash.history import History
from tests.crash.judge import judge
from tests.crash.schedule import carry_out, plan
from tests.crash.truth import Truth, Verdict
from tests.crash.world import World
from tests.eventually import eventually

ENDS_WITHIN_S = 15.0


@dataclass(slots=True)
class Report:
    """What came out of one schedule. `log` is the daemons', for whoever has to look into it."""

    seed: str
    verdict: Verdict
    history: History
    truth: Truth
    took_s: float
    log: str

    def line(self) -> str:
        faults = len(self.history.faults)
        word = "clean" if self.verdict.clean else "NOT CLEAN"
        return f"{self.seed}: {word} in {self.took_s:.0f} s, {faults} faults: " + (
            self.verdict.summary()
        )

    def details(self, findings: int = 10) -> str:
        """Each finding with the history of its id."""
        lines = []
        for finding in self.verdict.findings[:findings]:
            lines.append(f"  {finding.kind} {finding.subject}: {finding.text}")
            if finding.subject:
                lines += [f"      {line}" for line in self.history.about(finding.subject)]
        left_out = len(self.verdict.findings) - findings
        return "\n".join(lines + ([f"  and {left_out} more"] if left_out > 0 else []))


def run_schedule(seed: str, seconds: float, kinds: Sequence[str] = tuple(FAULTS)) -> Report:
    """A bus, its clients and its faults for so many seconds; then the drain and the verdict."""
    began_s = time.monotonic()
    world = World(seed)
    try:
        world.prepare()
        world.start()
        carry_out(plan(seed, seconds, kinds), world, seconds)
        world.finish()
        truth = look(world)
        verdict = judge(world.history, truth)
        log = _logs(world)
    finally:
        world.close()
    return Report(seed, verdict, world.history, truth, time.monotonic() - began_s, log)


def look(world: World) -> Truth:
    """What the bus holds; afterwards it has ended."""
    try:
        truth = audit.ask(world.bus)
    except (BusError, AssertionError) as error:
        world.history.stuck.append(f"the audit failed: {error!r}")
        truth = Truth(rows=[])
    truth.may_remove = world.clock_was_moved
    pid = world.daemon_pid()
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        try:
            eventually(lambda: world.daemon_pid() is None, ENDS_WITHIN_S, what="end of the daemon")
        except AssertionError as error:
            world.history.stuck.append(str(error))
    audit.read(world.bus.data_directory / "agentbus.sqlite3", truth)
    return truth


def _logs(world: World) -> str:
    files = sorted((world.bus.data_directory / "logs").glob("*"))
    adapters = world.bus.directory / "adapters.log"
    return "\n".join(file.read_text(errors="replace") for file in [*files, adapters])
