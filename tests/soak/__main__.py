"""Mixed load on a throw-away bus, and what its processes hold meanwhile: python -m tests.soak

Usage: soak [--minutes M] [--every S] [--retained N] [--csv FILE] [--svg FILE]

Options:
  --minutes M   How long [default: 30].
  --every S     Seconds between two samples [default: 5].
  --retained N  Messages that are there before, so that caches fill early [default: 20000].
  --csv FILE    Write all samples.
  --svg FILE    Draw them.

Exit code 1 when a series rose. Linux only.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from docopt import docopt

from agentbus.config import DATABASE_NAME
from agentbus.limits import MIB
from tests.benchmarks.__main__ import machine
from tests.benchmarks.filling import fill
from tests.bus_fixture import ThrowAwayBus
from tests.soak.flatness import Verdict, judge
from tests.soak.mixed_load import MixedLoad, run_for
from tests.soak.plot import svg
from tests.soak.sampling import Sampler

Samples = dict[str, list[float]]

START_WITHIN_S = 300.0
TIME = "seconds"
_NOT_JUDGED = ("Redis RSS MiB", "database MiB", "Redis dataset MiB", "messages retained")
"""What grows with the messages that are retained, up to the budgets."""


def main(argv: list[str]) -> int:
    arguments = docopt(__doc__, argv)
    print(" · ".join(f"{key} {value}" for key, value in machine().items()))
    minutes = float(arguments["--minutes"])
    with running_bus(int(arguments["--retained"])) as bus:
        samples, done = soak(bus, minutes * 60, float(arguments["--every"]))
    print(", ".join(f"{name} {count}" for name, count in sorted(done.items())))
    times_s = samples.pop(TIME)
    if arguments["--csv"]:
        _write_csv(Path(arguments["--csv"]), times_s, samples)
    if arguments["--svg"]:
        line = machine()
        title = f"{minutes:g} min of mixed load, {line['cores']} cores, Python {line['python']}"
        Path(arguments["--svg"]).write_text(svg(title, times_s, samples))
    verdicts = [judge(name, times_s, values) for name, values in samples.items()]
    _print_verdicts(verdicts)
    return int(any(not one.flat for one in verdicts if one.name not in _NOT_JUDGED))


@contextmanager
def running_bus(retained: int) -> Iterator[ThrowAwayBus]:
    """A ready bus with messages from before."""
    bus = ThrowAwayBus(log_level="warn")
    try:
        bus.data_directory.mkdir()
        fill(bus.data_directory / DATABASE_NAME, retained)
        bus.start(START_WITHIN_S)
        yield bus
    finally:
        bus.close()


def soak(bus: ThrowAwayBus, seconds: float, every_s: float) -> tuple[Samples, dict[str, int]]:
    """All samples, series by series, and how often each activity has done its step."""
    samples: Samples = {}
    with MixedLoad(bus) as load, bus.client() as client:
        daemon, redis_pid = bus.daemon, bus.redis_pid()
        assert daemon is not None
        assert redis_pid is not None

        def status(*path: str) -> float:
            value = client.request("status", {}, 10.0)
            for key in path:
                value = value[key]
            return float(value)

        database = bus.data_directory / DATABASE_NAME
        wal = database.with_name(f"{DATABASE_NAME}-wal")
        sampler = Sampler(
            {"daemon": daemon.pid, "Redis": redis_pid, "adapter": load.adapters[0].process.pid},
            {
                "WAL MiB": lambda: wal.stat().st_size / MIB,
                "database MiB": lambda: database.stat().st_size / MIB,
                "Redis dataset MiB": lambda: status("budgets", "redis", "used_bytes") / MIB,
                "messages retained": lambda: status("store", "messages"),
            },
        )

        def look(at_s: float) -> None:
            if row := sampler.row(at_s):
                for name, value in {TIME: at_s, **row}.items():
                    samples.setdefault(name, []).append(value)

        run_for(load, seconds, every_s, look)
        load.check()
        return samples, dict(load.done)


def _write_csv(path: Path, times_s: list[float], samples: Samples) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([TIME, *samples])
        for row in zip(times_s, *samples.values(), strict=True):
            writer.writerow([f"{value:.3f}".rstrip("0").rstrip(".") for value in row])


def _print_verdicts(verdicts: list[Verdict]) -> None:
    print(f"\n{'':24}{'mean':>12}{'largest':>12}{'rise':>10}")
    for one in verdicts:
        word = "flat" if one.flat else "NOT FLAT"
        if one.name in _NOT_JUDGED:
            word = "not judged: up to its budget"
        print(f"{one.name:24}{one.mean:12,.1f}{one.largest:12,.1f}{one.rise:10,.2f}  {word}")
    print("rise: of the fitted line, from the end of the warm-up to the end of the run")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
