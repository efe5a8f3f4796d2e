"""Searches over 100,000 messages through a daemon, on both engines: p50 and p99.

    python -m tests.benchmarks.search_100k [SECONDS]

The messages are committed straight into the database; then a daemon of each engine starts on a copy
of it and makes its index, and one session searches: common words and rare ones, phrases, compounds,
beginnings, and fields beside them, a page of the default size each time.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from actors.system import DATABASE_NAME
from agentbus.clock import SystemClock
from agentbus.config import load_config
from agentbus.identity import Attachment, SenderBinding, SessionIdentity
from agentbus.protocol.operations import CreateChannel, Send
from agentbus.rules.receipts import fingerprint
from agentbus.store.changes import BindSession, Done, MakeChannel, SendMessage
from agentbus.store.ledger import LedgerStore
from tests.benchmarks.content import contents
from tests.benchmarks.figures import Sample
from tests.bus_fixture import ThrowAwayBus
from tests.redis_fixture import redis_can_search

MESSAGES = 100_000
CHANNELS = 10
AGENTS = 10
BATCH = 500
START_WITHIN_S = 300.0


def measure_search(seconds: float, messages: int = MESSAGES) -> dict[str, Sample]:
    """A sample of each engine that there is."""
    engines = ("redis", "sqlite") if redis_can_search() else ("sqlite",)
    folder = Path(tempfile.mkdtemp(prefix="ab-", dir="/tmp"))
    try:
        database = folder / DATABASE_NAME
        _fill(database, messages)
        return {engine: _measure(engine, database, messages, seconds) for engine in engines}
    finally:
        shutil.rmtree(folder)


def _fill(database: Path, messages: int) -> None:
    config = load_config(database.parent / "no-config.json")
    with closing(LedgerStore(database, config, SystemClock())) as store:
        speakers = []
        for number in range(AGENTS):
            identity = SessionIdentity("test", f"conversation {number}", None)
            (done,) = store.apply([BindSession(f"agent{number}", identity, frozenset())])
            assert isinstance(done, Done)
            bound = done.result
            sender = SenderBinding(
                agent=bound.agent,
                agent_id=bound.agent_id,
                session_id=bound.session_id,
                application=bound.identity.application,
                child=None,
                display_name=bound.display_name,
                repository=None,
            )
            speakers.append((Attachment(bound.session_id, bound.generation), sender))
        attachment, _ = speakers[0]
        store.apply(
            [MakeChannel(CreateChannel(f"channel{n}"), attachment) for n in range(CHANNELS)]
        )
        sends = _sends(speakers, messages)
        while batch := list(islice(sends, BATCH)):
            assert all(isinstance(outcome, Done) for outcome in store.apply(batch))


def _sends(speakers: list[tuple[Attachment, SenderBinding]], messages: int) -> Iterator[Any]:
    texts = contents()
    for number in range(messages):
        attachment, sender = speakers[number % AGENTS]
        operation = Send(
            f"channel{number * 7 % CHANNELS}",
            f"{texts[number % len(texts)]} job{number} callWorker{number % 1000}",
            tags=(f"tag{number % 100}",),
        )
        yield SendMessage(
            operation, f"op-{number}", fingerprint(operation), sender, attachment, rate_ok=True
        )


def _measure(engine: str, database: Path, messages: int, seconds: float) -> Sample:
    bus = ThrowAwayBus(search_engine=engine, log_level="warn")
    try:
        bus.data_directory.mkdir()
        shutil.copy(database, bus.data_directory / DATABASE_NAME)
        bus.start(START_WITHIN_S)
        with bus.attach() as session:
            questions = _questions(messages)
            latencies_s = []
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                question = next(questions)
                start_s = time.perf_counter()
                answer = session.call("search", **question)
                latencies_s.append(time.perf_counter() - start_s)
                assert answer["engine"] == engine
        return Sample.of_latencies(latencies_s, seconds)
    finally:
        bus.close()


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


def main(arguments: list[str]) -> None:
    seconds = float(arguments[0]) if arguments else 10.0
    print(f"{'':18}{'per second':>12}{'p50 ms':>10}{'p99 ms':>10}")
    for engine, sample in measure_search(seconds).items():
        assert sample.p50_us is not None
        assert sample.p99_us is not None
        print(
            f"{'search-100k ' + engine:18}{sample.per_second:12,.0f}"
            f"{sample.p50_us / 1000:10.2f}{sample.p99_us / 1000:10.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
