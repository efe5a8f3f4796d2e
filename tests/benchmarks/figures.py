"""What a round measured, and how rounds become one figure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one workload. `lag_s`: how long, after its end, until all was projected too."""

    per_second: float
    p50_us: float
    p99_us: float
    lag_s: float | None = None

    @classmethod
    def of_latencies(cls, latencies_s: list[float], elapsed_s: float) -> Sample:
        if not latencies_s:
            raise SystemExit(f"nothing was finished within {elapsed_s:g} s; take longer rounds")
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
    p50_us: float
    p99_us: float
    lag_s: float | None
    samples: tuple[Sample, ...]

    @classmethod
    def of(cls, name: str, samples: list[Sample]) -> Figure:
        lags_s = [sample.lag_s for sample in samples if sample.lag_s is not None]
        return cls(
            name,
            median(sample.per_second for sample in samples),
            median(sample.p50_us for sample in samples),
            median(sample.p99_us for sample in samples),
            median(lags_s) if lags_s else None,
            tuple(samples),
        )

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
