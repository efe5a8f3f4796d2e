"""What a round measured, and how rounds become one figure."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one workload. Latencies are absent where only a rate was measured."""

    per_second: float
    p50_us: float | None = None
    p99_us: float | None = None

    @classmethod
    def of_latencies(cls, latencies_s: list[float], elapsed_s: float) -> Sample:
        ordered = sorted(latencies_s)
        return cls(
            per_second=len(ordered) / elapsed_s,
            p50_us=_quantile(ordered, 0.50) * 1e6,
            p99_us=_quantile(ordered, 0.99) * 1e6,
        )


@dataclass(frozen=True, slots=True)
class Figure:
    """The medians over all rounds of one workload."""

    name: str
    per_second: float
    p50_us: float | None
    p99_us: float | None
    samples: tuple[Sample, ...]

    @classmethod
    def of(cls, name: str, samples: list[Sample]) -> Figure:
        return cls(
            name,
            statistics.median(sample.per_second for sample in samples),
            _median([sample.p50_us for sample in samples]),
            _median([sample.p99_us for sample in samples]),
            tuple(samples),
        )

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
