"""The composition root: who starts what, in which order, and how it all ends.

Builds every actor, wires their addresses, starts against the flow of messages and stops with it.
The only place where an answer of an actor may be waited for. Runs on the main thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from actors.attachment import Neighbours
from actors.base import (
    ActorStatistics,
    Address,
    FutureReply,
    MailboxActor,
    start_actor,
    stop_actor,
)
from actors.channel import ChannelDirectory
from actors.cleanup_scheduler import CleanupOutlets, CleanupSchedulerActor
from actors.front_door import Desks, FrontDoor
from actors.human_desk import HumanDeskActor, person_of_this_process
from actors.inbox import InboxDirectory, InboxNeighbours
from actors.inspections import InspectionDesk, InspectionStatistics
from actors.jobs import JobActors
from actors.messages import CheckRedis, Detached, ReadinessChanged
from actors.notices import notice_frame
from actors.pool import Dispatcher, PooledActor
from actors.presence import Presences
from actors.receipt_ledger import ReceiptLedgerActor
from actors.redis_projector import RedisProjectorActor
from actors.registrar import RegistrarActor
from actors.reporter import ReporterActor, Sources
from actors.routes import Routes
from actors.supervisor import Outlets, SupervisorActor, Wiring
from actors.supervisor_messages import Crashed, StopAsked
from actors.talk_desk import TalkDeskActor, TalkNeighbours
from actors.timer import Timer
from actors.wait_keeper import WaitKeeperActor
from agentbus.clock import Clock, machine_clock
from agentbus.config import DATABASE_NAME, Config
from agentbus.encoding import encode_line
from agentbus.errors import BusError, UnavailableError, UnknownOutcomeError
from agentbus.ids import NO_EPOCH, BusId
from agentbus.inspection import find_command
from agentbus.limits import SHUTDOWN_GRACE_SECONDS
from agentbus.projection.connection import connect
from agentbus.projection.launching import RedisSettings
from agentbus.projection.searching import RedisSearch
from agentbus.projection.server import RedisServer
from agentbus.projection.streams import StreamReader
from agentbus.rules.query import SearchEngine
from agentbus.store.connection import CommitUncertain, DatabaseUnusable
from agentbus.store.fts import TextSearch
from agentbus.store.jobs.reading import JobReader
from agentbus.store.ledger import LedgerStore
from agentbus.store.peer.delegations import DelegationReader
from agentbus.store.peer.people import PeopleReader
from agentbus.store.peer.reading import PeerReader
from agentbus.store.reset import reset_database
from agentbus.transport.listener import Listener
from agentbus.transport.singleton import DaemonLock, RuntimePaths, bind_socket, remove_socket

_log = logging.getLogger(__name__)

REDIS_CHECK_SECONDS = 5.0
"""How often an idle projection is asked whether it lives; a busy one notices by itself."""

DATABASE_OPEN_SECONDS = 120.0
"""A large file is read whole after a crash; an older schema is copied and brought up to date."""


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
        self._clock = clock or machine_clock()
        self._ended = threading.Event()
        self._redis_started = threading.Event()
        self._failure: str | None = None
        self._refusal: BusError | DatabaseUnusable | None = None
        self._stops: list[StopAsked] = []
        self._stops_are_answered = False
        self._stops_turn = threading.Lock()  # asked on the supervisor's thread, answered on main
        self._routes = Routes()
        self._timer: Timer | None = None
        self._dispatcher: Dispatcher | None = None
        self._listener: Listener | None = None
        self._desk: InspectionDesk | None = None
        self._jobs: JobActors | None = None
        self._registrar: Address[Any] | None = None
        self._projector: Address[Any] | None = None
        self._flow: list[Address[Any]] = []  # ledger and projector, in the order of the flow
        self._threaded: list[Address[Any]] = []
        self._pooled: list[Address[Any]] = []

    def start(self) -> None:
        """Raises what kept an actor from starting; then nothing is left running.

        Redis starts afterwards. Without one the bus ends with a `refusal`.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        config, clock = self._config, self._clock
        command = find_command(config)
        if command:
            timeout_s = config.inspection_timeout_seconds
            self._desk = InspectionDesk(command, timeout_s, self._crashed)
        timer = self._timer = Timer(clock, crashed=self._crashed)
        dispatcher = self._dispatcher = Dispatcher()
        channels = ChannelDirectory(dispatcher, self._crashed)
        wiring = Wiring()
        supervisor = SupervisorActor(wiring, timer, clock)
        self._supervisor = supervisor.address
        projector_actor = RedisProjectorActor(
            RedisServer(self._redis_settings()), self._open_store, channels, self._supervisor
        )
        inboxes = InboxDirectory(
            dispatcher,
            lambda: InboxNeighbours(
                ledger=ledger_actor.address,
                waits=keeper.address,
                timer=timer,
                clock=clock,
                attached=presences.attached,
                lease_s=config.peer_lease_seconds,
                window_s=config.peer_window_seconds,
            ),
            self._crashed,
        )
        keeper = WaitKeeperActor(self._open_store, channels, timer)
        jobs = self._jobs = JobActors(
            lambda: JobReader(database_path(config)),
            lambda: ledger_actor.address,
            dispatcher,
            timer,
            config,
            clock,
            self._crashed,
        )
        ledger_actor = ReceiptLedgerActor(
            lambda: LedgerStore(database_path(config), config, clock),
            projector_actor.address,
            config,
            self._desk,
            inboxes.tell,
            jobs.tell,
        )
        # The ledger first: it makes the database that the others read.
        ledger = self._begin(ledger_actor, self._flow, within_s=DATABASE_OPEN_SECONDS)
        projector = self._begin(projector_actor, self._flow)
        self._projector = projector
        search_turn = threading.Lock()
        bus_id = self._read_bus_id()

        def open_search() -> SearchEngine:
            if projector_actor.search_engine == "redis":
                return RedisSearch(connect(self._paths.redis_socket), search_turn)
            return TextSearch(database_path(config))

        def neighbours() -> Neighbours:
            return Neighbours(
                ledger=ledger,
                projector=projector,
                registrar=registrar,
                channels=channels,
                inboxes=inboxes,
                presences=presences,
                timer=timer,
                open_streams=lambda: StreamReader(connect(self._paths.redis_socket)),
                open_store=self._open_store,
                open_search=open_search,
            )

        waits = self._begin(keeper, self._threaded)
        presences = Presences(self._routes, clock, keeper.waits_for)
        talk_desk_actor = TalkDeskActor(
            lambda: DelegationReader(database_path(config)),
            TalkNeighbours(ledger, inboxes, timer, presences.attached),
            clock,
        )
        talk_desk = self._begin(talk_desk_actor, self._threaded)
        registrar_actor = RegistrarActor(
            neighbours, ledger, self._routes, config, bus_id, clock, self._crashed, waits, talk_desk
        )
        registrar = registrar_actor.address
        self._registrar = self._begin_pooled(dispatcher, registrar_actor)
        outlets = CleanupOutlets(
            ledger=ledger,
            projector=projector,
            registrar=registrar,
            supervisor=self._supervisor,
            used_bytes=lambda: ledger_actor.logical_bytes,
            announce=self._announce,
        )
        cleanup_actor = CleanupSchedulerActor(outlets, timer, config)
        cleanup = self._begin_pooled(dispatcher, cleanup_actor)
        sources = Sources(
            supervisor=self._supervisor,
            registrar=registrar,
            open_store=self._open_store,
            connect_redis=lambda: connect(self._paths.redis_socket),
            actors=self._actor_statistics,
            exhausted=lambda: cleanup_actor.cleanup_statistics().exhausted,
            counters=lambda: {
                "transport": asdict(listener.statistics()),
                "ledger": asdict(ledger_actor.ledger_statistics()),
                "projector": asdict(projector_actor.projector_statistics()),
                "cleanup": asdict(cleanup_actor.cleanup_statistics()),
                "inspection": self._inspection_counters(),
                "channels": {"actors": len(channels.addresses())},
                "waits": {"waiting": keeper.waiting},
                "inboxes": inboxes.statistics(),
                "jobs": jobs.statistics(),
            },
        )
        reporter = self._begin(ReporterActor(sources, timer, config, clock), self._threaded)
        human_desk = HumanDeskActor(
            lambda: PeopleReader(database_path(config)),
            presences.attached,
            ledger,
            config,
            person_of_this_process(),
        )
        people = self._begin(human_desk, self._threaded)
        job_desk = jobs.start(lambda actor: self._begin(actor, self._threaded))
        desks = Desks(registrar, reporter, self._supervisor, waits, people, job_desk)
        door = FrontDoor(desks, self._routes, config, bus_id, clock)
        listening = bind_socket(self._paths, self._lock, os.getuid())
        listener = self._listener = Listener(
            listening,
            door,
            door.heartbeat_payload,
            clock=clock,
            on_failure=lambda error: self.give_up(f"transport failed: {type(error).__name__}"),
        )
        wiring.ledger, wiring.projector = ledger, projector
        wiring.registrar, wiring.cleanup, wiring.waits = registrar, cleanup, waits

        def announce(change: ReadinessChanged) -> None:
            if change.epoch > NO_EPOCH:
                self._redis_started.set()
            listener.broadcast(door.set_readiness(change))

        wiring.outlets = Outlets(announce, self._stop_asked, self.give_up, self._refuse)
        timer.deliver_every(REDIS_CHECK_SECONDS, projector, CheckRedis())
        with closing(self._open_store()) as store:
            for agent_id in store.inboxes_in_use():
                inboxes.address(agent_id)  # their deadlines go on
        listener.start()
        # Last: from here on Redis starts, and whoever asks is told so.
        self._begin_pooled(dispatcher, supervisor)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the bus should end: asked to, or because an actor failed. True if so."""
        return self._ended.wait(timeout_s)

    def ask_to_end(self) -> None:
        """From a signal handler: as if a client had asked to stop."""
        self._supervisor.tell(StopAsked(FutureReply()))

    @property
    def failure(self) -> str | None:
        """Why the bus had to end by itself, if it did."""
        return self._failure

    @property
    def redis_started(self) -> bool:
        """Whether the start can no longer be refused."""
        return self._redis_started.is_set()

    @property
    def refusal(self) -> BusError | DatabaseUnusable | None:
        """What a person has to change before the bus can start; then it is a failure too."""
        return self._refusal

    # --- building ---

    def _begin(
        self, actor: MailboxActor[Any], group: list[Address[Any]], within_s: float = 10.0
    ) -> Address[Any]:
        address = start_actor(actor, crashed=self._crashed, within_s=within_s)
        group.append(address)
        return address

    def _begin_pooled(self, dispatcher: Dispatcher, actor: PooledActor[Any]) -> Address[Any]:
        address = dispatcher.start(actor, crashed=self._crashed)
        self._pooled.append(address)
        return address

    def _redis_settings(self) -> RedisSettings:
        return RedisSettings(
            executable=self._config.redis_executable,
            search_engine=self._config.search_engine,
            budget_bytes=self._config.redis_budget_bytes,
            data_directory=self._config.data_directory,
            runtime_directory=self._paths.directory,
        )

    def _open_store(self) -> PeerReader:
        return PeerReader(database_path(self._config))

    def _read_bus_id(self) -> BusId:
        with closing(self._open_store()) as store:
            return store.bus_id()

    def _actor_statistics(self) -> list[ActorStatistics]:
        live = [route.address for route in self._routes.all()]
        fixed = (*self._flow, *self._threaded, *self._pooled)
        workers = self._jobs.addresses() if self._jobs is not None else ()
        return [address.statistics() for address in (*fixed, *workers, *self._inspectors(), *live)]

    def _inspectors(self) -> tuple[Address[Any], ...]:
        return self._desk.addresses if self._desk is not None else ()

    def _inspection_counters(self) -> dict[str, Any]:
        statistics = InspectionStatistics() if self._desk is None else self._desk.statistics()
        return {"command": list(self._config.inspection_command), **asdict(statistics)}

    # --- what the scheduler, the supervisor and failing actors can do ---

    def _announce(self, notice: dict[str, Any]) -> None:
        """Tell every live session; one whose connection is going hears of it no more."""
        for route in self._routes.all():
            route.link.send(notice_frame(route.attachment, notice))

    def _crashed(self, actor: str, error: BaseException) -> None:
        if actor == SupervisorActor.__name__:
            self.give_up(f"{actor} failed: {type(error).__name__}")
        else:
            self._supervisor.tell(Crashed(actor, error))

    def _stop_asked(self, asked: StopAsked) -> None:
        with self._stops_turn:
            if not self._stops_are_answered:
                self._stops.append(asked)
                self._ended.set()
                return
        if asked.reset:
            late = "the daemon is ending already, so nothing was deleted; run agentbus reset again"
            asked.reply_to.set_exception(UnavailableError(late))
        else:
            asked.reply_to.set({})

    def give_up(self, reason: str) -> None:
        """End, and say that it was not wanted: adapters then start a daemon again."""
        self._failure = reason
        self._ended.set()

    def _refuse(self, error: BusError | DatabaseUnusable) -> None:
        self._refusal = error
        self.give_up(str(error))

    # --- the end ---

    def stop(self) -> bool:
        """Stop with the flow, within the grace: nothing that was accepted is left behind.

        False when something was still busy at the end of the grace.
        """
        deadline_s = time.monotonic() + SHUTDOWN_GRACE_SECONDS
        if self._listener is not None:
            self._listener.stop_accepting()
            if self._failure is None:
                self._listener.broadcast(_stopping_frame())
        if self._projector is not None:
            # It gives up what takes long and ends Redis: nobody waits any more for one that hangs.
            self._projector.stop()
        # The registrar first: an attachment that it began later would be left running for ever.
        clean = self._registrar is None or _stop_in_turn([self._registrar], deadline_s)
        attachments = [route.address for route in self._routes.all()]
        for address in attachments:
            address.tell(Detached())  # they flush their reports to the ledger
        clean &= _stop_in_turn(attachments, deadline_s)
        ledger_has_ended = _stop_in_turn(self._flow[:1], deadline_s)
        clean &= ledger_has_ended and _stop_in_turn(self._flow[1:], deadline_s)
        self._answer_stops(ledger_has_ended)
        if self._desk is not None:
            self._desk.cancel()  # the ledger has answered whoever waited for a verdict
        if self._jobs is not None:
            self._jobs.stop_workers()
        clean &= _stop_in_turn([*self._inspectors(), *self._threaded], deadline_s)
        if self._desk is not None:
            self._desk.close()
        if self._dispatcher is not None:
            clean &= self._dispatcher.stop(_left_s(deadline_s))
        if self._timer is not None:
            self._timer.stop()
        if self._listener is not None:
            remove_socket(self._paths, self._lock)
            self._listener.close(min(1.0, _left_s(deadline_s)))
        return clean

    def _answer_stops(self, ledger_has_ended: bool) -> None:
        """Reset the database if that was asked for, then answer; whoever asks later is too late."""
        with self._stops_turn:
            self._stops_are_answered = True
        answer: dict[str, Any] = {}
        refusal: BusError | None = None
        if any(asked.reset for asked in self._stops):
            try:
                answer["bus_id"] = self._reset(ledger_has_ended)
            except BusError as error:
                refusal = error
                _log.error("no reset: %s", error)
        for asked in self._stops:
            if asked.reset and refusal is not None:
                asked.reply_to.set_exception(refusal)
            else:
                asked.reply_to.set(answer)

    def _reset(self, ledger_has_ended: bool) -> BusId:
        """Raises a BusError; then nothing was deleted, unless it is an UnknownOutcomeError."""
        if not ledger_has_ended:
            # What it still commits would be a remainder of the old bus in the new one.
            raise UnavailableError(
                "the ledger did not end within the grace, so nothing was deleted; run agentbus "
                "reset again when the daemon has gone"
            )
        path, synchronous = database_path(self._config), self._config.sqlite_synchronous
        try:
            return reset_database(path, synchronous, self._clock.wall_us()).bus_id
        except DatabaseUnusable as error:
            raise UnavailableError(f"nothing was deleted: {error}") from None
        except CommitUncertain as error:
            raise UnknownOutcomeError(str(error)) from None


def _stop_in_turn(addresses: list[Address[Any]], deadline_s: float) -> bool:
    """Every one is stopped, also after one that was too slow; True when all were in time."""
    in_time = True
    for address in addresses:
        in_time &= stop_actor(address, _left_s(deadline_s))
    return in_time


def _left_s(deadline_s: float) -> float:
    return max(0.1, deadline_s - time.monotonic())


def _stopping_frame() -> bytes:
    return encode_line({"jsonrpc": "2.0", "method": "stopping", "params": {"intentional": True}})
