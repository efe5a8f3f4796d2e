"""Both search engines over the same messages, as the daemon has them.

`Corpus` is a ledger with its SQLite index, and the same facts projected into a real Redis where it
can search. A question goes to every engine, and all must answer alike.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from actors.projections import projection_of
from agentbus.ids import Sequence
from agentbus.projection.search import ensure_index
from agentbus.projection.searching import RedisSearch
from agentbus.projection.streams import StreamWriter
from agentbus.rules.query import Query, SearchEngine, query_of
from agentbus.store.changes import Done, MemoryRemoved, MemoryRevised, MessageAppended
from agentbus.store.fts import TextSearch
from agentbus.store.reader import NO_END
from tests.redis_fixture import private_redis, redis_can_search
from tests.store.bus import Bus, Speaker

LIMIT_S = 20.0
"""No test is about being this slow."""


class Corpus:
    """Messages in a ledger, found by every engine there is."""

    def __init__(self, bus: Bus, writer: StreamWriter | None, engines: list[SearchEngine]) -> None:
        self.bus = bus
        self.engines = engines
        self._writer = writer
        self.sam = bus.attach("Sam")

    def send(self, content: str, speaker: Speaker | None = None, **fields: Any) -> Sequence:
        done = self.do((speaker or self.sam).send(content, **fields))
        return Sequence(done.result["sequence"])

    def do(self, change: Any) -> Done:
        """Commit a change and project it."""
        done = self.bus.done(change)
        if self._writer is not None:
            facts = [
                projection_of(fact, search=True)
                for fact in done.facts
                if isinstance(fact, MessageAppended | MemoryRevised | MemoryRemoved)
            ]
            self._writer.project(facts, self.bus.store.last_sequence)
        return done

    def remove(self, through: Sequence, documents: list[Sequence]) -> None:
        """Tell Redis of a removal that the ledger has made."""
        if self._writer is not None:
            (row,) = self.bus.reader().channels("general")
            self._writer.remove(row.channel_id, through, documents)

    def ask(self, query: Query, below: Sequence = NO_END, count: int = 2000) -> list[Sequence]:
        """What all engines find; they have to agree."""
        answers = {
            engine.name: engine.find(query, below, count, LIMIT_S) for engine in self.engines
        }
        first = next(iter(answers.values()))
        assert all(answer == first for answer in answers.values()), (query, answers)
        return first

    def find(self, text: str | None = None, **conditions: Any) -> list[Sequence]:
        return self.ask(query_of(text=text, **conditions))


@contextmanager
def corpus(folder: Path) -> Iterator[Corpus]:
    with ExitStack() as stack:
        bus = Bus(folder, sqlite_synchronous="normal")
        stack.callback(bus.close)
        assert bus.store.text_index.begin()
        while bus.store.text_index.fill(1000):
            pass
        text_search = TextSearch(bus.path)
        stack.callback(text_search.close)
        engines: list[SearchEngine] = [text_search]
        writer = None
        if redis_can_search():
            running = stack.enter_context(private_redis(search_engine="redis"))
            ensure_index(running.client)
            writer = StreamWriter(running.client, search=True)
            redis_search = RedisSearch(running.server.connect(), threading.Lock())
            stack.callback(redis_search.close)
            engines.append(redis_search)
        yield Corpus(bus, writer, engines)
