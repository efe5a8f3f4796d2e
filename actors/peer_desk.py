"""The part of an attachment that serves the tool `peer`.

Owns nothing but the collections that wait. Reads with the attachment's reader; what changes
something goes to the ledger like any other mutation, and a wait to the inbox of the agent, which
answers it. Never claims, renews or decides anything itself. Runs on the attachment's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

from actors.base import Address, Reply
from actors.delivery_clocks import RETRY_S
from actors.inbox import InboxDirectory
from actors.inbox_messages import (
    AskCancelled,
    DeliveryAsked,
    LeasesRenewed,
    PeerWaiting,
    RequestAdvanced,
    SessionClosed,
    SessionOpened,
)
from actors.messages import AttachmentMessage, LedgerMessage, Submit
from actors.mutations import Mutations
from actors.peer_collects import PeerCollects
from actors.peer_directory import directory_page
from actors.peer_messages import (
    CollectDue,
    PeerAsked,
    PeerCancelled,
    PeerResultShown,
    ToPeerDesk,
)
from actors.presence import Presences
from actors.queries import Profile
from actors.replies import WhenRefused
from actors.timer import Timer
from agentbus.clock import Clock
from agentbus.config import Config
from agentbus.errors import BusError, DiscoveryDisabledError, UnavailableError
from agentbus.identity import Attachment
from agentbus.protocol.peer import (
    PeerAck,
    PeerAgents,
    PeerCheckpoint,
    PeerCollect,
    PeerDescribe,
    PeerDiscover,
    PeerHuman,
    PeerMemoryContext,
    PeerProgress,
    PeerReading,
    PeerRecent,
    PeerReply,
    PeerRequests,
    PeerSend,
    PeerStatus,
    PeerThreads,
    PeerWait,
)
from agentbus.protocol.peer_frames import PeerRequest
from agentbus.store.peer.changes import Claimed, MarkShown, PeerMutation
from agentbus.store.peer.reading import PeerReader


@dataclass(frozen=True, slots=True)
class PeerNeighbours:
    """Whom the desk tells, and for whom."""

    ledger: Address[LedgerMessage]
    inboxes: InboxDirectory
    presences: Presences
    timer: Timer
    owner: Address[AttachmentMessage]


class PeerDesk:
    """See the module. `notify` sends a notification of the attachment to its adapter."""

    def __init__(
        self,
        profile: Profile,
        mutations: Mutations,
        store: PeerReader,
        neighbours: PeerNeighbours,
        config: Config,
        clock: Clock,
        notify: Callable[[str, Mapping[str, object]], object],
    ) -> None:
        bound = profile.bound
        self._agent_id = bound.agent_id
        self._attachment = Attachment(bound.session_id, bound.generation)
        self._mutations = mutations
        self._store = store
        self._neighbours = neighbours
        self._config = config
        self._notify = notify
        self._collects = PeerCollects(
            self._agent_id,
            neighbours.inboxes,
            neighbours.owner,
            neighbours.timer,
            clock,
            lambda message_id: store.collected(
                bound.agent_id, bound.session_id, message_id, neighbours.presences.attached()
            ),
            lambda: store.consultation_seconds_left(bound.session_id, clock.wall_us()),
        )

    def begin(self) -> None:
        """Have the inbox tell this attachment what waits for it; again when it may be a new one."""
        self._inbox.tell(SessionOpened(self._attachment, self._neighbours.owner))
        self._collects.watch_anew()

    def end(self, error: BusError) -> None:
        """The attachment is over. The inbox answers its wait."""
        self._collects.end(error)
        self._inbox.tell(SessionClosed(self._attachment))

    @property
    def _inbox(self) -> Address[Any]:
        return self._neighbours.inboxes.address(self._agent_id)

    def take(self, message: ToPeerDesk) -> None:
        match message:
            case PeerAsked(request, reply_to):
                self._serve(request, reply_to)
            case PeerCancelled(number):
                if number in self._collects:
                    self._collects.cancel(number)
                else:
                    self._inbox.tell(AskCancelled(self._attachment, number))
            case CollectDue(number):
                self._collects.due(number)
            case RequestAdvanced(message_id):
                self._collects.advanced(message_id)
            case LeasesRenewed():
                self._inbox.tell(message)
            case PeerWaiting(_, count):
                self._notify("peer_waiting", {"count": count})
            case PeerResultShown():
                self._mark_shown(message)
            case _:
                assert_never(message)

    def _serve(self, request: PeerRequest, reply_to: Reply) -> None:
        operation = request.operation
        match operation:
            case PeerSend() | PeerReply() | PeerProgress() | PeerCheckpoint():
                self._write(operation, operation.idempotency_key, request, reply_to)
            case PeerAck() | PeerHuman() | PeerDescribe():
                self._write(operation, request.operation_id, request, reply_to)
            case PeerWait(timeout):
                answer = _ClaimAnswer(reply_to, self._config.peer_lease_seconds)
                wait_ms = round(timeout * 1000)
                self._inbox.tell(
                    DeliveryAsked(self._attachment, request.number, wait_ms, answer, request.only)
                )
            case PeerCollect():
                self._collects.begin(request.number, operation, reply_to)
            case _:
                reply_to.set(self._read(operation))

    def _write(
        self,
        operation: PeerSend
        | PeerReply
        | PeerProgress
        | PeerCheckpoint
        | PeerAck
        | PeerHuman
        | PeerDescribe,
        operation_id: str | None,
        request: PeerRequest,
        reply_to: Reply,
    ) -> None:
        make = partial(PeerMutation, operation, token=request.token)
        self._mutations.submit(operation, operation_id, reply_to, make)

    def _read(self, operation: PeerReading) -> dict[str, Any]:
        store, agent_id, attached = self._store, self._agent_id, self._neighbours.presences.attached
        match operation:
            case PeerDiscover() | PeerAgents():
                return self._directory(operation)
            case PeerRecent():
                page = store.recent(agent_id, operation)
                return {"messages": list(page.messages), "next_cursor": page.next_cursor}
            case PeerThreads():
                return {"threads": store.threads(agent_id)}
            case PeerStatus(message_id):
                return store.status(agent_id, message_id, attached())
            case PeerRequests(state, limit):
                return {"requests": store.requests(agent_id, state, limit, attached())}
            case PeerMemoryContext(delivery_id, message_id):
                return store.memory_context(agent_id, delivery_id, message_id)
            case _:
                assert_never(operation)

    def _directory(self, operation: PeerDiscover | PeerAgents) -> dict[str, Any]:
        if not self._config.discovery_enabled:
            raise DiscoveryDisabledError(
                "the directory is switched off (discovery_enabled); senders of messages stay "
                "visible, and whose name is known can be written to"
            )
        seen = self._neighbours.presences.seen()
        return directory_page(
            operation, self._store, seen, self._agent_id, self._attachment.session_id
        )

    def _mark_shown(self, shown: PeerResultShown) -> None:
        """Certain to be noted, or the same would be shown again: tried until the bus takes it."""
        timer, owner = self._neighbours.timer, self._neighbours.owner

        def refused(error: BaseException) -> None:
            if isinstance(error, UnavailableError):
                timer.deliver_after(RETRY_S, owner, shown)

        change = MarkShown(self._attachment, shown.responses, shown.notices)
        self._neighbours.ledger.tell(Submit(change, WhenRefused(refused)))


class _ClaimAnswer:
    """Turns what an inbox answers into the answer to `wait`; the adapter keeps the token."""

    __slots__ = ("_lease_s", "_reply_to")

    def __init__(self, reply_to: Reply, lease_s: int) -> None:
        self._reply_to = reply_to
        self._lease_s = lease_s

    def set(self, claimed: Claimed) -> None:
        answer: dict[str, Any] = {
            "delivery": claimed.delivery,
            "notices": list(claimed.notices),
            "token": claimed.token,
            "lease_seconds": self._lease_s,
        }
        if claimed.blocked is not None:
            answer["blocked"] = claimed.blocked
        self._reply_to.set(answer)

    def set_exception(self, error: BaseException) -> None:
        self._reply_to.set_exception(error)
