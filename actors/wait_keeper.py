"""Waits of idle sessions: who is to be woken when something arrives, and what waits for whom.

What arrives is a message of a subscribed channel, or a direct message that the session may claim.

Owns the registry of waits, one per session, and a read-only handle of its own, on its own thread.
Moves no cursor and renews no subscription: a wait only looks. A session need not be attached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

from actors.base import BusActor, Reply
from actors.channel import ChannelDirectory
from actors.inbox_messages import DeliveryArrived
from actors.messages import (
    Disconnected,
    Greeted,
    Link,
    NoticePosted,
    ReadinessChanged,
    Unwatch,
    Wake,
    Watch,
)
from actors.timer import Timer, TimerHandle
from agentbus.errors import BusError, NotFoundError, UnavailableError
from agentbus.ids import AgentId, ChannelId, DeliveryId, Sequence, SessionId
from agentbus.protocol.session import Wait
from agentbus.store.changes import SubscriptionRow
from agentbus.store.peer.directory import DirectoryReader
from agentbus.store.reader import SessionRow

RETURN_S = 0.5
"""An adapter that lost its connection, or a session that is taken over, is back before that."""

ABSENT_S = 5.0
"""After a restart of the daemon a wait may be back before the adapter, which gets so long."""


@dataclass(frozen=True, slots=True)
class WaitAsked:
    """Somebody waits on behalf of an idle session, or looks what there is (`wait_ms` 0)."""

    wait: Wait
    link: Link
    reply_to: Reply


@dataclass(frozen=True, slots=True)
class WaitDue:
    """The time of the wait with this reply is up."""

    session_id: SessionId
    due_of: Reply


@dataclass(frozen=True, slots=True)
class AttachmentOpened:
    """A session is attached; `harness_pid`: the process that started its adapter."""

    session_id: SessionId
    conversation: str
    harness_pid: int | None


@dataclass(frozen=True, slots=True)
class AttachmentClosed:
    session_id: SessionId


@dataclass(frozen=True, slots=True)
class ConversationEnded:
    """The harness says so."""

    application: str
    conversation: str


@dataclass(frozen=True, slots=True)
class ReturnDue:
    """Who was missed has had time to come back: the attachment of the session, or, where that is
    not `attached_only`, an adapter of the same harness process, which has not used the bus yet.
    """

    session_id: SessionId
    due_of: Reply
    attached_only: bool


WaitKeeperMessage: TypeAlias = (
    WaitAsked
    | WaitDue
    | AttachmentOpened
    | AttachmentClosed
    | ConversationEnded
    | Greeted
    | ReturnDue
    | Wake
    | NoticePosted
    | DeliveryArrived
    | Disconnected
    | ReadinessChanged
)


PeerWork = frozenset[tuple[DeliveryId, int]]
"""Deliveries, each with when it last changed."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What a session of this agent was woken for."""

    agent_id: AgentId
    work: PeerWork


@dataclass(slots=True)
class _Waiting:
    wait: Wait
    session: SessionRow
    link: Link
    reply_to: Reply
    due: TimerHandle | None = None


