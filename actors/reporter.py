"""What a person sees: status, channels, sessions.

Owns read-only handles of its own and the questions in progress, on its own thread. It asks the
supervisor and the registrar by `tell` and answers when both have told, or when the time is up: a
status must come in every state of the bus. Nothing here is needed to carry a message.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, assert_never

from actors.base import ActorStatistics, Address, BusActor, Reply
from actors.messages import (
    LiveSession,
    RegistrarMessage,
    Roll,
    RollAsked,
)
from actors.replies import TellReply
from actors.supervisor_messages import HealthAsked, SupervisorMessage
from actors.timer import Timer
from agentbus import __version__
from agentbus.clock import Clock
from agentbus.config import Config
from agentbus.envelope import rfc3339
from agentbus.errors import BusError
from agentbus.limits import PROTOCOL_VERSION
from agentbus.projection.connection import Client, dataset_bytes
from agentbus.rules.capacity import Budget
from agentbus.store.reader import Reader
from agentbus.store.schema import SCHEMA_VERSION

PATIENCE_S = 1.0
"""How long a report waits for the supervisor and the registrar."""


@dataclass(frozen=True, slots=True)
class ReportAsked:
    """A person's question: the whole status, or the channels or sessions alone."""

    what: Literal["status", "channels", "sessions"]
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class HealthTold:
    ticket: int
    health: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RollTold:
    ticket: int
    roll: Roll


@dataclass(frozen=True, slots=True)
class ReportDue:
    """Answer with what is there; somebody did not answer in time."""

    ticket: int


