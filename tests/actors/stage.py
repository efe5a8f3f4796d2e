"""One attachment between probes, on a real database and a real Redis.

The test plays the ledger and the projector: `settle_changes` applies what the attachment submitted,
`project` writes to Redis what was committed. The clock stands still until the test moves it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from actors.attachment import AttachmentActor, Neighbours
from actors.base import Address, FutureReply, start_actor, stop_actor
from actors.channel import ChannelDirectory
from actors.inbox import InboxDirectory, InboxNeighbours
from actors.messages import (
    AttachmentMessage,
    CallSeen,
    ChannelMessage,
    CreditGranted,
    HandoffReported,
    NoticePosted,
    Projected,
    PullAsked,
    PullCancelled,
    ReadinessChanged,
    Request,
    Submit,
    SubscriptionsChanged,
    Wake,
)
from actors.pool import Dispatcher
from actors.presence import Presences
from actors.projections import ContentFact, projection_of
from actors.queries import Profile
from actors.routes import Routes
from actors.timer import Timer
from agentbus.encoding import decode_strict
from agentbus.errors import BusError
from agentbus.identity import Attachment, SessionIdentity
from agentbus.ids import BusId, RecoveryEpoch, Sequence
from agentbus.limits import HANDOFF_FLUSH_MS, MIB
from agentbus.projection.connection import connect
from agentbus.projection.rebuild import clear
from agentbus.projection.searching import RedisSearch
from agentbus.projection.streams import StreamReader, StreamWriter
from agentbus.protocol.operations import Receive, parse_operation
from agentbus.protocol.session import CancelPull, Credit, HandoffReport, Pull, Used
from agentbus.store.changes import (
    BindSession,
    Change,
    Done,
    MessageAppended,
    MessagesRemoved,
    MoveCursors,
    Refused,
    SessionBound,
    SubscriptionClosed,
    SubscriptionExpired,
    SubscriptionOpened,
    SubscriptionRow,
)
from tests.clock import FakeClock
from tests.eventually import PATIENCE_S
from tests.probe import Probe, settle
from tests.redis_fixture import PrivateRedis, set_mark
from tests.store.bus import Bus, Speaker

READY = ReadinessChanged("ready", RecoveryEpoch(1), 200)


class RecordingLink:
    """The daemon's end of a connection, as actors see it; keeps what was sent, in order."""

    def __init__(self, last_seen_s: float = 0.0) -> None:
        self.changed = threading.Condition()
        self.frames: list[dict[str, Any]] = []
        self.reason: str | None = None
        self.last_seen_s = last_seen_s
        self.queued_bytes = 0
        """What is said to wait for the client."""

    @property
    def closed(self) -> bool:
        return self.reason is not None

    def send(self, frame: bytes) -> bool:
        with self.changed:
            self.frames.append(decode_strict(frame))
            self.changed.notify_all()
        return True

    def deliver(self, frames: list[bytes]) -> bool:
        for frame in frames:
            self.send(frame)
        return True

    def close(self, reason: str) -> None:
        with self.changed:
            self.reason = reason
            self.changed.notify_all()

    def take(self, method: str) -> list[dict[str, Any]]:
        """Remove and return the parameters of what was sent so far with that method."""
        with self.changed:
            found = [frame["params"] for frame in self.frames if frame["method"] == method]
            self.frames = [frame for frame in self.frames if frame["method"] != method]
        return found

    def wait_closed(self, within_s: float = PATIENCE_S) -> str:
        with self.changed:
            assert self.changed.wait_for(lambda: self.closed, within_s), "still open"
        return cast(str, self.reason)


def inboxes_around(
    dispatcher: Dispatcher, timer: Timer, clock: FakeClock, post: Address[Any]
) -> InboxDirectory:
    """Inboxes of a test that has nothing to do with direct messages."""
    return InboxDirectory(
        dispatcher,
        lambda: InboxNeighbours(post, post, timer, clock, dict, lease_s=30, window_s=600),
        lambda name, error: None,
    )


