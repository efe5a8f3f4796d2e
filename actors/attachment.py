"""One live attachment: everything that the bus does for one session on one connection.

Owns the session's delivery positions, prefetch window, rates and unflushed handoff reports, and its
own read-only handles, on a thread of its own. Never writes to SQLite or Redis; durable changes go
to the ledger by `tell`, and the ledger answers the caller itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from actors.base import Address, BusActor, Reply
from actors.channel import ChannelDirectory
from actors.feeds import Feeds
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
    Request,
    Submit,
    SubscriptionsChanged,
    Unwatch,
    Wake,
    Watch,
)
from actors.notices import compare, notice_of
from actors.queries import Profile
from actors.replies import TellReply
from actors.searching import Searcher
from actors.timer import Timer, TimerHandle
from actors.turns import MutationTurns
from agentbus.clock import Clock
from agentbus.config import Config
from agentbus.encoding import encode_line, raw
from agentbus.envelope import rfc3339
from agentbus.errors import (
    BusError,
    DiscoveryDisabledError,
    StaleAttachmentError,
    TooLargeError,
    UnavailableError,
    ValidationError,
)
from agentbus.failpoints import reach
from agentbus.identity import Attachment
from agentbus.ids import ChannelId, Sequence
from agentbus.limits import HANDOFF_FLUSH_MS, HANDOFF_FLUSH_REPORTS, KIB
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
    MutatingOperation,
    Search,
    Send,
    Subscribe,
    Unsubscribe,
    WhoAmI,
)
from agentbus.protocol.session import Delivery, Pull
from agentbus.rules.coalesce import ReportCoalescer
from agentbus.rules.credit import Credit
from agentbus.rules.query import SearchEngine
from agentbus.rules.rates import Rates
from agentbus.rules.receipts import digest, payload_of
from agentbus.store.changes import (
    CloseSubscription,
    MakeChannel,
    MemoryRemoved,
    MemoryRevised,
    MoveCursors,
    OpenSubscription,
    SubscriptionClosed,
    SubscriptionExpired,
    SubscriptionOpened,
    mutation,
)
from agentbus.store.reader import Reader

READ_RETRY_S = 0.5
"""Pause before reading the projection again after trouble that turned out to be none."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Whom an attachment tells, and what it reads with."""

    ledger: Address[LedgerMessage]
    projector: Address[ProjectorMessage]
    registrar: Address[RegistrarMessage]
    channels: ChannelDirectory
    timer: Timer
    open_streams: Callable[[], StreamReader]
    open_store: Callable[[], Reader]
    open_search: Callable[[], SearchEngine]


