"""Bringing a living Redis into step with SQLite, once: what it misses, or all of it.

Owns the choice of what is read, the progress that is told, and what follows when it does not fit
the budget. Starts no Redis and removes nothing from SQLite: whoever fills has a connection to one
that answers, and cleanup makes the room. Runs on the projector's thread, while the ledger is
fenced, so that SQLite stands still.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from typing import assert_never

from actors.base import Address
from actors.cleanup_messages import CatchUpDidNotFit
from actors.health import Work
from actors.messages import CatchUp
from actors.projections import memories, memory_changes, messages, messages_by_channel
from actors.supervisor_messages import CatchUpProgressed, SupervisorMessage
from agentbus.ids import BusId, ChannelId, Sequence
from agentbus.projection.connection import Client, dataset_bytes
from agentbus.projection.errors import ProjectionFullError
from agentbus.projection.rebuild import (
    Progress,
    Rebuild,
    Replay,
    UpToDate,
    check_filled,
    clear,
    make_up_removals,
    needs,
    rebuild,
    replay,
)
from agentbus.projection.search import ensure_index
from agentbus.projection.server import RedisServer
from agentbus.projection.streams import StreamWriter
from agentbus.store.reader import Reader

_log = logging.getLogger(__name__)

PROGRESS_EVERY_S = 0.2


@dataclass(slots=True)
class Filling:
    """One catch-up. `go_on` is called between its steps; what it raises ends them.

    Everything may raise ProjectionError; the next catch-up begins with what is there then.
    """

    order: CatchUp
    bus_id: BusId
    store: Reader
    server: RedisServer
    client: Client
    writer: StreamWriter
    supervisor: Address[SupervisorMessage]
    go_on: Callable[[], None]
    _: KW_ONLY
    search: bool  # this Redis is the search engine too
    _filled: float = field(default=1.0, init=False)  # how much of a rebuild is done

    def fill_within_budget(self) -> bool:
        """False when cleanup has to make room first; it has been told how much."""
        try:
            self._fill()
        except ProjectionFullError as error:
            size_bytes = dataset_bytes(self.client)
            if size_bytes < self.server.budget_bytes:
                _log.error("Redis is full below its budget: %s", error.message)
                self.server.lift_backstop()
                self._fill()
                return True
            _log.warning("%s; cleanup makes room", error.message)
            # What is to be removed would not fit into it either.
            clear(self.client, self.go_on)
            retained_bytes = self.store.retained_bytes()
            self.supervisor.tell(
                CatchUpDidNotFit(self.order.epoch, size_bytes, self._filled, retained_bytes)
            )
            return False
        return True

    def _fill(self) -> None:
        removed = {row.channel_id: row.removed_through for row in self.store.channels()}
        need = needs(
            self.client,
            self.bus_id,
            self.order.through,
            self.store.purged_through(),
            search=self.search,
        )
        if isinstance(need, Rebuild):
            _log.info("rebuilding the projection: %s", need.reason)
            self.supervisor.tell(CatchUpProgressed(self.order.epoch, "clearing Redis"))
            clear(self.client, self.go_on)
        if self.search:
            ensure_index(self.client)
        match need:
            case UpToDate():
                make_up_removals(self.writer, removed)
            case Replay(after):
                self._replay(after, removed)
            case Rebuild():
                self._rebuild(removed)
            case _:
                assert_never(need)
        check_filled(self.client, self.bus_id)  # it may have been emptied meanwhile

    def _replay(self, after: Sequence, removed: dict[ChannelId, Sequence]) -> None:
        replay(
            self.writer,
            memory_changes(self.store, after, search=self.search),
            messages(self.store, after, search=self.search),
            self.order.through,
            removed,
            self.order.through - after,
            self._progress("replaying what Redis misses"),
        )

    def _rebuild(self, removed: dict[ChannelId, Sequence]) -> None:
        tell = self._progress("filling Redis")

        def progress(done: int, total: int) -> None:
            tell(done, total)
            self._filled = done / max(total, done, 1)

        self._filled = 0.0
        rebuild(
            self.writer,
            self.bus_id,
            chain(
                memories(self.store, Sequence(0), search=self.search),
                messages_by_channel(self.store, search=self.search),
            ),
            self.order.through,
            removed,
            self.store.counts()["messages"],
            progress,
        )

    def _progress(self, work: Work) -> Progress:
        told_s = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal told_s
            self.go_on()
            now_s = time.monotonic()
            if now_s - told_s >= PROGRESS_EVERY_S:
                told_s = now_s
                self.supervisor.tell(CatchUpProgressed(self.order.epoch, work, done, total))

        return progress
