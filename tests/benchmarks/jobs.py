"""A job of many events over the bus: its parent is killed in the middle, a reader comes late."""

from __future__ import annotations

from tests.benchmarks.scale import Rounds, Scale
from tests.jobs.many import Figures, measure
from tests.jobs.servers import bus_server

WITHIN_S = 3600.0
AHEAD = "?ahead=31"


def measure_jobs(scale: Scale) -> Rounds:
    """One emitter, each event acknowledged before the next; then with others on their way."""
    while True:
        with bus_server(log_level="warn") as bus:
            acknowledged = measure(bus.url, scale.messages, WITHIN_S)
            ahead = measure(bus.url + AHEAD, scale.messages, WITHIN_S)
        both = (acknowledged, ahead)
        yield {
            "events/s": acknowledged.emitted_per_s,
            "events/s, 31 ahead": ahead.emitted_per_s,
            "late reader: events/s": ahead.read_per_s,
            "lost": sum(_lost(figures, scale.messages + 2) for figures in both),
            "twice": sum(len(figures.seqs) - len(set(figures.seqs)) for figures in both),
            "out of order": sum(figures.seqs != sorted(figures.seqs) for figures in both),
        }


def _lost(figures: Figures, count: int) -> int:
    return count - len(set(figures.seqs))
