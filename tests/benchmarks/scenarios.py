"""Scenarios: what is measured once per round on a bus of its own, because a rate says too little.

Each is a function of a `Scale` that prepares everything and yields one round of readings at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from statistics import median
from typing import Any, TypeAlias

from tests.benchmarks.jobs import measure_jobs
from tests.benchmarks.outages import measure_rebuild, measure_redis_killed
from tests.benchmarks.reading import measure_backlog, measure_fanout, measure_long_readers
from tests.benchmarks.scale import FULL, QUICK, Rounds, Scale
from tests.benchmarks.sizes import measure_channels, measure_sessions

Measure: TypeAlias = Callable[[Scale], Rounds]

SCENARIOS: dict[str, Measure] = {
    "fanout-32": measure_fanout,
    "backlog-100k": measure_backlog,
    "rebuild-100k": measure_rebuild,
    "redis-killed": measure_redis_killed,
    "long-readers-100k": measure_long_readers,
    "channels-5k": measure_channels,
    "sessions-200": measure_sessions,
    "jobs-100k": measure_jobs,
}

MUST_NOT_BE = ("lost", "twice", "out of order")

GOALS: dict[tuple[str, str], str] = {
    ("fanout-32", "deliveries/s"): "at least 30,000",
    ("rebuild-100k", "Redis killed: s to ready"): "under 8",
    ("rebuild-100k", "start after stop: s"): "under 1",
    ("redis-killed", "lost"): "0",
    ("redis-killed", "twice"): "0",
    ("long-readers-100k", "WAL MiB, readers on the bus"): "under 64",
    ("channels-5k", "accept p50 / 1 channel"): "at most 1.2",
    ("channels-5k", "threads beyond 1 channel's"): "at most 64",
    ("jobs-100k", "lost"): "0",
    ("jobs-100k", "twice"): "0",
    ("jobs-100k", "out of order"): "0",
    ("sessions-200", "daemon RSS MiB"): "under 250",
    ("sessions-200", "daemon CPU %"): "under 1",
    ("sessions-200", "adapter RSS MiB"): "under 80",
}


@dataclass(frozen=True, slots=True)
class Result:
    """The medians of all rounds; of what must not happen the worst round."""

    name: str
    readings: dict[str, float]
    rounds: tuple[Mapping[str, float], ...]

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def run_scenario(name: str, *, quick: bool, rounds: int) -> Result:
    scale = QUICK if quick else FULL
    with closing(SCENARIOS[name](scale)) as measured:
        found = list(islice(measured, rounds))
    readings = {
        key: (max if key in MUST_NOT_BE else median)(one[key] for one in found) for key in found[0]
    }
    return Result(name, readings, tuple(found))


def print_result(result: Result) -> None:
    for reading, value in result.readings.items():
        goal = GOALS.get((result.name, reading))
        shown = f"{value:14,.2f}" if value < 100 else f"{value:14,.0f}"
        print(f"{result.name:20}{reading:36}{shown}" + (f"   goal: {goal}" if goal else ""))
