"""Waits of idle sessions: who is to be woken when something arrives, and what waits for whom.

Owns the registry of waits, one per session, and a read-only handle of its own, on its own thread.
Moves no cursor and renews no subscription: a wait only looks. A session need not be attached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

from actors.base import Address, BusActor, Reply
from actors.channel import ChannelDirectory
from actors.messages import (
    Disconnected,
    Link,
    LiveSessionsAsked,
    NoticePosted,
    ReadinessChanged,
    RegistrarMessage,
    Unwatch,
    Wake,
    Watch,
)
from actors.replies import TellReply
from actors.timer import Timer, TimerHandle
from agentbus.errors import BusError, NotFoundError, UnavailableError
from agentbus.ids import ChannelId, Sequence, SessionId
from agentbus.protocol.session import Wait
from agentbus.store.reader import Reader, SessionRow


@dataclass(frozen=True, slots=True)
class WaitAsked:
    """Somebody waits on behalf of an idle session, or looks what there is (`wait_ms` 0)."""

    wait: Wait
    link: Link
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class WaiterTold:
    """The conversation that is attached from the asker's harness process, if there is one."""

    ticket: int
    conversation: str | None


@dataclass(frozen=True, slots=True)
class WaitDue:
    """The time of the wait with this reply is up."""

    session_id: SessionId
    due_of: Reply


WaitKeeperMessage: TypeAlias = (
    WaitAsked | WaiterTold | WaitDue | Wake | NoticePosted | Disconnected | ReadinessChanged
)


@dataclass(slots=True)
class _Waiting:
    wait: Wait
    session: SessionRow
    link: Link
    reply_to: Reply
    due: TimerHandle | None = None


