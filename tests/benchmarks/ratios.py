"""The ratios that a run is judged by, and what is aimed at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tests.benchmarks.figures import Figure


@dataclass(frozen=True, slots=True)
class Ratio:
    """`upper` to `lower`, of the latency or of the rate."""

    upper: str
    lower: str
    of: Literal["p50_us", "per_second"]
    goal: str

    @property
    def name(self) -> str:
        return f"{self.upper} / {self.lower}, {'p50' if self.of == 'p50_us' else 'per second'}"

    def known(self, figures: Mapping[str, Figure]) -> bool:
        return self.upper in figures and self.lower in figures

    def value(self, figures: Mapping[str, Figure]) -> float:
        return float(getattr(figures[self.upper], self.of) / getattr(figures[self.lower], self.of))


RATIOS = (
    Ratio("accept-1", "floor-1", "p50_us", "at most 2.5"),
    Ratio("accept-1", "redis-1", "p50_us", "none"),
    Ratio("accept-1", "simplebroker-1", "per_second", "at least 10"),
    Ratio("accept-8", "redis-8", "per_second", "none"),
    Ratio("accept-8", "simplebroker-8", "per_second", "at least 10"),
    Ratio("accept-8x16", "floor-64", "per_second", "none"),
    Ratio("accept-8x16", "redis-8x16", "per_second", "none"),
    Ratio("accept-8x16", "simplebroker-8", "per_second", "at least 10"),
    Ratio("deliver", "accept-1", "p50_us", "at most 1.5"),
    Ratio("peer-roundtrip", "accept-1", "p50_us", "none"),
    Ratio("mcp-1", "mcp-empty", "p50_us", "at most 1.5"),
    Ratio("mcp-1", "accept-1", "p50_us", "none"),
)
