"""One live attachment: everything that the bus does for one session on one connection.

Owns the session's delivery positions, prefetch window, rates and unflushed handoff reports, and its
own read-only handles, on a thread of its own. Never writes to SQLite or Redis; durable changes go
to the ledger by `tell`, and the ledger answers the caller itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from actors.base import Address, BusActor, Reply
from actors.channel import ChannelDirectory
from actors.feeds import Feeds
from actors.inbox import InboxDirectory
from actors.inbox_messages import LeasesRenewed, PeerWaiting, RequestAdvanced
from actors.messages import (
    AttachmentMessage,
    CallSeen,
    CheckRedis,
    CompareHeldMemories,
    CreditGranted,
    CursorsCommitted,
    Detached,
    DirectoryAsked,
    FlushReports,
    HandingOff,
    HandoffReported,
    LedgerMessage,
    Link,
    MutationSettled,
    NoticePosted,
    ProjectorMessage,
    PullAsked,
    PullCancelled,
    PullDue,
    RateRefunded,
    ReadinessChanged,
    RegistrarMessage,
    Released,
    Request,
    Submit,
    SubscriptionsChanged,
    Unwatch,
    Wake,
    Watch,
)
from actors.mutations import Mutations
from actors.notices import compare, notice_of
from actors.peer_desk import PeerDesk, PeerNeighbours
from actors.peer_messages import (
    CollectDue,
    PeerAsked,
    PeerCancelled,
    PeerResultShown,
)
from actors.presence import Presences
from actors.pulls import WaitingPulls
from actors.queries import Profile
from actors.reports import HandoffReports
from actors.searching import Searcher
from actors.timer import Timer
from agentbus.clock import Clock
from agentbus.config import Config
from agentbus.encoding import encode_line, raw
from agentbus.envelope import rfc3339
from agentbus.errors import (
    BusError,
    DiscoveryDisabledError,
    StaleAttachmentError,
    UnavailableError,
)
from agentbus.identity import Attachment
from agentbus.ids import ChannelId, Sequence
from agentbus.projection.errors import ProjectionError
from agentbus.projection.streams import StreamReader
from agentbus.protocol.operations import (
    CreateChannel,
    DeleteMemory,
    Discover,
    EditMemory,
    GetMemory,
    History,
    ListChannels,
    Search,
    Send,
    Subscribe,
    Unsubscribe,
    WhoAmI,
)
from agentbus.protocol.session import Delivery, Pull
from agentbus.rules.credit import Credit
from agentbus.rules.query import SearchEngine
from agentbus.store.changes import (
    CloseSubscription,
    MakeChannel,
    MemoryRemoved,
    MemoryRevised,
    OpenSubscription,
    SubscriptionClosed,
    SubscriptionExpired,
    SubscriptionOpened,
    mutation,
)
from agentbus.store.peer.reading import PeerReader

READ_RETRY_S = 0.5
"""Pause before reading the projection again after trouble that turned out to be none."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Whom an attachment tells, and what it reads with."""

    ledger: Address[LedgerMessage]
    projector: Address[ProjectorMessage]
    registrar: Address[RegistrarMessage]
    channels: ChannelDirectory
    inboxes: InboxDirectory
    presences: Presences
    timer: Timer
    open_streams: Callable[[], StreamReader]
    open_store: Callable[[], PeerReader]
    open_search: Callable[[], SearchEngine]