class WaitKeeperActor(BusActor[WaitKeeperMessage]):
    """One wait per session; a newer one takes the place of an older.

    1. A wait is answered once: `woken` with what waits, `timeout`, or `replaced`.
    2. A wait watches its channels before it counts, so nothing that arrives is missed.
    3. Counted is what `receive` would bring: not the session's own messages, nothing expired.
    """

    def __init__(
        self,
        open_store: Callable[[], Reader],
        channels: ChannelDirectory,
        registrar: Address[RegistrarMessage],
        timer: Timer,
    ) -> None:
        super().__init__()
        self._open_store = open_store
        self._channels = channels
        self._registrar = registrar
        self._timer = timer
        self._waiting: dict[SessionId, _Waiting] = {}
        self._watched: set[ChannelId] = set()
        self._woken_through: dict[SessionId, Sequence] = {}  # by waits for what is new
        self._unresolved: dict[int, WaitAsked] = {}
        self._last_ticket = 0
        self._store: Reader

    def on_start(self) -> None:
        self._store = self._open_store()

    def on_stop(self) -> None:
        stopping = UnavailableError("the bus is stopping")
        for asked in self._unresolved.values():
            asked.reply_to.set_exception(stopping)
        for waiting in self._waiting.values():
            waiting.reply_to.set_exception(stopping)
        self._store.close()

    @property
    def waiting(self) -> int:
        """How many sessions are waited for; any thread may ask."""
        return len(self._waiting)

    def receive(self, message: WaitKeeperMessage) -> None:
        match message:
            case WaitAsked():
                self._asked(message)
            case WaiterTold(ticket, conversation):
                self._told(ticket, conversation)
            case WaitDue(session_id, due_of):
                waiting = self._waiting.get(session_id)
                if waiting is not None and waiting.reply_to is due_of:
                    self._end_wait(waiting, "timeout")
            case Wake(channel_id):
                self._woken(channel_id)
            case Disconnected(link):
                for waiting in list(self._waiting.values()):
                    if waiting.link is link:
                        self._forget(waiting)
            case ReadinessChanged(state):
                if state == "ready":
                    self._watch_anew()
            case NoticePosted():
                pass  # a changed memory wakes nobody
            case _:
                assert_never(message)

    # --- asking ---

    def _asked(self, asked: WaitAsked) -> None:
        wait = asked.wait
        if wait.conversation is not None:
            self._begin_wait(asked, self._store.find_session(wait.application, wait.conversation))
            return
        self._last_ticket += 1
        ticket = self._last_ticket
        self._unresolved[ticket] = asked
        pids = wait.harness_pids
        self._registrar.tell(
            LiveSessionsAsked(
                TellReply(
                    self.address,
                    lambda live: WaiterTold(
                        ticket,
                        next((one.conversation for one in live if one.harness_pid in pids), None),
                    ),
                    lambda _: WaiterTold(ticket, None),
                )
            )
        )

    def _told(self, ticket: int, conversation: str | None) -> None:
        asked = self._unresolved.pop(ticket)
        known = None if conversation is None else self._store.find_session(None, conversation)
        self._begin_wait(asked, known)

    def _begin_wait(self, asked: WaitAsked, session: SessionRow | None) -> None:
        if session is None:
            asked.reply_to.set_exception(
                NotFoundError(
                    "no session of this conversation is known to the bus: it appears with its "
                    "first agentbus tool call; or name it with --session"
                )
            )
            return
        waiting = _Waiting(asked.wait, session, asked.link, asked.reply_to)
        try:
            if not asked.wait.wait_ms:
                asked.reply_to.set(self._answer(waiting, "looked"))
                return
            earlier = self._waiting.get(session.session_id)
            if earlier is not None:
                self._end_wait(earlier, "replaced")
            self._waiting[session.session_id] = waiting
            self._watch(waiting)
            waiting.due = self._timer.deliver_after(
                asked.wait.wait_ms / 1000,
                self.address,
                WaitDue(session.session_id, asked.reply_to),
            )
            self._look(waiting)
        except BusError as error:
            self._forget(waiting)
            asked.reply_to.set_exception(error)

    # --- waking ---

    def _woken(self, channel_id: ChannelId) -> None:
        for waiting in list(self._waiting.values()):
            if any(row.channel_id == channel_id for row in self._rows(waiting)):
                self._look(waiting)

    def _look(self, waiting: _Waiting) -> None:
        if self._channels_of(waiting):
            self._end_wait(waiting, "woken")

    def _rows(self, waiting: _Waiting) -> list[Any]:
        """Living subscriptions of the channels that it waits for; of all when none is named."""
        names = waiting.wait.channels
        return [
            row
            for row in self._store.subscriptions(waiting.session.session_id)
            if row.expired_at_us is None and (not names or row.channel in names)
        ]

    def _channels_of(self, waiting: _Waiting) -> list[dict[str, Any]]:
        session_id = waiting.session.session_id
        known = Sequence(0)
        if waiting.wait.only_new:
            known = self._woken_through.get(session_id, known)
        counted = [
            {
                "channel": row.channel,
                "waiting": self._store.waiting(
                    row.channel_id, max(row.handed_off, known), session_id
                ),
            }
            for row in self._rows(waiting)
        ]
        return [entry for entry in counted if entry["waiting"]]

    def _answer(self, waiting: _Waiting, outcome: str) -> dict[str, Any]:
        return {
            "outcome": outcome,
            "display_name": waiting.session.display_name,
            "channels": [] if outcome == "replaced" else self._channels_of(waiting),
        }

    def _end_wait(self, waiting: _Waiting, outcome: str) -> None:
        self._forget(waiting)
        newest = self._store.last_sequence()  # before it is counted: what comes between wakes again
        answer = self._answer(waiting, outcome)
        if outcome == "woken" and waiting.wait.only_new:
            self._woken_through[waiting.session.session_id] = newest
        waiting.reply_to.set(answer)

    def _forget(self, waiting: _Waiting) -> None:
        if waiting.due is not None:
            waiting.due.cancel()
        if self._waiting.get(waiting.session.session_id) is waiting:
            del self._waiting[waiting.session.session_id]
        self._unwatch_unneeded()

    # --- watching ---

    def _watch(self, waiting: _Waiting) -> None:
        for row in self._rows(waiting):
            if row.channel_id not in self._watched:
                self._watched.add(row.channel_id)
                self._channels.address(row.channel_id).tell(Watch(self.address, row.handed_off))

    def _watch_anew(self) -> None:
        """After a recovery channels may have been replaced, and have come further meanwhile."""
        self._watched.clear()
        for waiting in list(self._waiting.values()):
            self._watch(waiting)
            self._look(waiting)

    def _unwatch_unneeded(self) -> None:
        if not self._waiting:
            for channel_id in self._watched:
                self._channels.address(channel_id).tell(Unwatch(self.address))
            self._watched.clear()
