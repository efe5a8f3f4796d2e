"""The inbox of one agent: its parked waits, the times of its deliveries, and who hears of what.

Owns who waits for a delivery in which order, and the deadlines of leases, windows and replies, in
plain memory, on the shared dispatcher. Never blocks, never touches SQLite or a socket: what is
claimed, abandoned or late is decided by the ledger's commit, and what is so is loaded from there.
`InboxDirectory` is the only one that starts inboxes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from actors.base import Address, Crashed, Reply
from actors.claim_queue import ClaimQueue
from actors.delivery_clocks import RETRY_S, DeliveryClocks
from actors.inbox_messages import (
    AskCancelled,
    AskDue,
    ClaimSettled,
    CountsDue,
    DeliveryArrived,
    DeliveryAsked,
    InboxLoaded,
    InboxMessage,
    LeaseDue,
    LeasesRenewed,
    LoadDue,
    PeerWaiting,
    ReplyDue,
    RequestAdvanced,
    RequestUnwatched,
    RequestWatched,
    SessionClosed,
    SessionOpened,
    Upkeep,
    UpkeepRefused,
    WindowDue,
)
from actors.messages import LedgerMessage, Submit
from actors.pool import Dispatcher, PooledActor
from actors.replies import TellReply, WhenRefused
from actors.timer import Timer, TimerHandle
from agentbus.clock import Clock
from agentbus.errors import BusError, StaleAttachmentError, UnavailableError
from agentbus.identity import Attachment
from agentbus.ids import AgentId, DeliveryId, LeaseToken, MessageId, SessionId, new_id
from agentbus.store.peer.changes import (
    ClaimDelivery,
    Claimed,
    DeliveryChanged,
    DeliveryView,
    ListOpenDeliveries,
)
from agentbus.store.peer.reading import Attached

Watcher = Address[PeerWaiting | RequestAdvanced]
Collector = Address[RequestAdvanced]

COUNTS_PAUSE_S = 0.05
"""Between two rounds of telling sessions what waits for them. A burst would else cost each of them
a frame for each delivery, and pile up before an adapter that does not read."""

UNTRIED = -1
_LATE = ("overdue", "unanswered")


@dataclass(frozen=True, slots=True)
class InboxNeighbours:
    """Whom an inbox tells, who is attached, and how long its leases and windows are."""

    ledger: Address[LedgerMessage]
    waits: Address[DeliveryArrived]
    timer: Timer
    clock: Clock
    attached: Callable[[], Attached]
    lease_s: float
    window_s: float


@dataclass(slots=True)
class _Ask:
    """A wait. `tried_at`: what the inbox knew (`_version`) when it last claimed for it.

    `over`: its time is up, the claim that is under way is its last. `blocked`: what the last one
    said, in words.
    """

    attachment: Attachment
    number: int
    reply_to: Reply
    over: bool
    only: DeliveryId | None = None
    due: TimerHandle | None = None
    tried_at: int = UNTRIED
    blocked: str | None = None


@dataclass(slots=True)
class _Session:
    attachment: Attachment
    watcher: Watcher
    told: int | None = None


class InboxActor(PooledActor[InboxMessage]):
    """One agent.

    1. A wait is answered once: with a delivery or with notices as soon as there are some, else at
       its end, or when another wait of its session, or the end of its attachment, takes its place.
    2. Waits are served in the order in which they came, one claim at a time. A claim that settles
       when nobody waits any more has leased its delivery all the same: the next wait of that
       session gets it, and until then it is counted for the session and its lease runs.
    3. What a fact says is known before the claims that it may help are made; a fact that comes
       while a claim is under way makes the wait try once more. So no delivery is overlooked.
    4. Of what waits a session hears at once, and of a burst at most once in `COUNTS_PAUSE_S`; the
       last word is always how it is.
    5. Upkeep that the ledger refuses, as while the bus recovers, is judged and tried again.
    """

    def __init__(self, agent_id: AgentId, neighbours: InboxNeighbours) -> None:
        super().__init__()
        self._agent_id = agent_id
        self._neighbours = neighbours
        self._queue = ClaimQueue(agent_id)
        self._asks: dict[SessionId, _Ask] = {}  # in the order in which they came
        self._claiming: tuple[Attachment, int] | None = None  # for whose wait, and which
        self._claimed_at = 0  # the version when that claim was made
        self._sessions: dict[SessionId, _Session] = {}
        self._collects: dict[MessageId, set[Collector]] = {}
        self._version = 0  # of what is known; grows with each fact
        self._late_version = 0  # when a reply was last found late
        self._counts_held_back = False  # until `CountsDue`
        self._loaded = False
        self._heard: dict[DeliveryId, DeliveryView] = {}  # by facts, until it has loaded
        self._clocks: DeliveryClocks

    @property
    def loaded(self) -> bool:
        """Whether it knows what there is; any thread may ask."""
        return self._loaded

    @property
    def parked(self) -> int:
        """How many sessions wait; any thread may ask."""
        return len(self._asks)

    def on_start(self) -> None:
        neighbours = self._neighbours
        self._clocks = DeliveryClocks(
            self._agent_id,
            self.address,
            neighbours.timer,
            neighbours.clock,
            neighbours.attached,
            lease_s=neighbours.lease_s,
            window_s=neighbours.window_s,
        )
        self._load()

    def on_stop(self) -> None:
        self._refuse_all(UnavailableError("the bus is stopping"))

    def on_failure(self, *_: object) -> None:
        self._refuse_all(UnavailableError("that inbox is made anew; wait again"))

    def _refuse_all(self, error: BusError) -> None:
        for session_id in list(self._asks):
            self._take_ask(session_id).reply_to.set_exception(error)
        self._clocks.stop()

    def receive(self, message: InboxMessage) -> None:
        match message:
            case DeliveryAsked():
                self._asked(message)
            case AskCancelled(attachment, number):
                ask = self._asks.get(attachment.session_id)
                if ask is not None and (ask.attachment, ask.number) == (attachment, number):
                    self._answer(attachment.session_id)
            case AskDue(session_id, number):
                self._ask_due(session_id, number)
            case ClaimSettled():
                self._claim_settled(message)
            case DeliveryChanged(view):
                self._changed(view)
            case LeasesRenewed(_, leases):
                for delivery_id, token in leases:
                    change = self._clocks.renew(delivery_id, token)
                    if change is not None:  # refused: a later renewal brings it again
                        self._neighbours.ledger.tell(
                            Submit(change, WhenRefused(lambda error: None))
                        )
            case LeaseDue() | WindowDue() | ReplyDue():
                upkeep = self._clocks.passed(message)
                if upkeep is not None:
                    self._keep_up(upkeep)
            case UpkeepRefused(change):
                self._clocks.refused(change)
            case SessionOpened(attachment, watcher):
                self._sessions[attachment.session_id] = _Session(attachment, watcher)
            case SessionClosed(attachment):
                self._session_closed(attachment)
            case RequestWatched(message_id, watcher):
                self._collects.setdefault(message_id, set()).add(watcher)
            case RequestUnwatched(message_id, watcher):
                self._unwatch(message_id, watcher)
            case InboxLoaded(deliveries):
                self._loaded_as(deliveries)
            case LoadDue():
                self._load()
            case CountsDue():
                self._counts_held_back = False
            case _:
                assert_never(message)
        self._serve()
        self._tell_counts()

    # --- what is there ---

    def _load(self) -> None:
        reply = TellReply(
            self.address,
            lambda views: InboxLoaded(tuple(views)),
            lambda error: InboxLoaded(None),
        )
        self._neighbours.ledger.tell(Submit(ListOpenDeliveries(self._agent_id), reply))

    def _loaded_as(self, deliveries: tuple[DeliveryView, ...] | None) -> None:
        """What was told meanwhile is the same or newer, as facts come before answers."""
        if deliveries is None:
            self._neighbours.timer.deliver_after(RETRY_S, self.address, LoadDue())
            return
        known = {view.delivery_id: view for view in deliveries} | self._heard
        self._loaded = True
        self._heard.clear()
        self._version += 1
        self._queue.load(known.values())
        self._clocks.load(known.values())

    def _changed(self, view: DeliveryView) -> None:
        self._version += 1
        if not self._loaded:
            self._heard[view.delivery_id] = view
        arrived = self._queue.follow(view)
        self._clocks.follow(view, from_disk=not self._loaded)
        if arrived:
            news = DeliveryArrived(self._agent_id, freed=True)
            if view.state == "queued":
                news = DeliveryArrived(self._agent_id, view.recipient_session)
            self._neighbours.waits.tell(news)
        if view.sender_agent == self._agent_id:
            if view.reply_state in _LATE:
                self._late_version = self._version
            for watcher in tuple(self._collects.get(view.message_id, ())):
                if watcher.alive:
                    watcher.tell(RequestAdvanced(view.message_id))
                else:
                    self._unwatch(view.message_id, watcher)

    def _unwatch(self, message_id: MessageId, watcher: Collector) -> None:
        watchers = self._collects.get(message_id, set())
        watchers.discard(watcher)
        if not watchers:
            self._collects.pop(message_id, None)

    def _keep_up(self, change: Upkeep) -> None:
        address = self.address
        reply = WhenRefused(lambda error: address.tell(UpkeepRefused(change)))
        self._neighbours.ledger.tell(Submit(change, reply))

    # --- waits ---

    def _asked(self, asked: DeliveryAsked) -> None:
        session_id = asked.attachment.session_id
        if session_id in self._asks:
            self._answer(session_id)
        ask = _Ask(
            asked.attachment,
            asked.number,
            asked.reply_to,
            over=not asked.wait_ms,
            only=asked.only,
        )
        if asked.wait_ms:
            ask.due = self._neighbours.timer.deliver_after(
                asked.wait_ms / 1000, self.address, AskDue(session_id, asked.number)
            )
        self._asks[session_id] = ask

    def _ask_due(self, session_id: SessionId, number: int) -> None:
        ask = self._asks.get(session_id)
        if ask is None or ask.number != number:
            return
        ask.over = True
        if ask.tried_at != UNTRIED and self._claiming != (ask.attachment, number):
            self._answer(session_id)

    def _session_closed(self, attachment: Attachment) -> None:
        session_id = attachment.session_id
        session = self._sessions.get(session_id)
        if session is not None and session.attachment == attachment:
            del self._sessions[session_id]
        ask = self._asks.get(session_id)
        if ask is not None and ask.attachment == attachment:
            error = StaleAttachmentError("this attachment has ended; attach again")
            self._take_ask(session_id).reply_to.set_exception(error)

    def _serve(self) -> None:
        """Claim for the first wait that a claim may help."""
        if self._claiming is not None:
            return
        for session_id, ask in self._asks.items():
            if ask.tried_at == self._version:
                continue
            if ask.tried_at < self._late_version or self._queue.can_claim(session_id):
                self._claim(ask)
                return

    def _claim(self, ask: _Ask) -> None:
        attachment, number = ask.attachment, ask.number
        self._claiming, self._claimed_at = (attachment, number), self._version
        reply = TellReply(
            self.address,
            lambda claimed: ClaimSettled(attachment, number, claimed, None),
            lambda error: ClaimSettled(attachment, number, None, error),
        )
        token = LeaseToken(new_id())
        change = ClaimDelivery(attachment, self._agent_id, token, ask.only)
        self._neighbours.ledger.tell(Submit(change, reply))

    def _claim_settled(self, settled: ClaimSettled) -> None:
        self._claiming = None
        session_id = settled.attachment.session_id
        ask = self._asks.get(session_id)
        if ask is None or ask.attachment != settled.attachment:
            return  # leased to the session: its next wait gets it
        if ask.number != settled.number and (
            settled.claimed is None or settled.claimed.delivery is None
        ):
            return  # that look was the one of the wait before it
        if settled.claimed is None:
            assert settled.error is not None
            self._take_ask(session_id).reply_to.set_exception(settled.error)
            return
        claimed = settled.claimed
        if claimed.delivery is not None and ask.only not in (None, claimed.delivery["delivery_id"]):
            return  # likewise; and of that look nothing is for this wait
        if claimed.delivery is not None or claimed.notices:
            self._take_ask(session_id).reply_to.set(claimed)
            return
        ask.tried_at, ask.blocked = self._claimed_at, claimed.blocked
        if ask.over:
            self._answer(session_id)

    def _answer(self, session_id: SessionId) -> None:
        """End a wait without a delivery."""
        ask = self._take_ask(session_id)
        ask.reply_to.set(Claimed(None, None, (), ask.blocked))

    def _take_ask(self, session_id: SessionId) -> _Ask:
        ask = self._asks.pop(session_id)
        if ask.due is not None:
            ask.due.cancel()
        return ask

    def _tell_counts(self) -> None:
        if not self._loaded or self._counts_held_back:
            return
        for session_id, session in self._sessions.items():
            count = self._queue.waiting(session_id)
            if count != session.told:
                session.told = count
                session.watcher.tell(PeerWaiting(session_id, count))
                self._counts_held_back = True
        if self._counts_held_back:
            self._neighbours.timer.deliver_after(COUNTS_PAUSE_S, self.address, CountsDue())


class InboxDirectory:
    """Agent id -> its inbox, started at the first look. Thread-safe; holds no state of an inbox.

    An inbox sleeps in its mailbox at the cost of a small object, so none is ever stopped before the
    daemon ends. One that crashed is replaced at once, as its deadlines went with it; one that could
    not even load is replaced at the next look.
    """

    def __init__(
        self, dispatcher: Dispatcher, neighbours: Callable[[], InboxNeighbours], crashed: Crashed
    ) -> None:
        self._dispatcher = dispatcher
        self._neighbours = neighbours
        self._notify_crash = crashed
        self._lock = threading.Lock()
        self._inboxes: dict[AgentId, tuple[Address[InboxMessage], InboxActor]] = {}

    def address(self, agent_id: AgentId) -> Address[InboxMessage]:
        """The agent's inbox; the look-up of a known one takes no lock."""
        known = self._inboxes.get(agent_id)
        if known is not None and known[0].alive:
            return known[0]
        with self._lock:
            known = self._inboxes.get(agent_id)
            if known is None or not known[0].alive:
                known = self._inboxes[agent_id] = self._start(agent_id)
            return known[0]

    def tell(self, change: DeliveryChanged) -> None:
        """What was committed, to the inboxes of recipient and sender."""
        view = change.delivery
        for agent_id in dict.fromkeys((view.recipient_agent, view.sender_agent)):
            self.address(agent_id).tell(change)

    def addresses(self) -> list[Address[InboxMessage]]:
        """All inboxes that were looked at so far."""
        with self._lock:
            return [address for address, _ in self._inboxes.values()]

    def statistics(self) -> dict[str, int]:
        with self._lock:
            inboxes = list(self._inboxes.values())
        return {"actors": len(inboxes), "waiting": sum(actor.parked for _, actor in inboxes)}

    def _start(self, agent_id: AgentId) -> tuple[Address[InboxMessage], InboxActor]:
        actor = InboxActor(agent_id, self._neighbours())

        def crashed(name: str, error: BaseException) -> None:
            if actor.loaded:
                self.address(agent_id)
            self._notify_crash(name, error)

        return self._dispatcher.start(actor, label=str(agent_id), crashed=crashed), actor
