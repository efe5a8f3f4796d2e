"""Random faults against a real bus, and a verdict on every id: python -m tests.crash

Usage: crash [--seed SEED] [--minutes M | --schedules K] [--seconds S] [--parallel P]
             [--faults KINDS] [--json FILE] [--keep FOLDER]

Options:
  --seed SEED     What everything is drawn from; printed, and drawn itself when it is left out.
  --minutes M     Go on with further schedules for so long.
  --schedules K   How many schedules [default: 1]; schedule n has the seed SEED/n.
  --seconds S     How long the faults of one schedule go on [default: 20].
  --parallel P    Schedules at the same time, each on a bus of its own [default: 1].
  --faults KINDS  Only these kinds of faults; several with commas.
  --json FILE     Also write every schedule with its counts.
  --keep FOLDER   Write the history and the logs of each schedule that is not clean there.

A single schedule is repeated with its own seed: --seed SEED/n. Exits with 1 unless all were clean.
"""

from __future__ import annotations

import itertools
import secrets
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from docopt import docopt

from agentbus.encoding import encode_pretty
from tests.crash.faults import FAULTS
from tests.crash.run import Report, run_schedule


def main(argv: list[str]) -> int:
    arguments = docopt(__doc__, argv)
    kinds = tuple((arguments["--faults"] or ",".join(FAULTS)).split(","))
    unknown = set(kinds) - FAULTS.keys()
    if unknown:
        sys.stderr.write(f"no fault {', '.join(sorted(unknown))}; known: {', '.join(FAULTS)}\n")
        return 2
    seed = arguments["--seed"] or secrets.token_hex(4)
    print(f"seed {seed}", flush=True)
    seeds = _seeds(seed, arguments["--minutes"], int(arguments["--schedules"]))
    seconds, parallel = float(arguments["--seconds"]), int(arguments["--parallel"])
    keep = Path(arguments["--keep"]) if arguments["--keep"] else None
    total: Counter[str] = Counter()
    documents = []
    for report in _reports(seeds, seconds, kinds, parallel):
        if isinstance(report, BaseException):  # of the checker; nothing is known of the bus then
            traceback.print_exception(report)
            total["schedules"] += 1
            continue
        print(report.line(), flush=True)
        if report.verdict.findings:
            print(report.details(), flush=True)
        if not report.verdict.clean and keep is not None:
            _keep(report, keep)
        total += report.verdict.counts
        total["schedules"] += 1
        total["clean"] += report.verdict.clean
        documents.append(_document(report))
    print(f"{total['clean']} of {total['schedules']} schedules clean; all: {dict(total)}")
    if arguments["--json"]:
        Path(arguments["--json"]).write_text(encode_pretty({"seed": seed, "runs": documents}))
    return 0 if total["clean"] == total["schedules"] else 1


def _seeds(seed: str, minutes: str | None, schedules: int) -> Iterator[str]:
    if minutes is not None:
        until_s = time.monotonic() + 60 * float(minutes)
        numbers: Iterator[int] = itertools.takewhile(
            lambda _: time.monotonic() < until_s, itertools.count()
        )
    elif schedules == 1:
        yield seed
        return
    else:
        numbers = iter(range(schedules))
    for number in numbers:
        yield f"{seed}/{number}"


def _reports(
    seeds: Iterator[str], seconds: float, kinds: tuple[str, ...], parallel: int
) -> Iterator[Report | BaseException]:
    """As they end; a new one begins only when there is a place for it."""
    context = get_context("spawn")  # a fork would take the threads' locks along
    with ProcessPoolExecutor(parallel, mp_context=context, max_tasks_per_child=1) as pool:
        running: set[Future[Report]] = set()
        for seed in seeds:
            running.add(pool.submit(run_schedule, seed, seconds, kinds))
            if len(running) == parallel:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from map(_outcome, done)
        yield from map(_outcome, running)


def _outcome(future: Future[Report]) -> Report | BaseException:
    return future.exception() or future.result()


def _document(report: Report) -> dict[str, Any]:
    return {
        "seed": report.seed,
        "took_s": round(report.took_s, 1),
        "counts": dict(report.verdict.counts),
        "faults": [fault.what for fault in report.history.faults],
        "findings": [[one.kind, one.subject, one.text] for one in report.verdict.findings],
    }


def _keep(report: Report, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = report.seed.replace("/", "-")
    (folder / f"{name}.json").write_text(encode_pretty(report.history.as_data()))
    (folder / f"{name}.log").write_text(report.log)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
