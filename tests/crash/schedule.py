"""Which faults strike when: drawn from a seed, then carried out on a world.

The same seed draws the same faults at the same times on the same targets; what the bus is doing at
that moment depends on the machine, so a seed repeats a schedule and not a run.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.crash.faults import FAULTS, outlast_lease
from tests.crash.history import Fault
from tests.crash.peering import LEASE_S
from tests.crash.world import World

PAUSE_MEAN_S = 1.5
BURST = 0.3
"""Share of faults that come at once after the one before."""

LASTS_MAX_S = 5.0
QUIET_AT_THE_END_S = 1.0


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault; `seed` is of its own choices."""

    at_s: float
    kind: str
    lasts_s: float
    seed: str


def plan(seed: str, seconds: float, kinds: Sequence[str] = tuple(FAULTS)) -> list[Planned]:
    """The faults of so many seconds."""
    rng = random.Random(f"{seed} faults")
    planned: list[Planned] = []
    at_s = rng.uniform(0.5, 1.5)
    while at_s < seconds - QUIET_AT_THE_END_S:
        lasts_s = min(rng.choice((0.3, 1.0, LASTS_MAX_S)) * rng.uniform(0.5, 1.0), seconds - at_s)
        kind = rng.choice(list(kinds))
        if kind == outlast_lease.__name__:
            lasts_s += LEASE_S  # also where that is beyond the end
        planned.append(Planned(at_s, kind, lasts_s, f"{seed} {len(planned)}"))
        if rng.random() < BURST:
            at_s += rng.uniform(0.0, 0.2)
        else:
            at_s += rng.expovariate(1 / PAUSE_MEAN_S)
    return planned


def carry_out(planned: Sequence[Planned], world: World, seconds: float) -> None:
    """Strike as planned. When this returns no fault is in force any more."""
    history = world.history
    began_s = time.monotonic()
    ends: list[tuple[float, int, Fault, Callable[[], object]]] = []

    def end_until(limit_s: float) -> None:
        while ends and ends[0][0] <= limit_s:
            at_s, _, fault, end = heapq.heappop(ends)
            _sleep_until(began_s + at_s)
            end()
            fault.ended_s = history.now_s()

    try:
        for number, one in enumerate(planned):
            end_until(one.at_s)
            _sleep_until(began_s + one.at_s)
            fault = Fault(one.kind, one.kind, history.now_s())
            history.faults.append(fault)
            done = FAULTS[one.kind](world, random.Random(one.seed))
            fault.what, fault.ended_s = done.what, history.now_s()
            if done.end is not None:
                heapq.heappush(ends, (one.at_s + one.lasts_s, number, fault, done.end))
    finally:
        end_until(float("inf"))
    _sleep_until(began_s + seconds)


def _sleep_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))