class WaitKeeperActor(BusActor[WaitKeeperMessage]):
    """One wait per session; a newer one takes the place of an older.

    1. A wait is answered once: `woken` with what waits, `timeout`, `replaced`, or, for one that is
       to begin a turn (`only_new`), `ended` when the session is attached no more, its harness has
       no adapter, or says that the conversation has ended: a harness that ends waits for its hooks.
    2. A wait watches its channels before it counts, so nothing that arrives is missed.
    3. Counted is what `receive` would bring: not the session's own messages, nothing expired; and
       what `peer` could claim or collect, unless the wait names channels.
    """

    def __init__(
        self,
        open_store: Callable[[], DirectoryReader],
        channels: ChannelDirectory,
        timer: Timer,
    ) -> None:
        super().__init__()
        self._open_store = open_store
        self._channels = channels
        self._timer = timer
        self._waiting: dict[SessionId, _Waiting] = {}
        self._watched: set[ChannelId] = set()
        self._woken_through: dict[SessionId, Sequence] = {}  # by waits for what is new
        self._woken_for: dict[SessionId, _Told] = {}  # likewise
        self._adapters: dict[Link, int] = {}  # the process of the harness that started it
        self._attached: dict[SessionId, AttachmentOpened] = {}
        self._seen: set[SessionId] = set()  # attached at some time since this daemon started
        self._store: DirectoryReader

    def on_start(self) -> None:
        self._store = self._open_store()

    def on_stop(self) -> None:
        stopping = UnavailableError("the bus is stopping")
        for waiting in self._waiting.values():
            waiting.reply_to.set_exception(stopping)
        self._store.close()

    @property
    def waiting(self) -> int:
        """How many sessions are waited for; any thread may ask."""
        return len(self._waiting)

    def waits_for(self, session_id: SessionId) -> bool:
        """Whether somebody would wake this session; any thread may ask."""
        return session_id in self._waiting

    def receive(self, message: WaitKeeperMessage) -> None:
        match message:
            case WaitAsked():
                self._asked(message)
            case WaitDue(session_id, due_of):
                waiting = self._waiting.get(session_id)
                if waiting is not None and waiting.reply_to is due_of:
                    self._end_wait(waiting, "timeout")
            case AttachmentOpened(session_id):
                self._attached.pop(session_id, None)  # the newest is the last
                self._attached[session_id] = message
                self._seen.add(session_id)
            case AttachmentClosed(session_id):
                self._closed(session_id)
            case ConversationEnded(application, conversation):
                self._conversation_ended(application, conversation)
            case Greeted(link, harness_pid):
                if not link.closed:
                    self._adapters[link] = harness_pid
            case ReturnDue(session_id, due_of, attached_only):
                waiting = self._waiting.get(session_id)
                if waiting is not None and waiting.reply_to is due_of:
                    is_there = session_id in self._attached
                    if not is_there and (attached_only or not self._has_adapter(waiting)):
                        self._end_wait(waiting, "ended")
            case Wake(channel_id):
                self._woken(channel_id)
            case Disconnected(link):
                for waiting in list(self._waiting.values()):
                    if waiting.link is link:
                        self._forget(waiting)
                self._adapter_gone(link)
            case ReadinessChanged(state):
                if state == "ready":
                    self._watch_anew()
            case DeliveryArrived():
                self._delivery_arrived(message)
            case NoticePosted():
                pass  # a changed memory wakes nobody
            case _:
                assert_never(message)

    # --- asking ---

    def _asked(self, asked: WaitAsked) -> None:
        wait = asked.wait
        conversation = wait.conversation
        if conversation is None:
            conversation = self._attached_from(wait.harness_pids)
        session = None
        if conversation is not None:
            session = self._store.find_session(wait.application, conversation)
        self._begin_wait(asked, session)

    def _attached_from(self, harness_pids: tuple[int, ...]) -> str | None:
        """The conversation attached last from the first of these that has one.

        One harness may have been started by a command of another, so the nearest is meant.
        """
        newest = {one.harness_pid: one.conversation for one in self._attached.values()}
        return next((newest[pid] for pid in harness_pids if pid in newest), None)

    def _begin_wait(self, asked: WaitAsked, session: SessionRow | None) -> None:
        if session is None:
            asked.reply_to.set_exception(
                NotFoundError(
                    "no session of this conversation is known to the bus: it appears with its "
                    "first agentbus tool call; --session names another one, by the id that its "
                    "harness gave it"
                )
            )
            return
        waiting = _Waiting(asked.wait, session, asked.link, asked.reply_to)
        with self._failing(waiting):
            self._check_channels(waiting)
            if not asked.wait.wait_ms:
                channels = self._channels_of(waiting, self._rows(waiting))
                peers = self._count(waiting, self._peer_work_of(waiting))
                _answer(waiting, "looked", channels, peers)
                return
            earlier = self._waiting.get(session.session_id)
            if earlier is not None:
                self._end_wait(earlier, "replaced")
            # Its end first: whoever sees that the session is waited for may count on it.
            waiting.due = self._timer.deliver_after(
                asked.wait.wait_ms / 1000,
                self.address,
                WaitDue(session.session_id, asked.reply_to),
            )
            self._waiting[session.session_id] = waiting
            self._watch(waiting)
            if session.session_id not in self._attached:
                left = session.session_id in self._seen
                self._end_unless_back(waiting, RETURN_S if left else ABSENT_S, attached_only=False)
            self._look(waiting, self._rows(waiting))

    def _check_channels(self, waiting: _Waiting) -> None:
        """A wait for what cannot come would only end at its time."""
        missing = set(waiting.wait.channels) - {row.channel for row in self._rows(waiting)}
        if missing:
            names = ", ".join(sorted(missing))
            raise NotFoundError(
                f"{waiting.session.display_name} is not subscribed to {names}: correct the name, "
                "or have it call subscribe first"
            )

    @contextmanager
    def _failing(self, waiting: _Waiting) -> Iterator[None]:
        """What cannot be read is the trouble of this wait, not of the bus."""
        try:
            yield
        except BusError as error:
            self._forget(waiting)
            waiting.reply_to.set_exception(error)

    def _closed(self, session_id: SessionId) -> None:
        self._attached.pop(session_id, None)
        waiting = self._waiting.get(session_id)
        if waiting is not None:
            self._end_unless_back(waiting, RETURN_S, attached_only=True)

    def _adapter_gone(self, link: Link) -> None:
        pid = self._adapters.pop(link, None)
        for waiting in self._waiting.values():
            if pid in waiting.wait.harness_pids:
                self._end_unless_back(waiting, RETURN_S, attached_only=False)

    def _has_adapter(self, waiting: _Waiting) -> bool:
        return any(pid in waiting.wait.harness_pids for pid in self._adapters.values())

    def _end_unless_back(self, waiting: _Waiting, after_s: float, *, attached_only: bool) -> None:
        if waiting.wait.only_new:
            due = ReturnDue(waiting.session.session_id, waiting.reply_to, attached_only)
            self._timer.deliver_after(after_s, self.address, due)

    def _conversation_ended(self, application: str, conversation: str) -> None:
        ended = (application, conversation)
        for waiting in list(self._waiting.values()):
            of = (waiting.session.application, waiting.session.conversation)
            if of == ended and waiting.wait.only_new:
                self._end_wait(waiting, "ended")

    # --- waking ---

    def _woken(self, channel_id: ChannelId) -> None:
        for waiting in list(self._waiting.values()):
            with self._failing(waiting):
                rows = self._rows(waiting)
                if any(row.channel_id == channel_id for row in rows):
                    self._look(waiting, rows)

    def _look(self, waiting: _Waiting, rows: list[SubscriptionRow]) -> None:
        newest = self._store.last_sequence()  # before it is counted: what comes between wakes again
        channels, work = self._channels_of(waiting, rows), self._peer_work_of(waiting)
        peers = self._count(waiting, work)
        if channels or peers:
            if waiting.wait.only_new:
                session = waiting.session
                self._woken_through[session.session_id] = newest
                self._woken_for[session.session_id] = _Told(session.agent_id, work)
            self._end_wait(waiting, "woken", channels, peers)

    def _delivery_arrived(self, arrived: DeliveryArrived) -> None:
        """What was kept back is news, although it may have been told of before it was."""
        if arrived.freed:
            for session_id, told in list(self._woken_for.items()):
                if told.agent_id == arrived.agent_id:
                    del self._woken_for[session_id]
        for waiting in list(self._waiting.values()):
            session = waiting.session
            if session.agent_id != arrived.agent_id:
                continue
            if arrived.session_id in (None, session.session_id):
                with self._failing(waiting):
                    self._look(waiting, self._rows(waiting))

    def _peer_work_of(self, waiting: _Waiting) -> PeerWork:
        """The direct messages that are new to the session."""
        session = waiting.session
        if waiting.wait.channels:
            return frozenset()
        return self._store.waiting_work(session.agent_id, session.session_id)

    def _count(self, waiting: _Waiting, work: PeerWork) -> int:
        told = self._woken_for.get(waiting.session.session_id)
        return len(work - told.work if waiting.wait.only_new and told is not None else work)

    def _rows(self, waiting: _Waiting) -> list[SubscriptionRow]:
        """Living subscriptions of the channels that it waits for; of all when none is named."""
        names = waiting.wait.channels
        return [
            row
            for row in self._store.subscriptions(waiting.session.session_id)
            if row.expired_at_us is None and (not names or row.channel in names)
        ]

    def _channels_of(self, waiting: _Waiting, rows: list[SubscriptionRow]) -> list[dict[str, Any]]:
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
            for row in rows
        ]
        return [entry for entry in counted if entry["waiting"]]

    def _end_wait(
        self,
        waiting: _Waiting,
        outcome: str,
        channels: Iterable[dict[str, Any]] = (),
        peers: int = 0,
    ) -> None:
        self._forget(waiting)
        _answer(waiting, outcome, channels, peers)

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
            with self._failing(waiting):
                self._watch(waiting)
                self._look(waiting, self._rows(waiting))

    def _unwatch_unneeded(self) -> None:
        if not self._waiting:
            for channel_id in self._watched:
                self._channels.address(channel_id).tell(Unwatch(self.address))
            self._watched.clear()


def _answer(
    waiting: _Waiting, outcome: str, channels: Iterable[dict[str, Any]], peers: int
) -> None:
    waiting.reply_to.set(
        {
            "outcome": outcome,
            "display_name": waiting.session.display_name,
            "channels": list(channels),
            "peer": peers,
        }
    )
