"""The desk of questions over talk that agents answer: each becomes a request to a live session.

Owns the sessions that callers speak from, the collections that wait for the answers, and a reader
of its own, on its own thread. Never decides who may ask, nor whether the agent is there: the server
of the instance and the registrar did. What was sent outlives this desk; only its waits end with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

from actors.base import Address, BusActor
from actors.inbox import InboxDirectory
from actors.inbox_messages import RequestAdvanced
from actors.issued_session import IssuedSession
from actors.issued_session_messages import SessionIssued, WriteDone, WriteRefused
from actors.messages import LedgerMessage, Link, ReadinessChanged
from actors.peer_collects import PeerCollects
from actors.peer_messages import CollectDue
from actors.talk_desk_messages import DelegationAsked, DepthAsked, ResultAsked, TalkDeskMessage
from actors.timer import Timer
from agentbus.clock import Clock
from agentbus.encoding import encode_canonical
from agentbus.errors import BusError, NotFoundError, UnavailableError
from agentbus.identity import Attachment, SenderBinding, SessionIdentity
from agentbus.ids import AgentId, MessageId, SessionId
from agentbus.protocol.jsonrpc import encode_notification
from agentbus.protocol.peer import PeerCollect, PeerSend
from agentbus.rules.receipts import digest
from agentbus.store.peer.changes import Delegate
from agentbus.store.peer.collected import Collected, Slot
from agentbus.store.peer.delegations import DelegationReader
from agentbus.store.peer.reading import Attached

APPLICATION = "talk"
CONVERSATION = "questions"
"""One session for all questions of a caller, so that a repeat is known as one."""

_Caller: TypeAlias = tuple[AgentId, SessionId]


@dataclass(frozen=True, slots=True)
class TalkNeighbours:
    """Whom the desk tells, and what it asks. `attached` may be asked on any thread."""

    ledger: Address[LedgerMessage]
    inboxes: InboxDirectory
    timer: Timer
    attached: Callable[[], Attached]


class TalkDeskActor(BusActor[TalkDeskMessage]):
    """1. A question is answered when it is committed; what becomes of it is told to the connection
    that asked, once, at the end of its time at the latest.
    2. A repeat with the same key finds the request of the first time, also in a later daemon.
    3. An answer that nobody waits for any more is kept as every reply is.
    """

    def __init__(
        self,
        open_store: Callable[[], DelegationReader],
        neighbours: TalkNeighbours,
        clock: Clock,
    ) -> None:
        super().__init__()
        self._open_store = open_store
        self._neighbours = neighbours
        self._clock = clock
        self._store: DelegationReader
        self._sessions: dict[str, IssuedSession] = {}  # by the agent name of the caller
        self._collects: dict[AgentId, PeerCollects] = {}
        self._waiting: dict[int, PeerCollects] = {}  # by the number of the collection
        self._numbers = itertools.count(1)

    def on_start(self) -> None:
        self._store = self._open_store()

    def on_stop(self) -> None:
        error = UnavailableError("the bus is stopping; ask again when it runs")
        for session in self._sessions.values():
            session.end(error)
        for collects in self._collects.values():
            collects.end(error)
        self._store.close()

    def on_failure(self, *_: object) -> None:
        self.on_stop()

    def receive(self, message: TalkDeskMessage) -> None:
        match message:
            case DelegationAsked():
                self._delegate(message)
            case ResultAsked(message_id, reply_to):
                reply_to.set(self._result(message_id))
            case DepthAsked(sessions, reply_to):
                depth = self._store.depth_of_work(sessions)
                reply_to.set({"may_be": True, "depth": 0 if depth is None else depth + 1})
            case CollectDue(number):
                if number in self._waiting:
                    self._waiting[number].due(number)
            case RequestAdvanced(message_id):
                for collects in self._collects.values():
                    collects.advanced(message_id)
            case ReadinessChanged():
                for collects in self._collects.values():
                    collects.watch_anew()
            case SessionIssued() | WriteDone() | WriteRefused():
                self._sessions[message.agent].take(message)
            case _:
                assert_never(message)

    def _delegate(self, asked: DelegationAsked) -> None:
        ask = asked.ask
        deadline_s = self._clock.monotonic_s() + ask.within_ms / 1000
        session = self._sessions.get(ask.sender)
        if session is None:
            identity = SessionIdentity(APPLICATION, CONVERSATION)
            session = IssuedSession(ask.sender, identity, self._neighbours.ledger, self.address)
            self._sessions[ask.sender] = session

        caller: list[_Caller] = []  # of the last attempt: a session that went stale is bound again

        def make(sender: SenderBinding, attachment: Attachment) -> Delegate:
            caller.append((sender.agent_id, sender.session_id))
            return _change(asked, sender, attachment)

        def sent(receipt: dict[str, Any]) -> None:
            asked.reply_to.set({key: receipt[key] for key in ("message_id", "duplicate")})
            message_id = MessageId(receipt["message_id"])
            self._follow(caller[-1], message_id, deadline_s, _Ear(asked.link, ask.delegation_id))

        session.write(make, _Then(sent, asked.reply_to.set_exception))

    def _follow(self, caller: _Caller, message_id: MessageId, deadline_s: float, ear: _Ear) -> None:
        """Tell what has become of it when that is certain, or its time is over."""
        agent_id, _ = caller
        collects = self._collects.get(agent_id)
        if collects is None:
            collects = self._collects[agent_id] = self._new_collects(caller)
        number = next(self._numbers)

        def over(_: object) -> None:
            self._waiting.pop(number, None)
            ear.tell(self._outcome(caller, message_id))

        self._waiting[number] = collects
        within_s = max(0.0, deadline_s - self._clock.monotonic_s())
        # An error would be that of a read, which `over` meets again.
        then = _Then(over, over)
        try:
            collects.begin(number, PeerCollect(message_id, within_s), then)
        except BusError as error:
            then.set_exception(error)

    def _new_collects(self, caller: _Caller) -> PeerCollects:
        agent_id, _ = caller
        return PeerCollects(
            agent_id,
            self._neighbours.inboxes,
            self.address,
            self._neighbours.timer,
            self._clock,
            lambda message_id: self._read(caller, message_id),
            lambda: math.inf,  # the time of a question is all that bounds it
        )

    def _read(self, caller: _Caller, message_id: str) -> Collected:
        return self._store.collected(*caller, message_id, self._neighbours.attached())

    def _result(self, message_id: str) -> dict[str, Any]:
        caller = self._store.caller(message_id)
        if caller is None:
            raise NotFoundError(
                f"there is no question over talk {message_id!r}, or it is retained no more"
            )
        return self._outcome(caller, message_id)

    def _outcome(self, caller: _Caller, message_id: str) -> dict[str, Any]:
        try:
            (slot,) = self._read(caller, message_id).slots
        except NotFoundError:
            return {"message_id": message_id, "state": "gone"}
        except BusError as error:
            return {"message_id": message_id, "state": "unknown", "reason": error.message}
        return {"message_id": message_id, **_outcome_of(slot)}


class _Ear:
    """Who hears what has become of a question: its server, if it is still connected."""

    __slots__ = ("_delegation_id", "_link")

    def __init__(self, link: Link, delegation_id: str) -> None:
        self._link = link
        self._delegation_id = delegation_id

    def tell(self, outcome: dict[str, Any]) -> None:
        params = {"delegation_id": self._delegation_id, **outcome}
        self._link.send(encode_notification("talk_answered", params))


class _Then:
    """Goes on when it is settled, on the thread where that is."""

    __slots__ = ("_done", "_failed")

    def __init__(
        self, done: Callable[[Any], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._done = done
        self._failed = failed

    def set(self, value: Any) -> None:
        self._done(value)

    def set_exception(self, error: BaseException) -> None:
        self._failed(error)


def _change(asked: DelegationAsked, sender: SenderBinding, attachment: Attachment) -> Delegate:
    ask = asked.ask
    # The key is the caller's own at each instance, and longer than one of an agent may be.
    key = digest(encode_canonical([ask.instance, ask.key])).hex()
    within_s = math.ceil(ask.within_ms / 1000)
    return Delegate(
        PeerSend(
            to=(ask.instance,),
            body=ask.prompt,
            idempotency_key=key,
            kind="request",
            expect_reply_within_seconds=max(1, within_s),
        ),
        operation_id=key,
        fingerprint=digest(ask.prompt.encode()),
        sender=sender,
        attachment=attachment,
        rate_ok=True,  # its server has only so many under way
        depth=ask.depth,
        recipient=asked.recipient,
    )


def _outcome_of(slot: Slot) -> dict[str, Any]:
    """What the notification and `talk_result` say beside the message id."""
    if slot.answer is not None:
        if slot.answer.body is None:
            return {"state": "gone"}
        return {"state": "answered", "text": slot.answer.body}
    state = "pending" if slot.is_pending else "ended"
    reason = slot.cancelled_reason or slot.cause
    return {"state": state, "delivery_state": slot.delivery_state, "reason": reason}
