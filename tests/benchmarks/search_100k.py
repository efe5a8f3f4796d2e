"""Searches over 100,000 messages through a daemon, on both engines.

The messages are committed straight into the database; then a daemon of each engine starts on a copy
of it and makes its index, and one session searches: common words and rare ones, phrases, compounds,
beginnings, and fields beside them, a page of the default size each time.

Nothing of this is there before the first round of an engine, as it takes its time.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentbus.config import DATABASE_NAME
from tests.benchmarks.content import contents
from tests.benchmarks.figures import Sample
from tests.benchmarks.filling import AGENTS, CHANNELS, fill
from tests.bus_fixture import ThrowAwayBus

MESSAGES = 100_000
START_WITHIN_S = 300.0


class SearchBuses:
    """A bus of each engine with the same messages, for as many rounds as are asked for."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self._folder = Path(tempfile.mkdtemp(prefix="ab-", dir="/tmp"))
        self._buses: dict[str, ThrowAwayBus] = {}
        self._questions = _questions(messages)

    def measure(self, engine: str, seconds: float) -> Sample:
        if engine not in self._buses:
            self._start(engine)
        latencies_s = []
        with self._buses[engine].attach() as session:
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                question = next(self._questions)
                start_s = time.perf_counter()
                answer = session.call("search", **question)
                latencies_s.append(time.perf_counter() - start_s)
                assert answer["engine"] == engine
        return Sample.of_latencies(latencies_s, seconds)

    def close(self) -> None:
        for bus in self._buses.values():
            bus.close()
        shutil.rmtree(self._folder)

    def _start(self, engine: str) -> None:
        database = self._folder / DATABASE_NAME
        if not database.exists():
            fill(database, self._messages)
        bus = self._buses[engine] = ThrowAwayBus(search_engine=engine, log_level="warn")
        bus.data_directory.mkdir()
        shutil.copy(database, bus.data_directory / DATABASE_NAME)
        bus.start(START_WITHIN_S)


def _questions(messages: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(7)
    words = [word for text in contents()[:64] for word in text.split()[1:-1] if len(word) > 2]
    while True:
        number = chance.randrange(messages)
        one, other = chance.choices(words, k=2)
        yield {"text": one}
        yield {"text": f"{one} {other}"}
        yield {"text": f"job{number}"}
        yield {"text": f"callWorker{number % 1000}", "sender": f"agent{number % AGENTS}"}
        yield {"text": one, "channel": f"channel{number % CHANNELS}"}
        yield {"text": f'"{one} {other}"'}
        yield {"text": f"{one[:4]}*", "tags": [f"tag{number % 100}"]}
        yield {"sender": f"agent{number % AGENTS}", "channel": f"channel{number % CHANNELS}"}
