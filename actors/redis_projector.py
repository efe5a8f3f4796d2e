"""The projection: everything that is written to Redis, and the Redis process itself.

Owns the Redis write connection and the private server, on its own thread, which may block on both
within their time limits. Reads SQLite read-only to catch up. Never decides whether a message is
accepted: what it is told has been committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import assert_never

from actors.base import Address, BusActor, describe_failure
from actors.channel import ChannelDirectory
from actors.cleanup_messages import (
    CapacityReached,
    LiftBackstop,
    MeasureRedis,
    RedisMeasured,
    WatchCapacity,
)
from actors.filling import Filling
from actors.messages import (
    CatchUp,
    CheckRedis,
    CleanupMessage,
    Committed,
    LedgerMessage,
    NoticePosted,
    Projected,
    ProjectionAdvanced,
    ProjectorMessage,
    StartRedis,
)
from actors.projections import ContentFact, projection_of
from actors.supervisor_messages import (
    CatchUpFailed,
    CatchUpProgressed,
    CaughtUp,
    Crashed,
    ProjectionLost,
    RedisRefused,
    RedisStarted,
    SupervisorMessage,
)
from agentbus.failpoints import reach
from agentbus.ids import NO_EPOCH, BusId, ChannelId, SessionId
from agentbus.limits import MIB
from agentbus.projection.connection import Client, dataset_bytes
from agentbus.projection.errors import ProjectionError, RedisUnusableError
from agentbus.projection.launching import RedisInfo
from agentbus.projection.rebuild import check_filled
from agentbus.projection.search import reclaim
from agentbus.projection.server import RedisServer
from agentbus.projection.streams import StreamWriter
from agentbus.rules.query import EngineName
from agentbus.store.changes import Fact, MessageAppended, MessagesRemoved
from agentbus.store.connection import DatabaseUnusable
from agentbus.store.fts import require_fts5
from agentbus.store.jobs.changes import ChannelRemoved
from agentbus.store.reader import Reader

_log = logging.getLogger(__name__)

TELL_BYTES = MIB
"""How much is projected before the ledger hears of it: waking it for each message costs sends more
than knowing it exactly is worth."""

PIPELINE_ENTRIES = 512
"""Messages of one pipelined call: bounds its memory and how long other work waits."""

MEASURE_SHARE = 128
"""The dataset is measured after every so small a share of its budget in envelopes; with all that
the search index adds it cannot get far beyond the budget in between."""

RECLAIM_S = 2.0
PATIENT_RECLAIM_S = 30.0
"""How long a measurement waits for the index to give memory back; measured: 1.5 s for 40 MiB."""


@dataclass(frozen=True, slots=True)
class ProjectorStatistics:
    """Counters since start."""

    projected: int
    pipelines: int
    recoveries: int


class _StopWaits(Exception):
    """Catching up was given up for a stop."""


class RedisProjectorActor(BusActor[ProjectorMessage]):
    """Projects committed facts in commit order.

    1. One pipelined call per mailbox drain; a channel hears of a head only when Redis holds it.
    2. After any failure nothing more is projected until `CatchUp`: SQLite has it all, and the
       streams must not get holes.
    3. Only our own instance is ever cleared, restarted or stopped.
    4. A stop waits for one command of Redis at most: Redis ends with the daemon, so whatever it
       lacks by then is not worth a moment.
    """

    def __init__(
        self,
        server: RedisServer,
        open_store: Callable[[], Reader],
        channels: ChannelDirectory,
        supervisor: Address[SupervisorMessage],
    ) -> None:
        super().__init__()
        self._server = server
        self._open_store = open_store
        self._channels = channels
        self._supervisor = supervisor
        self._store: Reader
        self._bus_id: BusId
        self._info: RedisInfo
        self._search_engine: EngineName
        self._client: Client
        self._connected = False  # until Redis has started
        self._writer: StreamWriter
        self._lost = True  # until the first CatchUp
        self._pending: list[Fact] = []
        self._pending_bytes = 0
        self._untold_bytes = 0  # projected, and the ledger has not heard of it
        self._ledger: Address[LedgerMessage] | None = None
        self._epoch = NO_EPOCH
        self._watcher: Address[CleanupMessage] | None = None
        self._unmeasured_bytes = 0
        self._projected = 0
        self._pipelines = 0
        self._recoveries = 0

    def on_start(self) -> None:
        self._store = self._open_store()
        self._bus_id = self._store.bus_id()

    def on_stop(self) -> None:
        with closing(self._store):
            if self._connected:
                self._client.close()
            # What is not projected yet is in SQLite. Redis keeps nothing that an orderly end would
            # save, and one that hangs would not hear of it.
            self._server.stop(grace_s=0)

    @property
    def search_engine(self) -> EngineName:
        """What this run of the daemon searches with. Any thread may ask, once Redis has started."""
        return self._search_engine

    def projector_statistics(self) -> ProjectorStatistics:
        """Whole numbers; any thread may ask."""
        return ProjectorStatistics(self._projected, self._pipelines, self._recoveries)

    def receive(self, message: ProjectorMessage) -> None:
        if self.stop_waits():
            return  # it would only keep the stop waiting
        try:
            self._take(message)
        except Exception as error:
            # Nothing here is the only copy: whatever went wrong, filling Redis again mends it.
            _log.error("projection failed unexpectedly: %s", describe_failure(error))
            self._lose(f"unexpected {type(error).__name__}")

    def _take(self, message: ProjectorMessage) -> None:
        match message:
            case StartRedis():
                self._start_redis()
            case Committed(facts, _, size_bytes):
                if not self._lost:
                    self._pending.extend(facts)
                    self._pending_bytes += size_bytes
            case CatchUp():
                self._catch_up(message)
            case CheckRedis():
                self._check()
            case WatchCapacity(watcher):
                self._watcher = watcher
            case MeasureRedis(patient):
                self._measure(PATIENT_RECLAIM_S if patient else RECLAIM_S)
            case LiftBackstop():
                self._server.lift_backstop()
            case _:
                assert_never(message)
        if self.mailbox_is_empty() or len(self._pending) >= PIPELINE_ENTRIES:
            self._project()

    def _start_redis(self) -> None:
        try:
            self._info = self._server.start(self._bus_id, self._go_on)
            self._search_engine = "redis" if self._info.search else "sqlite"
            if self._search_engine == "sqlite":
                require_fts5()
            self._connect()
        except _StopWaits:
            _log.info("stopped while Redis started")
        except (ProjectionError, DatabaseUnusable) as error:
            self._supervisor.tell(RedisRefused(error))
        except Exception as error:
            _log.error("Redis could not be started: %s", describe_failure(error))
            self._supervisor.tell(Crashed(self.name, error))
        else:
            self._supervisor.tell(RedisStarted(self._search_engine))

    # --- projecting ---

    def _project(self) -> None:
        if self._lost or not self._pending:
            return
        facts, self._pending = self._pending, []
        size_bytes, self._pending_bytes = self._pending_bytes, 0
        try:
            self._write(facts)
        except ProjectionError as error:
            self._lose(error.message)
            return
        self._untold_bytes += size_bytes
        if self._untold_bytes >= TELL_BYTES and self._ledger is not None:
            self._ledger.tell(ProjectionAdvanced(self._epoch, self._untold_bytes))
            self._untold_bytes = 0
        self._unmeasured_bytes += size_bytes
        if self._unmeasured_bytes * MEASURE_SHARE >= self._server.budget_bytes:
            self._watch_capacity()

    def _write(self, facts: list[Fact]) -> None:
        """Facts in order: runs of new content in one call each, removals between them."""
        content: list[ContentFact] = []
        for fact in facts:
            if isinstance(fact, ContentFact):
                content.append(fact)
            elif isinstance(fact, MessagesRemoved):
                self._write_content(content)
                content = []
                reach("before_removal")
                self._writer.remove(fact.channel_id, fact.through, fact.sequences)
            elif isinstance(fact, ChannelRemoved):
                self._write_content(content)
                content = []
                self._writer.drop(fact.channel_id, fact.through)
                self._channels.forget(fact.channel_id)
        self._write_content(content)

    def _write_content(self, facts: list[ContentFact]) -> None:
        if not facts:
            return
        search = self._info.search
        self._writer.project(
            [projection_of(fact, search=search) for fact in facts], facts[-1].sequence
        )
        reach("after_projection")
        self._projected += len(facts)
        self._pipelines += 1
        for channel_id, projected in _heads(facts).items():
            self._channels.address(channel_id).tell(projected)
        for fact in facts:
            if not isinstance(fact, MessageAppended):
                self._channels.address(fact.channel_id).tell(NoticePosted(fact))

    def _check(self) -> None:
        if self._lost:
            return
        try:
            # Over the connection that there is: where no descriptor is left for another, Redis is
            # not lost.
            check_filled(self._client, self._bus_id)
            self._server.check_place()
        except ProjectionError as error:
            self._lose(error.message)
            return
        self._watch_capacity()

    def _watch_capacity(self) -> None:
        """Tell when the dataset has reached its budget."""
        self._unmeasured_bytes = 0
        if self._watcher is None:
            return
        try:
            is_full = dataset_bytes(self._client) >= self._server.budget_bytes
        except ProjectionError as error:
            self._lose(error.message)
            return
        if is_full:
            self._watcher.tell(CapacityReached("redis"))

    def _measure(self, reclaim_s: float) -> None:
        """Answered whatever happens: mutations may wait for it."""
        size_bytes: int | None = None
        try:
            self._project()
            if not self._lost:
                if self._info.search:
                    reclaim(self._server.socket_path, reclaim_s, self._go_on)
                size_bytes = dataset_bytes(self._client)
        except _StopWaits:
            _log.info("stopped while Redis was measured")
        except ProjectionError as error:
            self._lose(error.message)
        finally:
            if self._watcher is not None:
                self._watcher.tell(RedisMeasured(size_bytes))

    def _lose(self, reason: str) -> None:
        """Stop projecting; the supervisor fences the bus and asks to catch up."""
        self._lost = True
        self._pending = []
        self._supervisor.tell(ProjectionLost(reason))

    # --- catching up ---

    def _catch_up(self, order: CatchUp) -> None:
        self._lost = True
        self._pending, self._pending_bytes = [], 0
        self._ledger, self._epoch, self._untold_bytes = order.ledger, order.epoch, 0
        try:
            self._make_usable(order)
            if not self._filling(order).fill_within_budget():
                return
        except ProjectionError as error:
            self._supervisor.tell(CatchUpFailed(order.epoch, error.message))
            return
        except _StopWaits:
            _log.info("stopped while catching up")
            return
        except Exception as error:
            _log.error("catching up failed unexpectedly: %s", describe_failure(error))
            reason = f"unexpected {type(error).__name__}"
            self._supervisor.tell(CatchUpFailed(order.epoch, reason))
            return
        self._lost = False
        self._recoveries += 1
        self._supervisor.tell(CaughtUp(order.epoch, asdict(self._info)))
        self._watch_capacity()

    def _make_usable(self, order: CatchUp) -> None:
        """A living, answering instance and a fresh connection to it; restarts it otherwise."""
        if self._server.alive():
            try:
                self._server.ping()
            except ProjectionError:
                self._restart(order)
        else:
            self._restart(order)
        self._connect()

    def _restart(self, order: CatchUp) -> None:
        self._supervisor.tell(CatchUpProgressed(order.epoch, "starting Redis"))
        self._info = self._server.restart(self._bus_id, self._go_on)
        if self._search_engine == "redis" and not self._info.search:
            # SQLite has no index of this run. The daemon ends, and the next one makes it.
            lost = RedisUnusableError(
                f"Redis came back without search: {self._info.search_missing}"
            )
            self._supervisor.tell(Crashed(self.name, lost))
            raise lost

    def _connect(self) -> None:
        if self._connected:
            self._client.close()
        self._client = self._server.connect()
        self._connected = True
        self._writer = StreamWriter(self._client, search=self._info.search)

    def _filling(self, order: CatchUp) -> Filling:
        return Filling(
            order,
            self._bus_id,
            self._store,
            self._server,
            self._client,
            self._writer,
            self._supervisor,
            self._go_on,
            search=self._info.search,
        )

    def _go_on(self) -> None:
        """Between the steps of what takes long."""
        if self.stop_waits():
            raise _StopWaits


def _heads(facts: list[ContentFact]) -> dict[ChannelId, Projected]:
    """The new head of each channel, and whether one session alone moved it there."""
    heads: dict[ChannelId, Projected] = {}
    for fact in facts:
        if not isinstance(fact, MessageAppended):
            continue
        session: SessionId | None = fact.sender.session_id
        earlier = heads.get(fact.channel_id)
        if earlier is not None and earlier.only_session != session:
            session = None
        heads[fact.channel_id] = Projected(fact.sequence, session)
    return heads
