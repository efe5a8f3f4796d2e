"""A ledger and the inboxes around it, all real; the test plays the adapters and owns the clock.

with post_office(tmp_path) as post:
    sam, kim = Peer(post, "Sam"), Peer(post, "Kim")
    request = sam.ask("Kim")
    claimed = post.claim(kim)           # as a `wait` of Kim's does
    post.pass_time(30)                  # everything that was due by then has happened
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from actors.base import Address, FutureReply, start_actor, stop_actor
from actors.inbox import InboxDirectory, InboxNeighbours
from actors.inbox_messages import (
    DeliveryAsked,
    LeasesRenewed,
    RequestWatched,
    SessionClosed,
    SessionOpened,
)
from actors.messages import Fence, Submit, Unfence
from actors.pool import Dispatcher
from actors.receipt_ledger import ReceiptLedgerActor
from actors.timer import Timer
from agentbus.errors import BusError
from agentbus.ids import AgentId, DeliveryId, MessageId, RecoveryEpoch, SessionId
from agentbus.store.changes import Change, Done
from agentbus.store.ledger import LedgerStore
from agentbus.store.peer.changes import Claimed, ListOpenDeliveries
from tests.clock import FakeClock
from tests.probe import Probe, settle
from tests.store.bus import Bus, config
from tests.store.peers import Peer, delivery

WITHIN_S = 10.0


class PostOffice(Bus):
    """A `Bus` whose changes go through the ledger's actor; see the module."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.path = folder / "bus.sqlite3"
        self.clock = FakeClock()
        self.config = config(folder, **settings)
        self._readers = []
        self._epoch = 0
        self._asks = 0
        self.crashes: list[str] = []
        self.attached: dict[AgentId, set[SessionId]] = {}
        self.waits = Probe("waits")
        self._projector = Probe("projector")
        self._marks = Probe("marks")
        self.start()

    def start(self, *, ready: bool = True) -> None:
        """Again after `stop`, on the same file. Without `ready` the ledger takes nothing yet."""
        self.timer = Timer(self.clock)
        self._dispatcher = Dispatcher(threads=2)
        self.inboxes = InboxDirectory(self._dispatcher, self._neighbours, self._crashed)
        self._ledger = ReceiptLedgerActor(
            lambda: LedgerStore(self.path, self.config, self.clock),
            self._projector.address,
            self.config,
            None,
            self.inboxes.tell,
        )
        start_actor(self._ledger)
        self._is_fenced = True
        if ready:
            self.unfence()

    def stop(self) -> None:
        assert stop_actor(self._ledger.address, WITHIN_S)
        assert self._dispatcher.stop(WITHIN_S)
        self.timer.stop()

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self.stop()
        for probe in (self.waits, self._projector, self._marks):
            probe.stop()

    def _neighbours(self) -> InboxNeighbours:
        return InboxNeighbours(
            ledger=self._ledger.address,
            waits=self.waits.address,
            timer=self.timer,
            clock=self.clock,
            attached=lambda: self.attached,
            lease_s=self.config.peer_lease_seconds,
            window_s=self.config.peer_window_seconds,
        )

    def _crashed(self, actor: str, error: BaseException) -> None:
        self.crashes.append(actor)

    # --- the ledger ---

    @property
    def ledger(self) -> Address[Any]:
        """Another one after each start."""
        return self._ledger.address

    def submit(self, change: Change) -> FutureReply:
        reply = FutureReply()
        self._ledger.address.tell(Submit(change, reply))
        return reply

    def done(self, change: Change) -> Done:
        return Done(self.submit(change).get(WITHIN_S))

    def refused(self, change: Change) -> BusError:
        try:
            answer = self.submit(change).get(WITHIN_S)
        except BusError as error:
            return error
        raise AssertionError(f"not refused: {answer}")

    def fence(self) -> None:
        """The bus recovers: nothing is accepted."""
        self._epoch += 1
        self._is_fenced = True
        self._ledger.address.tell(Fence(RecoveryEpoch(self._epoch), 100))

    def unfence(self) -> None:
        self._is_fenced = False
        self._ledger.address.tell(Unfence(RecoveryEpoch(self._epoch)))

    # --- time ---

    def settle(self) -> None:
        """Until everybody has handled what was told, and what followed from it."""
        for _ in range(3):
            settle(*self.inboxes.addresses(), within=WITHIN_S)
            if self._is_fenced:
                settle(self._ledger.address, within=WITHIN_S)
            else:  # a commit comes after whatever is in the mailbox, so this is committed with it
                self.done(ListOpenDeliveries(AgentId("nobody")))

    def pass_time(self, seconds: float) -> None:
        """Let it pass; whatever was due by then has been done, and what followed from it."""
        self.settle()
        self.timer.deliver_after(seconds, self._marks.address, "over")
        self.clock.advance(seconds)
        self._marks.expect(str, WITHIN_S)
        self.settle()

    # --- what adapters do ---

    def ask(self, peer: Peer, wait_ms: int = 0, only: str | None = None) -> FutureReply:
        """A `wait` of this session; answered with a Claimed."""
        reply = FutureReply()
        self._asks += 1
        of = DeliveryId(only) if only is not None else None
        self.inbox(peer).tell(
            DeliveryAsked(peer.speaker.attachment, self._asks, wait_ms, reply, of)
        )
        return reply

    @property
    def last_ask(self) -> int:
        return self._asks

    def claimed(self, peer: Peer, reply: FutureReply) -> dict[str, Any]:
        """The delivery that a wait brought; its session then holds it."""
        claimed: Claimed = reply.get(WITHIN_S)
        assert claimed.delivery is not None, claimed
        peer.token = claimed.token
        return claimed.delivery

    def claim(self, peer: Peer) -> dict[str, Any]:
        return self.claimed(peer, self.ask(peer))

    def renew(self, peer: Peer, delivery_id: str) -> None:
        assert peer.token is not None
        leases = ((DeliveryId(delivery_id), peer.token),)
        self.inbox(peer).tell(LeasesRenewed(peer.speaker.attachment, leases))

    def inbox(self, peer: Peer) -> Address[Any]:
        return self.inboxes.address(peer.agent_id)

    def open(self, peer: Peer, watcher: Probe) -> None:
        self.inbox(peer).tell(SessionOpened(peer.speaker.attachment, watcher.address))

    def leave(self, peer: Peer) -> None:
        self.inbox(peer).tell(SessionClosed(peer.speaker.attachment))

    def watch(self, peer: Peer, message_id: str, watcher: Probe) -> None:
        self.inbox(peer).tell(RequestWatched(MessageId(message_id), watcher.address))


@contextmanager
def post_office(folder: Path, **settings: Any) -> Iterator[PostOffice]:
    post = PostOffice(folder, **settings)
    try:
        yield post
    finally:
        post.close()
    assert not post.crashes, post.crashes


def nothing(reply: FutureReply) -> Claimed:
    """The answer of a wait that brought no delivery."""
    claimed: Claimed = reply.get(WITHIN_S)
    assert claimed.delivery is None
    return claimed


def is_open(reply: FutureReply) -> bool:
    try:
        reply.get(0)
    except TimeoutError:
        return True
    return False


def state(post: PostOffice, delivery_id: str) -> str:
    return str(delivery(post, delivery_id).state)