@dataclass(slots=True)
class _WaitingPull:
    pull: Pull
    reply_to: Reply
    due: TimerHandle | None


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
        self._rates = Rates(
            config.send_messages_per_second,
            config.send_kib_per_second * KIB,
            config.max_message_kib * KIB,
            clock.monotonic_s(),
        )
        self._reports = ReportCoalescer()
        self._unanswered: list[tuple[int, Reply]] = []  # reports of the next flush
        self._flushing: deque[tuple[MoveCursors, list[tuple[int, Reply]]]] = deque()
        self._flush_due: TimerHandle | None = None
        self._pulls: dict[int, _WaitingPull] = {}
        self._feeds: Feeds
        self._streams: StreamReader
        self._store: Reader
        self._searcher: Searcher
        self._turns = MutationTurns(neighbours.ledger)
        self._trouble = False  # a read of the projection failed; wait before the next
        self.stale_reports = 0

    def on_start(self) -> None:
        self._store = self._neighbours.open_store()
        self._searcher = Searcher(
            self._neighbours.open_search, self._store, self._config.result_default_kib
        )
        self._streams = self._neighbours.open_streams()
        self._feeds = Feeds(self._bound.session_id, self._streams, self._store)
        for row in self._bound.subscriptions:
            if row.expired_at_us is None:
                self._feeds.open(row)
        self._watch_all()
        self._push()

    def on_stop(self) -> None:
        for feed in self._feeds:
            self._neighbours.channels.address(feed.channel_id).tell(Unwatch(self.address))
        self._close_handles()

    def on_failure(self, *_: object) -> None:
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
                self._call_seen(used.confirms, used.channels)
            case HandoffReported():
                self._handoff_reported(message)
            case FlushReports():
                self._flush()
            case CursorsCommitted(error):
                self._cursors_committed(error)
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
                self._rates.refund(size_bytes)
            case MutationSettled():
                self._turns.settled()
            case ReadinessChanged():
                self._readiness_changed(message)
            case Detached():
                self._detached(StaleAttachmentError("this attachment has ended; attach again"))
            case _:
                assert_never(message)

    def _detached(self, error: BusError) -> None:
        self._flush()
        self._end_pulls(error)
        for submit in self._turns.abandon():
            submit.reply_to.set_exception(error)
        self.stop()

    # --- operations ---

    def _operate(self, request: Request) -> None:
        self._require_ready()
        operation, reply_to = request.operation, request.reply_to
        match operation:
            case Send() | EditMemory() | DeleteMemory():
                self._mutate(operation, reply_to)
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

    def _mutate(self, operation: MutatingOperation, reply_to: Reply) -> None:
        name = operation.NAME
        if operation.operation_id is None:
            raise ValidationError(f"{name}: operation_id is required on this connection")
        payload = payload_of(operation)
        size_bytes = len(payload)
        limit_bytes = self._config.max_message_kib * KIB
        if size_bytes > limit_bytes:
            raise TooLargeError(
                f"{name}: the message takes at least {size_bytes} bytes, the limit is "
                f"{limit_bytes} (max_message_kib); shorten it, or send a reference to a file"
            )
        now_s = self._clock.monotonic_s()
        rate_ok = self._rates.reserve(size_bytes, now_s)
        change = mutation(
            operation,
            operation_id=operation.operation_id,
            fingerprint=digest(payload),
            sender=self._profile.sender,
            attachment=self._attachment,
            rate_ok=rate_ok,
            retry_after_ms=0 if rate_ok else self._rates.retry_after_ms(size_bytes, now_s),
        )
        submit = Submit(change, reply_to, self.address, size_bytes if rate_ok else 0)
        if self._config.inspection_command:
            self._turns.submit(submit)
        else:
            self._neighbours.ledger.tell(submit)

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
        for number, waiting in list(self._pulls.items()):
            if feed.subscription in waiting.pull.after:
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
        due = None
        if pull.wait_ms:
            due = self._neighbours.timer.deliver_after(
                pull.wait_ms / 1000, self.address, PullDue(pull.number)
            )
        self._pulls[pull.number] = _WaitingPull(pull, reply_to, due)
        self._serve(pull.number, last_chance=not pull.wait_ms)

    def _pull_ended(self, number: int) -> None:
        """Its wait is over, or nobody waits any more: answer with what there is."""
        if number in self._pulls:
            self._serve(number, last_chance=True)

    def _serve(self, number: int, *, last_chance: bool) -> None:
        waiting = self._pulls[number]
        pull = waiting.pull
        deliveries: list[Delivery] = []
        left_count, left_bytes = pull.count, pull.max_bytes
        try:
            for subscription, after in pull.after.items():
                feed = self._feeds.get(subscription)
                if feed is None or left_count < 1 or left_bytes < 1:
                    continue
                delivery = self._feeds.pull(feed, after, left_count, left_bytes, pull.include_own)
                left_count -= len(delivery.records)
                left_bytes -= delivery.size_bytes
                deliveries.append(delivery)
        except ProjectionError:
            self._projection_trouble()
            if last_chance:
                self._settle_pull(number).set_exception(self._unavailable())
            return
        found = any(delivery.records or delivery.gaps for delivery in deliveries)
        if found or last_chance:
            self._feeds.answered(deliveries)
            moved = [d.as_data() for d in deliveries if d.records or d.gaps or d.through > d.after]
            self._settle_pull(number).set({"epoch": self._readiness.epoch, "deliveries": moved})

    def _settle_pull(self, number: int) -> Reply:
        waiting = self._pulls.pop(number)
        if waiting.due is not None:
            waiting.due.cancel()
        return waiting.reply_to

    def _end_pulls(self, error: BusError) -> None:
        for number in list(self._pulls):
            self._settle_pull(number).set_exception(error)

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

    def _call_seen(self, confirms: int, channels: tuple[str, ...] | None) -> None:
        if confirms:
            self._reports.confirm(confirms)
        if channels is not None:
            for feed in self._feeds.of_names(channels):
                self._reports.renew(feed.subscription)
        self._flush_soon()

    def _handoff_reported(self, message: HandoffReported) -> None:
        report = message.report
        if report.epoch != self._readiness.epoch or self._readiness.state != "ready":
            self.stale_reports += 1
            message.reply_to.set({"report": report.report, "stale": True})
            return
        positions = {
            subscription: position
            for subscription, position in report.positions.items()
            if (feed := self._feeds.get(subscription)) is not None and position <= feed.sent
        }
        self._reports.report(report.report, positions, report.expired)
        self._unanswered.append((report.report, message.reply_to))
        if len(self._unanswered) >= HANDOFF_FLUSH_REPORTS:
            self._flush()
        else:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._flush_due is None and not (self._reports.is_empty and not self._unanswered):
            self._flush_due = self._neighbours.timer.deliver_after(
                HANDOFF_FLUSH_MS / 1000, self.address, FlushReports()
            )

    def _flush(self) -> None:
        if self._flush_due is not None:
            self._flush_due.cancel()
            self._flush_due = None
        if self._reports.is_empty and not self._unanswered:
            return
        moves = self._reports.take()
        change = MoveCursors(
            self._attachment,
            moves.handed_off,
            moves.confirmed,
            moves.renewed,
            moves.expiry_confirmed,
        )
        self._flushing.append((change, self._unanswered))
        self._unanswered = []
        reach("before_cursor_commit")
        reply = TellReply(self.address, lambda _: CursorsCommitted(), _cursors_not_committed)
        self._neighbours.ledger.tell(Submit(change, reply, self.address))

    def _cursors_committed(self, error: BusError | None) -> None:
        change, replies = self._flushing.popleft()
        for number, reply_to in replies:
            if error is None:
                reply_to.set({"report": number})
            else:
                reply_to.set_exception(error)
        if error is not None:
            return
        for subscription, position in change.handed_off.items():
            if (feed := self._feeds.get(subscription)) is not None:
                feed.handed_off = max(feed.handed_off, position)
        for subscription, position in change.confirmed.items():
            if (feed := self._feeds.get(subscription)) is not None:
                feed.confirmed = max(feed.confirmed, position)

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
            self._reports = ReportCoalescer()
            for number, reply_to in self._unanswered:
                self.stale_reports += 1
                reply_to.set({"report": number, "stale": True})
            self._unanswered = []
            self._credit.reset()
            self._feeds.rewind()
        if readiness.state == "ready":
            self._trouble = False
            self._watch_all()
        else:
            self._end_pulls(self._unavailable())

    def _require_ready(self) -> None:
        if self._readiness.state != "ready":
            raise self._unavailable()

    def _unavailable(self) -> UnavailableError:
        return UnavailableError(
            f"the bus is {self._readiness.state}; nothing was done, try again shortly",
            retry_after_ms=self._readiness.retry_after_ms,
        )


def _cursors_not_committed(error: BaseException) -> CursorsCommitted:
    if isinstance(error, BusError):
        return CursorsCommitted(error)
    return CursorsCommitted(UnavailableError("the report was not committed"))
