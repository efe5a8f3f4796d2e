"""Measure the bus and its references in one run: python -m tests.benchmarks

Usage: benchmarks [--quick] [--json FILE] [--only NAMES] [--rounds N]

Options:
  --quick       Short rounds and small scenarios: noisier; search-100k, and the scenarios whose
                sizes mean little when they are small, only if they are named.
  --json FILE   Also write everything that was measured, with the machine it was measured on.
  --only NAMES  Only the workloads whose names begin so; several with commas.
  --rounds N    Rounds of each workload [default: 5].
"""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from docopt import docopt

from agentbus import __version__
from agentbus.encoding import encode_pretty
from tests.benchmarks.figures import Figure, Sample
from tests.benchmarks.ratios import RATIOS, Ratio
from tests.benchmarks.scenarios import SCENARIOS, print_result, run_scenario
from tests.benchmarks.workloads import Workload, workloads

ROUND_S = 2.0
QUICK_ROUND_S = 0.4


def main(argv: list[str]) -> int:
    arguments = docopt(__doc__, argv)
    seconds = QUICK_ROUND_S if arguments["--quick"] else ROUND_S
    line = machine()
    print(" · ".join(f"{key} {value}" for key, value in line.items()))
    samples: dict[str, list[Sample]] = {}
    only, quick, rounds = arguments["--only"], arguments["--quick"], int(arguments["--rounds"])
    scenarios = [name for name in SCENARIOS if is_named(name, only) or (only is None and not quick)]
    if only is None or len(scenarios) < len(only.split(",")):
        with workloads(print) as found:
            chosen = choose(found, only, quick=quick)
            for _ in range(rounds):
                for workload in chosen:
                    samples.setdefault(workload.name, []).append(workload.measure(seconds))
    figures = {name: Figure.of(name, rounds) for name, rounds in samples.items()}
    if figures:
        _print_figures(figures)
    ratios = [ratio for ratio in RATIOS if ratio.known(figures)]
    _print_ratios(ratios, figures)
    results = []
    for name in scenarios:
        results.append(run_scenario(name, quick=quick, rounds=rounds))
        print_result(results[-1])
    if arguments["--json"]:
        document = {
            "machine": line,
            "figures": [figure.as_data() for figure in figures.values()],
            "ratios": {ratio.name: ratio.value(figures) for ratio in ratios},
            "scenarios": [result.as_data() for result in results],
        }
        Path(arguments["--json"]).write_text(encode_pretty(document))
    return 0


def choose(found: list[Workload], only: str | None, *, quick: bool) -> list[Workload]:
    """Those that are named; without names all, but in a quick run none that is slow to start."""
    if only is None:
        return [workload for workload in found if not (quick and workload.slow_to_start)]
    return [workload for workload in found if is_named(workload.name, only)]


def is_named(name: str, only: str | None) -> bool:
    return only is not None and name.startswith(tuple(only.split(",")))


def machine() -> dict[str, Any]:
    """Without it a figure means nothing."""
    return {
        "agentbus": __version__,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _print_figures(figures: dict[str, Figure]) -> None:
    print(f"\n{'':18}{'per second':>12}{'p50 ms':>10}{'p99 ms':>10}{'lag s':>10}")
    for figure in figures.values():
        print(
            f"{figure.name:18}{figure.per_second:12,.0f}"
            f"{figure.p50_us / 1000:10.2f}{figure.p99_us / 1000:10.2f}"
            + ("" if figure.lag_s is None else f"{figure.lag_s:10.2f}")
        )
    print("lag: from the end of a round until all that it accepted was projected, too")


def _print_ratios(ratios: list[Ratio], figures: dict[str, Figure]) -> None:
    print()
    for ratio in ratios:
        print(f"{ratio.name:44}{ratio.value(figures):8.2f}   goal: {ratio.goal}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