class AttachmentActor(BusActor[AttachmentMessage]):
    """One attachment.

    1. Nothing is pushed beyond the window; pulls go outside it, bounded by what they ask for.
    2. Reports of an older generation or recovery epoch move nothing; they are counted.
    3. A handoff report is answered after its commit.
    4. While the bus is not ready, operations answer `unavailable` and nothing is delivered.
    5. With an inspection command, one mutation at a time is at the ledger (turns.py).
    """

    def __init__(
        self,
        profile: Profile,
        link: Link,
        window: tuple[int, int],
        readiness: ReadinessChanged,
        neighbours: Neighbours,
        config: Config,
        clock: Clock,
    ) -> None:
        super().__init__()
        self._profile = profile
        self._bound = profile.bound
        self._attachment = Attachment(self._bound.session_id, self._bound.generation)
        self._link = link
        self._credit = Credit(*window)
        self._readiness = readiness
        self._neighbours = neighbours
        self._config = config
        self._clock = clock
        self._feeds: Feeds
        self._reports: HandoffReports
        self._pulls: WaitingPulls
        self._mutations: Mutations
        self._peers: PeerDesk
        self._streams: StreamReader
        self._store: PeerReader
        self._searcher: Searcher
        self._trouble = False  # a read of the projection failed; wait before the next
        self.stale_reports = 0

    def on_start(self) -> None:
        self._store = self._neighbours.open_store()
        self._searcher = Searcher(
            self._neighbours.open_search,
            self._store,
            self._config.result_default_kib,
            self._bound.agent_id,
            self._profile.inbox,
        )
        self._streams = self._neighbours.open_streams()
        self._feeds = Feeds(self._bound.session_id, self._streams, self._store)
        neighbours = self._neighbours
        self._reports = HandoffReports(
            self._attachment, self._feeds, neighbours.ledger, neighbours.timer, self.address
        )
        self._pulls = WaitingPulls(self._feeds, neighbours.timer, self.address)
        self._mutations = Mutations(
            self._profile.sender,
            self._attachment,
            neighbours.ledger,
            self.address,
            self._config,
            self._clock,
        )
        self._peers = PeerDesk(
            self._profile,
            self._mutations,
            self._store,
            PeerNeighbours(
                ledger=neighbours.ledger,
                presences=neighbours.presences,
                inboxes=neighbours.inboxes,
                timer=neighbours.timer,
                owner=self.address,
            ),
            self._config,
            self._clock,
            lambda method, members: self._link.send(self._frame(method, **members)),
        )
        self._peers.begin()
        for row in self._bound.subscriptions:
            if row.expired_at_us is None:
                self._feeds.open(row)
        self._watch_all()
        self._push()

    def on_stop(self) -> None:
        for feed in self._feeds:
            self._neighbours.channels.address(feed.channel_id).tell(Unwatch(self.address))
        ended = StaleAttachmentError("this attachment has ended; attach again")
        self._reports.refuse(ended)
        self._peers.end(ended)
        self._close_handles()

    def on_failure(self, *_: object) -> None:
        self._peers.end(UnavailableError("this attachment failed; try again"))
        self._close_handles()  # a channel forgets a dead watcher by itself

    def _close_handles(self) -> None:
        for handle in (self._searcher, self._streams, self._store):
            handle.close()

    def receive(self, message: AttachmentMessage) -> None:
        try:
            self._take(message)
        finally:  # also after a refused request: what woke us before it is still to be sent
            if self.mailbox_is_empty():
                self._push()

    def _take(self, message: AttachmentMessage) -> None:
        match message:
            case Request():
                self._operate(message)
            case Wake():
                self._wake(message)
            case CreditGranted(credit):
                self._credit.grant(credit.messages, credit.size_bytes)
            case CallSeen(used):
                self._reports.call_seen(used.confirms, used.channels)
            case HandingOff(exposed):
                self._reports.handing_off(exposed)
            case HandoffReported():
                self._handoff_reported(message)
            case FlushReports():
                self._reports.flush()
            case CursorsCommitted():
                self._reports.settled(message)
            case PullAsked(pull, reply_to):
                self._pull_asked(pull, reply_to)
            case CompareHeldMemories(held, reply_to):
                self._require_ready()
                reply_to.set(compare(held, self._store))
            case PullDue(number):
                self._pull_ended(number)
            case PullCancelled(cancel):
                self._pull_ended(cancel.number)
            case NoticePosted(memory):
                self._memory_changed(memory)
            case SubscriptionsChanged(facts):
                for fact in facts:
                    self._subscription_changed(fact)
            case RateRefunded(size_bytes):
                self._mutations.refund(size_bytes)
            case MutationSettled():
                self._mutations.settled()
            case PeerAsked():
                self._require_ready()
                self._peers.take(message)
            case (
                PeerCancelled()
                | LeasesRenewed()
                | PeerResultShown()
                | CollectDue()
                | RequestAdvanced()
                | PeerWaiting()
            ):
                self._peers.take(message)
            case ReadinessChanged():
                self._readiness_changed(message)
            case Detached():
                self._detached(StaleAttachmentError("this attachment has ended; attach again"))
            case _:
                assert_never(message)

    def _detached(self, error: BusError) -> None:
        self._reports.leave()
        self._neighbours.registrar.tell(Released(self._attachment))
        self._pulls.end(error)
        self._mutations.abandon(error)
        self._peers.end(error)
        self.stop()

    # --- operations ---

    def _operate(self, request: Request) -> None:
        self._require_ready()
        operation, reply_to = request.operation, request.reply_to
        match operation:
            case Send() | EditMemory() | DeleteMemory():
                self._mutations.submit(
                    operation, operation.operation_id, reply_to, partial(mutation, operation)
                )
            case GetMemory():
                reply_to.set(self._profile.get_memory(self._store, operation))
            case CreateChannel():
                self._submit(MakeChannel(operation, self._attachment), reply_to)
            case Subscribe():
                self._submit(OpenSubscription(operation, self._attachment), reply_to)
            case Unsubscribe():
                self._submit(CloseSubscription(operation, self._attachment), reply_to)
            case WhoAmI():
                reply_to.set(self._profile.whoami(self._store, self._feeds))
            case ListChannels():
                reply_to.set(self._profile.list_channels(self._store, self._feeds, operation))
            case History():
                reply_to.set(self._profile.history(self._store, operation))
            case Search():
                try:
                    reply_to.set(self._searcher.search(operation))
                except ProjectionError:
                    self._neighbours.projector.tell(CheckRedis())
                    raise
            case Discover():
                if not self._config.discovery_enabled:
                    raise DiscoveryDisabledError(
                        "the directory is switched off (discovery_enabled); senders of messages "
                        "stay visible"
                    )
                self._neighbours.registrar.tell(DirectoryAsked(operation.query, reply_to))
            case _:
                assert_never(operation)

    def _submit(
        self, change: MakeChannel | OpenSubscription | CloseSubscription, reply_to: Reply
    ) -> None:
        self._neighbours.ledger.tell(Submit(change, reply_to, self.address))

    # --- delivery ---

    def _wake(self, wake: Wake) -> None:
        self._trouble = False
        feed = self._feeds.of_channel(wake.channel_id)
        if feed is None:
            return
        own = wake.only_session == self._bound.session_id
        if own and not feed.behind and not self._pulls:
            feed.sent = max(feed.sent, wake.head)  # only own messages since the last read
            return
        feed.behind = True
        for number in self._pulls.of(feed.subscription):
            self._serve(number, last_chance=False)

    def _push(self) -> None:
        """Send what the window has room for."""
        if self._readiness.state != "ready" or self._trouble:
            return
        try:
            while (delivery := self._feeds.next_push(self._credit)) is not None:
                self._link.deliver([self._deliver_frame(delivery)])
        except ProjectionError:
            self._projection_trouble()

    def _deliver_frame(self, delivery: Delivery) -> bytes:
        return self._frame("deliver", epoch=self._readiness.epoch, delivery=delivery.as_data())

    def _frame(self, method: str, **params: object) -> bytes:
        attachment = {
            "session_id": self._attachment.session_id,
            "generation": self._attachment.generation,
        }
        return encode_line({"jsonrpc": "2.0", "method": method, "params": attachment | params})

    def _projection_trouble(self) -> None:
        """Redis did not answer: whoever owns it finds out why; then a new epoch or the next try."""
        self._trouble = True
        self._neighbours.projector.tell(CheckRedis())
        for feed in self._feeds:
            self._neighbours.timer.deliver_after(
                READ_RETRY_S, self.address, Wake(feed.channel_id, feed.sent)
            )

    def _pull_asked(self, pull: Pull, reply_to: Reply) -> None:
        self._require_ready()
        self._pull_ended(pull.number)  # of a client that uses a number again, as if cancelled
        self._pulls.add(pull, reply_to)
        self._serve(pull.number, last_chance=not pull.wait_ms)

    def _pull_ended(self, number: int) -> None:
        """Its wait is over, or nobody waits any more: answer with what there is."""
        if number in self._pulls:
            self._serve(number, last_chance=True)

    def _serve(self, number: int, *, last_chance: bool) -> None:
        try:
            self._pulls.serve(number, self._readiness.epoch, last_chance=last_chance)
        except ProjectionError:
            self._projection_trouble()
            if last_chance:
                self._pulls.fail(number, self._unavailable())

    def _memory_changed(self, fact: MemoryRevised | MemoryRemoved) -> None:
        """What was sent before shows what is no longer so: certain to be told, unlike the notice.

        A record that is confirmed is not shown again, so its new text need not travel.
        """
        feed = self._feeds.of_channel(fact.channel_id)
        if feed is None or self._readiness.state != "ready":
            return
        if fact.position <= feed.sent:
            envelope = None
            if isinstance(fact, MemoryRevised) and fact.position > feed.confirmed:
                envelope = raw(fact.envelope)
            self._link.send(
                self._frame(
                    "invalidate",
                    subscription=feed.subscription,
                    memory_id=fact.memory_id,
                    position=fact.position,
                    envelope=envelope,
                )
            )
        own = fact.sender.session_id == self._attachment.session_id
        if not own and not self._link.queued_bytes:
            self._link.send(
                self._frame("notice", epoch=self._readiness.epoch, notice=notice_of(fact))
            )

    # --- handoff and cursors ---

    def _handoff_reported(self, message: HandoffReported) -> None:
        report = message.report
        if report.epoch != self._readiness.epoch or self._readiness.state != "ready":
            self.stale_reports += 1
            message.reply_to.set({"report": report.report, "stale": True})
            return
        self._reports.reported(report, message.reply_to)

    # --- subscriptions and readiness ---

    def _subscription_changed(
        self, fact: SubscriptionOpened | SubscriptionClosed | SubscriptionExpired
    ) -> None:
        match fact:
            case SubscriptionOpened(_, row):
                if self._feeds.get(row.subscription_id) is None:
                    feed = self._feeds.open(row)
                    self._watch(feed.channel_id, feed.sent)
            case SubscriptionClosed(_, subscription, channel_id):
                self._close_feed(subscription, channel_id)
            case SubscriptionExpired(_, subscription, channel_id, channel, expired_at_us):
                if self._close_feed(subscription, channel_id):
                    self._link.send(
                        self._frame(
                            "expired",
                            subscription=subscription,
                            channel=channel,
                            expired_at=rfc3339(expired_at_us),
                        )
                    )
            case _:
                assert_never(fact)

    def _close_feed(self, subscription: int, channel_id: ChannelId) -> bool:
        if self._feeds.close(subscription) is None:
            return False
        self._reports.forget(subscription)
        anew = self._feeds.of_channel(channel_id)
        if anew is not None:
            anew.behind = True  # subscribed again before the end was known; wake-ups found the old
        else:
            self._neighbours.channels.address(channel_id).tell(Unwatch(self.address))
        return True

    def _watch_all(self) -> None:
        for feed in self._feeds:
            feed.behind = True
            self._watch(feed.channel_id, feed.sent)

    def _watch(self, channel_id: ChannelId, after: Sequence) -> None:
        self._neighbours.channels.address(channel_id).tell(Watch(self.address, after))

    def _readiness_changed(self, readiness: ReadinessChanged) -> None:
        new_epoch = readiness.epoch != self._readiness.epoch
        self._readiness = readiness
        if new_epoch:
            self.stale_reports += self._reports.new_epoch()
            self._credit.reset()
            self._feeds.rewind()
        if readiness.state == "ready":
            self._trouble = False
            self._watch_all()
            self._peers.begin()  # inboxes may have been replaced
        else:
            self._pulls.end(self._unavailable())

    def _require_ready(self) -> None:
        if self._readiness.state != "ready":
            raise self._unavailable()

    def _unavailable(self) -> UnavailableError:
        return UnavailableError(
            f"the bus is {self._readiness.state}; nothing was done, try again shortly",
            retry_after_ms=self._readiness.retry_after_ms,
        )
