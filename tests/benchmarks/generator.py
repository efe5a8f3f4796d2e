"""Starting a load generator: what it is told, and what it has measured."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from agentbus.encoding import decode_trusted, encode
from tests.benchmarks.figures import Sample
from tests.benchmarks.load import Load
from tests.bus_fixture import ROOT


def generate(load: Load, *options: str, generator: str = "load") -> Sample:
    """Run that module of `tests.benchmarks` to its end."""
    with start_generator(load, *options, generator=generator) as process:
        out, _ = process.communicate()
    if process.returncode:
        raise SystemExit("the load generator failed")
    return Sample(**decode_trusted(out))


def start_generator(load: Load, *options: str, generator: str = "load") -> subprocess.Popen[bytes]:
    module = f"tests.benchmarks.{generator}"
    argv = [sys.executable, "-m", module, *options, encode(asdict(load)).decode()]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE)


def load_of(
    socket_path: Path,
    *,
    clients: int = 1,
    in_flight: int = 1,
    seconds: float = 0.0,
    channels: list[str] | None = None,
) -> Load:
    """A load of a bus; its own channel unless others are named."""
    load = Load("bus", str(socket_path), clients, in_flight, seconds)
    if channels is not None:
        load = Load("bus", str(socket_path), clients, in_flight, seconds, channels)
    return load
