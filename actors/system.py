"""The composition root: who starts what, in which order, and how it all ends.

Builds every actor, wires their addresses, starts against the flow of messages and stops with it.
The only place where an answer of an actor may be waited for. Runs on the main thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from actors.attachment import Neighbours
from actors.base import ActorStatistics, Address, MailboxActor, start_actor
from actors.channel import ChannelDirectory
from actors.cleanup_scheduler import CleanupSchedulerActor
from actors.front_door import Desks, FrontDoor
from actors.messages import (
    CheckRedis,
    Crashed,
    Detached,
    ReadinessChanged,
    StopAsked,
    SupervisorMessage,
)
from actors.pool import Dispatcher
from actors.receipt_ledger import ReceiptLedgerActor
from actors.redis_projector import RedisProjectorActor
from actors.registrar import RegistrarActor
from actors.reporter import ReporterActor, Sources
from actors.routes import Routes
from actors.supervisor import Outlets, SupervisorActor, Wiring
from actors.timer import Timer
from agentbus.clock import Clock, SystemClock
from agentbus.config import Config
from agentbus.encoding import encode_line
from agentbus.limits import MIB, SHUTDOWN_GRACE_SECONDS
from agentbus.projection.connection import connect
from agentbus.projection.launching import RedisSettings
from agentbus.projection.server import RedisServer
from agentbus.projection.streams import StreamReader
from agentbus.store.ledger import LedgerStore
from agentbus.store.reader import Reader
from agentbus.store.reset import reset_database
from agentbus.transport.listener import Listener
from agentbus.transport.singleton import DaemonLock, RuntimePaths, bind_socket, remove_socket

_log = logging.getLogger(__name__)

DATABASE_NAME = "agentbus.sqlite3"
REDIS_CHECK_SECONDS = 5.0
"""How often an idle projection is asked whether it lives; a busy one notices by itself."""

REDIS_START_SECONDS = 60.0
"""Several candidates may be tried in turn, each with a time limit of its own."""


def database_path(config: Config) -> Path:
    """The SQLite file of a data directory."""
    return config.data_directory / DATABASE_NAME


class System:
    """One running bus. `start`, then `wait` until it should end, then `stop`."""

    def __init__(
        self, config: Config, paths: RuntimePaths, lock: DaemonLock, clock: Clock | None = None
    ) -> None:
        self._config = config
        self._paths = paths
        self._lock = lock
        self._clock = clock or SystemClock()
        self._ended = threading.Event()
        self._failure: str | None = None
        self._stops: list[StopAsked] = []
        self._addresses: list[Address[Any]] = []

    def start(self) -> None:
        """Raises what kept an actor from starting; then nothing is left running."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        config, clock = self._config, self._clock
        self._timer = Timer(clock)
        self._dispatcher = Dispatcher()
        self._routes = Routes()
        self._channels = ChannelDirectory(self._dispatcher, self._crashed)
        self._wiring = Wiring()
        self._supervisor = SupervisorActor(self._wiring, self._timer, clock)
        self._server = RedisServer(self._redis_settings())
        projector = RedisProjectorActor(
            self._server, self._open_store, self._channels, self._supervisor.address
        )
        ledger = ReceiptLedgerActor(
            lambda: LedgerStore(database_path(config), config, clock), projector.address
        )
        self._ledger = self._begin(ledger)  # first: it makes the database that the others read
        self._projector = self._begin(projector, within_s=REDIS_START_SECONDS)
        with_store = self._open_store()
        self._bus_id = with_store.bus_id()
        with_store.close()
        registrar = RegistrarActor(
            self._neighbours,
            self._ledger,
            self._routes,
            config,
            self._bus_id,
            clock,
            self._crashed,
        )
        self._registrar = self._begin_pooled(registrar)
        cleanup = self._begin_pooled(
            CleanupSchedulerActor(
                self._ledger, self._registrar, self._timer, config.cleanup_interval_seconds
            )
        )
        reporter = self._begin(ReporterActor(self._sources(), self._timer, config, clock))
        desks = Desks(self._registrar, reporter, self._supervisor.address)
        self._door = FrontDoor(desks, self._routes, config, self._bus_id, clock)
        listening = bind_socket(self._paths, self._lock, os.getuid())
        self._listener = Listener(listening, self._door, self._door.heartbeat_payload, clock=clock)
        self._wiring.ledger = self._ledger
        self._wiring.registrar = self._registrar
        self._wiring.cleanup = cleanup
        self._wiring.outlets = Outlets(self._announce, self._stop_asked, self._give_up)
        self._timer.deliver_every(REDIS_CHECK_SECONDS, self._projector, CheckRedis())
        self._listener.start()
        self._begin_pooled(self._supervisor)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the bus should end: asked to, or because an actor failed. True if so."""
        return self._ended.wait(timeout_s)

    def ask_to_end(self) -> None:
        """From a signal handler: let `wait` return."""
        self._ended.set()

    @property
    def failure(self) -> str | None:
        """Why the bus had to end by itself, if it did."""
        return self._failure

    @property
    def supervisor(self) -> Address[SupervisorMessage]:
        return self._supervisor.address

    # --- building ---

    def _begin(self, actor: MailboxActor[Any], within_s: float = 10.0) -> Address[Any]:
        address = start_actor(actor, crashed=self._crashed, within_s=within_s)
        self._addresses.append(address)
        return address

    def _begin_pooled(self, actor: Any) -> Address[Any]:
        address: Address[Any] = self._dispatcher.start(actor, crashed=self._crashed)
        self._addresses.append(address)
        return address

    def _redis_settings(self) -> RedisSettings:
        return RedisSettings(
            executable=self._config.redis_executable,
            search_engine=self._config.search_engine,
            budget_bytes=self._config.redis_budget_mib * MIB,
            data_directory=self._config.data_directory,
            runtime_directory=self._paths.directory,
        )

    def _open_store(self) -> Reader:
        return Reader(database_path(self._config))

    def _neighbours(self) -> Neighbours:
        return Neighbours(
            ledger=self._ledger,
            projector=self._projector,
            registrar=self._registrar,
            channels=self._channels,
            timer=self._timer,
            open_streams=lambda: StreamReader(connect(self._paths.redis_socket)),
            open_store=self._open_store,
        )

    def _sources(self) -> Sources:
        return Sources(
            supervisor=self._supervisor.address,
            registrar=self._registrar,
            open_store=self._open_store,
            connect_redis=lambda: connect(self._paths.redis_socket),
            actors=self._actor_statistics,
            counters=lambda: {
                "transport": asdict(self._listener.statistics()),
                "channels": {"actors": len(self._channels.addresses())},
            },
        )

    def _actor_statistics(self) -> list[ActorStatistics]:
        live = [route.address for route in self._routes.all()]
        return [address.statistics() for address in (*self._addresses, *live)]

    # --- what the supervisor and failing actors can do ---

    def _crashed(self, actor: str, error: BaseException) -> None:
        self._supervisor.address.tell(Crashed(actor, error))

    def _announce(self, readiness: ReadinessChanged) -> None:
        self._listener.broadcast(self._door.set_readiness(readiness))

    def _stop_asked(self, asked: StopAsked) -> None:
        self._stops.append(asked)
        self._ended.set()

    def _give_up(self, reason: str) -> None:
        self._failure = reason
        self._ended.set()

    # --- the end ---

    def stop(self) -> None:
        """Stop with the flow, within the grace: nothing that was accepted is left behind."""
        deadline_s = time.monotonic() + SHUTDOWN_GRACE_SECONDS
        listener: Listener | None = getattr(self, "_listener", None)
        if listener is not None:
            listener.stop_accepting()
            if self._failure is None:
                listener.broadcast(_stopping_frame())
            for route in self._routes.all():
                route.address.tell(Detached())
                route.address.ref.actor_stopped.wait(max(0.0, deadline_s - time.monotonic()))
        for name in ("_ledger", "_projector"):
            address: Address[Any] | None = getattr(self, name, None)
            if address is not None:
                address.stop()
                address.ref.actor_stopped.wait(max(0.0, deadline_s - time.monotonic()))
        self._end_rest(listener, deadline_s)

    def _end_rest(self, listener: Listener | None, deadline_s: float) -> None:
        bus_id = None
        if any(asked.reset for asked in self._stops):
            result = reset_database(
                database_path(self._config), self._config.sqlite_synchronous, self._clock.wall_us()
            )
            bus_id = result.bus_id
        for asked in self._stops:
            asked.reply_to.set({"bus_id": bus_id} if asked.reset else {})
        for address in self._addresses:
            address.stop()
        dispatcher: Dispatcher | None = getattr(self, "_dispatcher", None)
        if dispatcher is not None:
            dispatcher.stop(max(0.1, deadline_s - time.monotonic()))
        timer: Timer | None = getattr(self, "_timer", None)
        if timer is not None:
            timer.stop()
        if listener is not None:
            listener.close(max(0.1, min(1.0, deadline_s - time.monotonic())))
            remove_socket(self._paths, self._lock)


def _stopping_frame() -> bytes:
    return encode_line({"jsonrpc": "2.0", "method": "stopping", "params": {"intentional": True}})