class Stage:
    """The attachment under test is Sam's; `ada` is another session that talks to it."""

    def __init__(self, bus: Bus, redis: PrivateRedis) -> None:
        self.bus = bus
        self.redis = redis
        self.clock = bus.clock
        self.writer = StreamWriter(redis.client, search=redis.info.search)
        set_mark(self.writer, bus.store.bus_id, Sequence(0))
        self.ada = bus.attach("Ada", "other")
        self.ledger, self.projector, self.registrar = Probe(), Probe(), Probe()
        self.timer = Timer(self.clock)
        self.dispatcher = Dispatcher(threads=2)
        self.channels = ChannelDirectory(self.dispatcher, lambda name, error: None)
        self.post = Probe()  # in place of the ledger and the wait keeper of inboxes
        self.inboxes = inboxes_around(self.dispatcher, self.timer, self.clock, self.post.address)
        self.link = RecordingLink()
        self.actor: AttachmentActor
        self.sam: Speaker
        self._pulls = 0

    # --- the attachment ---

    def attach(
        self, window: tuple[int, int] = (256, MIB), readiness: ReadinessChanged = READY
    ) -> SessionBound:
        """Bind Sam's session and start its attachment, as the registrar does."""
        identity = SessionIdentity("codex", "mine")
        done = self.bus.done(BindSession("Sam", identity, frozenset({"Ada"})))
        bound: SessionBound = done.result
        self.sam = Speaker(bound)
        self.link = RecordingLink()
        profile = Profile(bound, "argument", None, BusId("bus"), self.bus.config)
        self.actor = AttachmentActor(
            profile,
            self.link,
            window,
            readiness,
            self._neighbours(),
            self.bus.config,
            self.clock,
        )
        start_actor(self.actor)
        return bound

    @property
    def address(self) -> Address[AttachmentMessage]:
        return self.actor.address

    @property
    def attachment(self) -> Attachment:
        return self.sam.attachment

    @property
    def general(self) -> int:
        """Row id of Sam's subscription of the default channel."""
        return self.subscription("general")

    def subscription(self, channel: str) -> int:
        rows = self.bus.reader().subscriptions(self.attachment.session_id)
        return next(row.subscription_id for row in rows if row.channel == channel)

    def positions(self, channel: str = "general") -> tuple[int, int]:
        """Committed (handed_off, confirmed)."""
        rows = self.bus.reader().subscriptions(self.attachment.session_id)
        row = next(row for row in rows if row.channel == channel)
        return row.handed_off, row.confirmed

    def tell(self, message: AttachmentMessage) -> None:
        self.address.tell(message)

    def settle(self) -> None:
        """Wait until the attachment has handled what it was told and has pushed what there is.

        Twice, because what it is told may make it watch a channel, which then wakes it. An `ask`
        would not do: the attachment pushes when its mailbox is empty, and an `ask` lies in it.
        """
        for _ in range(2):
            settle(*self.channels.addresses())
            barrier = FutureReply()
            self.tell(PullAsked(Pull(self.attachment, 0, {}, 1, 1), barrier))
            with suppress(BusError):
                barrier.get(PATIENCE_S)
            deadline_s = time.monotonic() + PATIENCE_S
            while self.address.statistics().busy:
                assert time.monotonic() < deadline_s, "the attachment is still busy"
                time.sleep(0.0002)

    def ask(self, operation: str, /, **arguments: Any) -> FutureReply:
        reply = FutureReply()
        parsed = parse_operation(operation, arguments)
        assert not isinstance(parsed, Receive), "a receive never leaves the adapter"
        self.tell(Request(parsed, self.attachment, reply))
        return reply

    def operate(self, operation: str, /, **arguments: Any) -> Any:
        """An operation with everything that follows from it."""
        reply = self.ask(operation, **arguments)
        self.settle_changes()
        return reply.get(PATIENCE_S)

    def pull(self, after: int, channel: str = "general", **changes: Any) -> FutureReply:
        self._pulls += 1
        values: dict[str, Any] = {"count": 100, "max_bytes": MIB} | changes
        subscription = self.subscription(channel)
        pull = Pull(self.attachment, self._pulls, {subscription: Sequence(after)}, **values)
        reply = FutureReply()
        self.tell(PullAsked(pull, reply))
        return reply

    def cancel_pull(self) -> None:
        self.tell(PullCancelled(CancelPull(self.attachment, self._pulls)))

    def grant(self, messages: int, size_bytes: int = MIB) -> None:
        self.tell(CreditGranted(Credit(self.attachment, messages, size_bytes)))

    def report(
        self,
        number: int,
        positions: dict[int, int],
        *,
        epoch: int = 1,
        expired: tuple[int, ...] = (),
    ) -> FutureReply:
        reply = FutureReply()
        typed = {key: Sequence(value) for key, value in positions.items()}
        report = HandoffReport(self.attachment, epoch, number, typed, expired)
        self.tell(HandoffReported(report, reply))
        return reply

    def used(self, confirms: int, channels: tuple[str, ...] | None = None) -> None:
        self.tell(CallSeen(Used(self.attachment, confirms, channels)))

    def flush(self) -> MoveCursors:
        """Let the 20 ms pass; the change that the ledger then has before it."""
        self.settle()
        self.clock.advance(HANDOFF_FLUSH_MS / 1000)
        submit = self.ledger.expect(Submit)
        self.ledger.address.tell(submit)  # `settle_changes` commits it
        assert isinstance(submit.change, MoveCursors)
        return submit.change

    def no_flush(self) -> None:
        """Nothing is submitted, however long one waits."""
        self.settle()
        self.clock.advance(1.0)
        assert self.timer.statistics().pending == 0
        self.settle()
        self.ledger.expect_nothing_of(Submit)

    def deliveries(self) -> list[dict[str, Any]]:
        """What was pushed since the last time."""
        self.settle()
        return self.link.take("deliver")

    def pushed(self) -> list[int]:
        """Positions that were pushed since the last time."""
        return [
            position
            for params in self.deliveries()
            for position, _ in params["delivery"]["records"]
        ]

    # --- the ledger and the projector, played by the test ---

    def settle_changes(self) -> list[Change]:
        """Commit everything that the attachment submitted, answer it and project it."""
        self.settle()
        submits = [m for m in self.ledger.received() if isinstance(m, Submit)]
        for submit in submits:
            self.ledger.expect(Submit)
            (outcome,) = self.bus.store.apply([submit.change])
            if isinstance(outcome, Refused):
                submit.reply_to.set_exception(outcome.error)
                continue
            submit.reply_to.set(outcome.result)
            self._after_commit(outcome, submit.origin)
        self.settle()
        return [submit.change for submit in submits]

    def _after_commit(self, done: Done, origin: Address[AttachmentMessage] | None) -> None:
        kinds = (SubscriptionOpened, SubscriptionClosed, SubscriptionExpired)
        changed = tuple(fact for fact in done.facts if isinstance(fact, kinds))
        if origin is not None and changed:
            origin.tell(SubscriptionsChanged(changed))
        self.project(done)

    def project(self, done: Done) -> None:
        """Write a change's facts to Redis and tell the channel."""
        for fact in done.facts:
            if isinstance(fact, ContentFact):
                projection = projection_of(fact, search=self.redis.info.search)
                self.writer.project([projection], fact.sequence)
                told: ChannelMessage
                if isinstance(fact, MessageAppended):
                    told = Projected(fact.sequence, fact.sender.session_id)
                else:
                    told = NoticePosted(fact)
                self.channels.address(fact.channel_id).tell(told)
            elif isinstance(fact, MessagesRemoved):
                self.writer.remove(fact.channel_id, fact.through, fact.sequences)

    def say(self, *contents: str, channel: str = "general", speaker: Speaker | None = None) -> int:
        """Ada (or another) sends; the last sequence."""
        sequence = 0
        for content in contents:
            done = self.bus.done((speaker or self.ada).send(content, channel))
            sequence = done.result["sequence"]
            self.project(done)
        return sequence

    def rows(self) -> tuple[SubscriptionRow, ...]:
        """The session's subscriptions as they are committed."""
        return self.bus.reader().subscriptions(self.attachment.session_id)

    def wake(self, channel_id: int, head: int) -> None:
        self.tell(Wake(cast(Any, channel_id), Sequence(head)))

    def _neighbours(self) -> Neighbours:
        socket_path = self.redis.settings.socket_path
        return Neighbours(
            ledger=self.ledger.address,
            projector=self.projector.address,
            registrar=self.registrar.address,
            channels=self.channels,
            inboxes=self.inboxes,
            presences=Presences(Routes(), self.clock, lambda session_id: False),
            timer=self.timer,
            open_streams=lambda: StreamReader(connect(socket_path)),
            open_store=self.bus.reader,
            open_search=lambda: RedisSearch(connect(socket_path), threading.Lock()),
        )

    def close(self) -> None:
        if hasattr(self, "actor"):
            stop_actor(self.address, PATIENCE_S)
        self.dispatcher.stop(PATIENCE_S)
        self.timer.stop()
        for probe in (self.ledger, self.projector, self.registrar, self.post):
            probe.stop()


@contextmanager
def stage_on(folder: Path, redis: PrivateRedis, **settings: Any) -> Iterator[Stage]:
    """A stage whose Redis may be shared with others, one after the other."""
    clear(redis.client, lambda: None)
    bus = Bus(folder, **settings)
    stage = Stage(bus, redis)
    try:
        yield stage
    finally:
        stage.close()
        bus.close()