ReporterMessage: TypeAlias = ReportAsked | HealthTold | RollTold | ReportDue


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a report gets its parts. The callables are quick and may be called on any thread."""

    supervisor: Address[SupervisorMessage]
    registrar: Address[RegistrarMessage]
    open_store: Callable[[], Reader]
    connect_redis: Callable[[], Client]
    actors: Callable[[], list[ActorStatistics]]
    counters: Callable[[], dict[str, Any]]
    exhausted: Callable[[], tuple[Budget, ...]]


@dataclass(slots=True)
class _Report:
    asked: ReportAsked
    health: dict[str, Any] | None = None
    roll: Roll | None = None


class ReporterActor(BusActor[ReporterMessage]):
    """Gathers one answer per question; a part that cannot be had is null and says why."""

    def __init__(self, sources: Sources, timer: Timer, config: Config, clock: Clock) -> None:
        super().__init__()
        self._sources = sources
        self._timer = timer
        self._config = config
        self._clock = clock
        self._started_at_us = clock.wall_us()
        self._reports: dict[int, _Report] = {}
        self._last_ticket = 0
        self._store: Reader

    def on_start(self) -> None:
        self._store = self._sources.open_store()

    def on_stop(self) -> None:
        self._store.close()

    def receive(self, message: ReporterMessage) -> None:
        match message:
            case ReportAsked():
                self._ask(message)
            case HealthTold(ticket, health):
                if (report := self._reports.get(ticket)) is not None:
                    report.health = health
                    self._answer_if_complete(ticket)
            case RollTold(ticket, roll):
                if (report := self._reports.get(ticket)) is not None:
                    report.roll = roll
                    self._answer_if_complete(ticket)
            case ReportDue(ticket):
                if ticket in self._reports:
                    self._answer(self._reports.pop(ticket))
            case _:
                assert_never(message)

    def _ask(self, asked: ReportAsked) -> None:
        self._last_ticket += 1
        ticket = self._last_ticket
        self._reports[ticket] = _Report(asked)
        self._sources.supervisor.tell(
            HealthAsked(self._reply(ticket, lambda health: HealthTold(ticket, health)))
        )
        self._sources.registrar.tell(
            RollAsked(self._reply(ticket, lambda roll: RollTold(ticket, roll)))
        )
        self._timer.deliver_after(PATIENCE_S, self.address, ReportDue(ticket))

    def _reply(self, ticket: int, done: Callable[[Any], ReporterMessage]) -> Reply:
        return TellReply(self.address, done, lambda _: ReportDue(ticket))

    def _answer_if_complete(self, ticket: int) -> None:
        report = self._reports[ticket]
        if report.health is not None and report.roll is not None:
            self._answer(self._reports.pop(ticket))

    def _answer(self, report: _Report) -> None:
        reply_to, roll = report.asked.reply_to, report.roll or Roll()
        match report.asked.what:
            case "channels":
                reply_to.set({"channels": self._channels()})
            case "sessions":
                reply_to.set({"sessions": self._sessions(roll.sessions)})
            case "status":
                reply_to.set(self._status(report.health, roll))
            case _:
                assert_never(report.asked.what)

    # --- parts ---

    def _status(self, told: dict[str, Any] | None, roll: Roll) -> dict[str, Any]:
        health = told or {"state": "unknown", "errors": []}
        redis_bytes = self._redis_bytes()  # once: one that hangs costs a time limit
        return {
            **health,
            "versions": {
                "package": __version__,
                "protocol": PROTOCOL_VERSION,
                "schema": SCHEMA_VERSION,
            },
            "pid": os.getpid(),
            "started_at": rfc3339(self._started_at_us),
            "config": {"path": str(self._config.path), "values": self._config.effective()},
            "redis": _redis(health.get("redis"), redis_bytes),
            "budgets": self._budgets(redis_bytes),
            "sessions": self._sessions(roll.sessions),
            "hooks": [
                {"application": hook.application, "event": hook.event, "at": rfc3339(hook.at_us)}
                for hook in roll.hooks
            ],
            "store": self._part(self._store.counts),
            "actors": [asdict(statistics) for statistics in self._sources.actors()],
            **self._sources.counters(),
        }

    def _redis_bytes(self) -> int | None:
        def measure() -> int:
            with closing(self._sources.connect_redis()) as client:
                return dataset_bytes(client)

        used = self._part(measure)
        return used if isinstance(used, int) else None

    def _budgets(self, redis_bytes: int | None) -> dict[str, Any]:
        sqlite_bytes = self._part(self._store.logical_bytes)
        exhausted = self._sources.exhausted()
        budgets: dict[str, Any] = {
            "sqlite": {
                "used_bytes": sqlite_bytes if isinstance(sqlite_bytes, int) else None,
                "limit_bytes": self._config.sqlite_budget_bytes,
                "exhausted": "sqlite" in exhausted,
            },
            "redis": {
                "used_bytes": redis_bytes,
                "limit_bytes": self._config.redis_budget_bytes,
                "exhausted": "redis" in exhausted,
            },
        }
        shares = {
            name: budget["used_bytes"] / budget["limit_bytes"]
            for name, budget in budgets.items()
            if budget["used_bytes"] is not None
        }
        return budgets | {"binding": max(shares, key=lambda name: shares[name], default=None)}

    def _sessions(self, live: tuple[LiveSession, ...]) -> list[dict[str, Any]]:
        return [
            {
                "session_id": session.attachment.session_id,
                "display_name": session.sender.display_name,
                "agent": session.sender.agent,
                "application": session.sender.application,
                "conversation": session.conversation,
                "child": session.sender.child,
                "repository": session.sender.repository,
                "generation": session.attachment.generation,
                "identity_source": session.identity_source,
                "attached_at": rfc3339(session.attached_at_us),
                "adapter_pid": session.adapter_pid,
                "subscriptions": self._part(partial(self._subscriptions, session)),
            }
            for session in live
        ]

    def _subscriptions(self, session: LiveSession) -> list[dict[str, Any]]:
        return [
            {
                "channel": row.channel,
                "handed_off": row.handed_off,
                "confirmed": row.confirmed,
                "lag": self._store.lag(row.channel_id, row.handed_off),
            }
            for row in self._store.subscriptions(session.attachment.session_id)
            if row.expired_at_us is None
        ]

    def _channels(self) -> list[dict[str, Any]]:
        return [
            {
                "channel": row.channel,
                "kind": row.kind,
                "retained": row.retained,
                "newest": row.newest,
                "removed_through": row.removed_through,
            }
            for row in self._store.channels()
        ]

    @staticmethod
    def _part(measure: Callable[[], Any]) -> Any:
        """One part of a report; an unavailable one becomes its own explanation."""
        try:
            return measure()
        except BusError as error:
            return {"error": error.as_data()}


def _redis(info: dict[str, Any] | None, redis_bytes: int | None) -> dict[str, Any] | None:
    if info is None:
        return None
    engine = "redis" if info.get("search_module") is not None else "sqlite"
    return info | {"search_engine": engine, "healthy": redis_bytes is not None}
