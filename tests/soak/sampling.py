"""What a process holds at a moment, read from /proc, so that looking costs it nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentbus.limits import KIB, MIB

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessSample:
    fds: int
    threads: int
    rss_bytes: int
    cpu_s: float
    """Used since the process began, in user and kernel mode."""


def sample_process(pid: int) -> ProcessSample:
    """Linux only. Raises OSError when the process is gone."""
    folder = Path(f"/proc/{pid}")
    status = dict(
        line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line
    )
    after_name = (folder / "stat").read_text().rpartition(")")[2].split()
    return ProcessSample(
        fds=len(os.listdir(folder / "fd")),
        threads=int(status["Threads"]),
        rss_bytes=int(status["VmRSS"].split()[0]) * KIB,
        cpu_s=(int(after_name[11]) + int(after_name[12])) / _TICKS_PER_S,
    )


class Sampler:
    """One row of named numbers per call, of several processes and other sources.

    Columns of a process `p`: `p fds`, `p threads`, `p RSS MiB`, `p CPU %` (of one core, since the
    last row; the first row has none and is not given out).
    """

    def __init__(self, pids: Mapping[str, int], others: Mapping[str, Callable[[], float]]) -> None:
        self._pids = dict(pids)
        self._others = dict(others)
        self._last: dict[str, ProcessSample] = {}
        self._last_s = 0.0

    def row(self, now_s: float) -> dict[str, float]:
        """`now_s` is any clock that goes on; empty the first time."""
        row: dict[str, float] = {}
        for name, pid in self._pids.items():
            sample, last = sample_process(pid), self._last.get(name)
            self._last[name] = sample
            if last is None:
                continue
            row[f"{name} fds"] = sample.fds
            row[f"{name} threads"] = sample.threads
            row[f"{name} RSS MiB"] = sample.rss_bytes / MIB
            row[f"{name} CPU %"] = 100 * (sample.cpu_s - last.cpu_s) / (now_s - self._last_s)
        self._last_s = now_s
        if row:
            row |= {name: measure() for name, measure in self._others.items()}
        return row
