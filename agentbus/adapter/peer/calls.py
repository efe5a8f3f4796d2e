"""What each operation of the tool `peer` does between the model and the daemon.

Owns: tokens and operation ids, the limits of a wait, claiming again what lapsed, cancelling, what
of a result counts as shown. Never: decides what a delivery's state is (the ledger does), lets a
token or the length of a lease reach the model. Used in the thread of the event loop.

A lease can lapse while the model works. The daemon then refuses the token; this claims once without
waiting, and goes on with the same key when it was given the same delivery. Instructions that a
person gave meanwhile come first, and when it was given another delivery or none the work is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

from agentbus.adapter.conversation import Conversation
from agentbus.adapter.link import Link
from agentbus.adapter.peer.everybody import everybody
from agentbus.adapter.peer.leases import Lease
from agentbus.adapter.peer.results import fit_answers, fit_delivery, fit_page, fit_status
from agentbus.adapter.retry import Retry
from agentbus.errors import BusError, ConflictError
from agentbus.ids import new_id
from agentbus.protocol.peer import (
    EVERYBODY,
    PeerAck,
    PeerAgents,
    PeerCheckpoint,
    PeerCollect,
    PeerDescribe,
    PeerDiscover,
    PeerHuman,
    PeerMemoryContext,
    PeerOperation,
    PeerProgress,
    PeerRecent,
    PeerReply,
    PeerRequests,
    PeerSend,
    PeerStatus,
    PeerThreads,
    PeerWait,
    PeerWriting,
    arguments_of,
)
from agentbus.rules import peer as refusals

_ANSWER_SLACK_S: Final = 10.0
"""How much longer than its own wait a wait or a collect may take."""

_ENDS_A_LEASE: Final = frozenset({refusals.HUMAN_REQUIRED, refusals.DELIVERY_UNAVAILABLE})

_PAGES: Final = {"discover": "agents", "agents": "agents", "recent": "messages"}
"""Operations whose answer is a page that `limit` bounds, and the member with its records."""


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """What one call answers. `settle(handed_off)` is to be told what became of it.

    `waiting`: what waits for the session when the model has this, where the daemon's count still
    has what the call did, or shows. Else the model would look for what it has just dealt with.
    """

    body: dict[str, Any]
    settle: Callable[[bool], None] | None = None
    error: BusError | None = None
    waiting: int | None = None


class PeerCall:
    """One call of the tool.

    `wait_limit_s`: longest wait that the client allows. `room()`: characters that the body of the
    result may take.
    """

    def __init__(
        self,
        link: Link,
        conversation: Conversation,
        own_agent: str,
        wait_limit_s: float,
        room: Callable[[], int],
    ) -> None:
        self._link = link
        self._conversation = conversation
        self._own_agent = own_agent
        self._wait_limit_s = max(0.0, wait_limit_s)
        self._room = room
        self._state = conversation.peer
        self._leases = conversation.peer.leases
        self._now = asyncio.get_running_loop().time

    async def answer(self, operation: PeerOperation) -> PeerAnswer:
        """Carry it out. Raises the BusError that the model has to see."""
        match operation:
            case PeerWait():
                return await self._wait(operation)
            case PeerCollect():
                return await self._collect(operation)
            case PeerSend():
                return await self._write(await self._expanded(operation))
            case (
                PeerReply()
                | PeerProgress()
                | PeerCheckpoint()
                | PeerAck()
                | PeerHuman()
                | PeerDescribe()
            ):
                return await self._write(operation)
            case PeerDiscover() | PeerAgents() | PeerRecent():
                return await self._page(operation)
            case PeerRequests():
                body = fit_page(await self._read(operation), "requests", self._room())
                return PeerAnswer(body, self._shows(notices=_late(body["requests"])))
            case PeerThreads():
                return PeerAnswer(fit_page(await self._read(operation), "threads", self._room()))
            case PeerStatus():
                return PeerAnswer(fit_status(await self._read(operation), self._room()))
            case PeerMemoryContext():
                return PeerAnswer(await self._read(operation))

    # --- reading ----------------------------------------------------------------------------------

    async def _read(self, operation: PeerOperation) -> dict[str, Any]:
        params = {"op": operation.NAME, "args": arguments_of(operation)}
        retry = Retry(self._link)
        timeout_s = self._conversation.timeout_s(inspected=False)
        while True:
            try:
                return cast(
                    dict[str, Any], await self._conversation.attempt("peer", params, timeout_s)
                )
            except BusError as error:
                await retry.after(error)

    async def _page(self, operation: PeerDiscover | PeerAgents | PeerRecent) -> PeerAnswer:
        """What does not fit is asked for with the next cursor, so the page is asked for anew with
        as many records as fit."""
        key = _PAGES[operation.NAME]
        while True:
            body = await self._read(operation)
            fitted = fit_page(body, key, self._room())
            kept = len(fitted[key])
            if kept == len(body[key]):
                break
            operation = replace(operation, limit=kept)
        if isinstance(operation, PeerRecent) and operation.reply_to is not None:
            return self._showing(fitted, _responses(fitted[key]))
        return PeerAnswer(fitted)

    # --- waiting ----------------------------------------------------------------------------------

    async def _wait(self, operation: PeerWait) -> PeerAnswer:
        started_s = self._now()
        limit_s = min(operation.timeout, self._wait_limit_s)
        held, heard = self._leases.held, self._state.heard
        body = await self._timed(operation, limit_s)
        self._blank_shown(body["delivery"], held)
        lease = _taken_lease(body)
        if lease is None:
            if self._leases.held is not None:
                self._leases.ended(self._leases.held.delivery_id)
        else:
            self._leases.hold(lease)
        body["waited_seconds"] = round(self._now() - started_s, 3)
        if limit_s < operation.timeout:
            body["timeout"] = limit_s
        fitted = fit_delivery(body, self._room())
        waiting = 0 if body["delivery"] is None and self._state.heard == heard else None
        return PeerAnswer(fitted, partial(self._wait_settled, fitted, lease), waiting=waiting)

    def _wait_settled(self, body: dict[str, Any], lease: Lease | None, handed_off: bool) -> None:
        delivery = body["delivery"]
        if lease is not None:
            self._leases.settle(lease, handed_off=handed_off)
        if not handed_off:
            return
        responses = [] if delivery is None else _responses([delivery["envelope"]])
        notices = [(notice["delivery_id"], notice["reply_state"]) for notice in body["notices"]]
        self._state.shown(responses, notices)
        if delivery is not None:
            self._leases.instructed(delivery.get("resume_context"))

    async def _collect(self, operation: PeerCollect) -> PeerAnswer:
        limit_s = min(operation.timeout, self._wait_limit_s)
        body = await self._timed(operation, limit_s)
        body["answers"] = [self._once(answer) for answer in body["answers"]]
        if limit_s < operation.timeout:
            body["timeout"] = limit_s
        fitted = fit_answers(body, self._room())
        shown = [one["message_id"] for one in fitted["answers"] if one.get("body") is not None]
        return self._showing(fitted, shown)

    async def _timed(
        self, operation: PeerWait | PeerCollect, limit_s: float, **more: str
    ) -> dict[str, Any]:
        """The answer within `limit_s`; attempts that fail take their part of it."""
        started_s = self._now()
        retry = Retry(self._link, until_s=started_s + self._wait_limit_s)
        while True:
            left_s = max(0.0, started_s + limit_s - self._now())
            number = self._state.next_number()
            args = {**arguments_of(operation), "timeout": left_s}
            params = {"op": operation.NAME, "args": args, "number": number, **more}
            answered = False
            try:
                body = await self._conversation.attempt("peer", params, left_s + _ANSWER_SLACK_S)
                answered = True
                return cast(dict[str, Any], body)
            except BusError as error:
                answered = not getattr(error, "sent", False)
                await retry.after(error)
            finally:
                if not answered:  # the client has cancelled the call, or the daemon is too slow
                    self._conversation.notify("cancel_peer", {"number": number})

    # --- writing ----------------------------------------------------------------------------------

    async def _expanded(self, operation: PeerSend) -> PeerSend:
        if operation.to != (EVERYBODY,):
            return operation
        key = operation.idempotency_key
        recipients = self._state.expansions.get(key)
        if recipients is None:
            config = self._link.config_in_force()
            recipients = await everybody(self._read, config, self._own_agent)
            self._state.expanded(key, recipients)
        return replace(operation, to=recipients)

    async def _write(self, operation: PeerWriting) -> PeerAnswer:
        operation_id = None if _key(operation) is not None else new_id()
        refreshed = False
        while True:
            lease, heard = self._lease(operation), self._state.heard
            try:
                body = await self._mutate(operation, lease, operation_id)
            except BusError as error:
                if error.reason in _ENDS_A_LEASE and lease is not None:
                    self._leases.ended(lease.delivery_id)
                if error.reason != refusals.STALE_LEASE or refreshed:
                    raise
                refreshed = True
                resumed = await self._claim_again(error)
                if resumed is not None:
                    return resumed
            else:
                if lease is None or not _finishes(operation, body):
                    return PeerAnswer(body)
                self._leases.ended(lease.delivery_id)
                if self._state.heard != heard:
                    return PeerAnswer(body)
                rests = body.get("status") == "paused"  # and keeps everything else back
                return PeerAnswer(body, waiting=0 if rests else self._state.without(1))

    async def _mutate(
        self, operation: PeerWriting, lease: Lease | None, operation_id: str | None
    ) -> dict[str, Any]:
        params: dict[str, Any] = {"op": operation.NAME, "args": arguments_of(operation)}
        if lease is not None:
            params["token"] = lease.token
        if operation_id is not None:
            params["operation_id"] = operation_id
        retry = Retry(self._link)
        timeout_s = self._conversation.timeout_s(inspected=True)
        while True:
            try:
                body = await self._conversation.attempt("peer", params, timeout_s)
                return cast(dict[str, Any], body)
            except BusError as error:
                try:
                    await retry.after(error)
                except BusError as last:
                    raise retry.outcome(
                        last, f"peer {operation.NAME}", _repeat(operation)
                    ) from None

    def _lease(self, operation: PeerWriting) -> Lease | None:
        """What proves that the operation may be done, where it is about held work."""
        if isinstance(operation, PeerSend):
            return self._leases.answered_by(operation.reply_to)
        if isinstance(operation, PeerDescribe):
            return None
        return self._leases.of(operation.delivery_id)

    async def _claim_again(self, error: BusError) -> PeerAnswer | None:
        """Have the lapsed delivery back: None, or what to tell instead.

        Raises ConflictError when it is not this session's any more.
        """
        delivery_id = str((error.detail or {}).get("delivery_id"))
        body = await self._timed(PeerWait(0.0), 0.0, only=delivery_id)
        lease = _taken_lease(body)
        if lease is None:
            self._leases.ended(delivery_id)
            raise refusals.unavailable(delivery_id, None)
        self._leases.hold(lease)
        context = self._leases.unseen_instructions(body["delivery"])
        if context is None:
            return None
        resumed: ConflictError = refusals.resumed(lease.delivery_id, context)
        return PeerAnswer({}, partial(self._resumed_settled, lease, context), resumed)

    def _resumed_settled(self, lease: Lease, context: dict[str, Any], handed_off: bool) -> None:
        self._leases.settle(lease, handed_off=handed_off)
        if handed_off:
            self._leases.instructed(context)

    # --- what was shown ---------------------------------------------------------------------------

    def _once(self, answer: dict[str, Any]) -> dict[str, Any]:
        """An answer of a collect without the text, if that was shown before."""
        if answer.get("body") is None or not self._state.was_shown(answer["message_id"]):
            return answer
        return {**answer, "body": None, "already_presented": True}

    def _blank_shown(self, delivery: dict[str, Any] | None, held: Lease | None) -> None:
        """Take the text from a response that was shown before it was claimed. What comes again from
        this session's own hands keeps it, as it is not finished."""
        if delivery is None or (held is not None and held.delivery_id == delivery["delivery_id"]):
            return
        envelope = delivery["envelope"]
        if envelope["kind"] == "response" and self._state.was_shown(envelope["id"]):
            envelope["body"] = None
            delivery["already_presented"] = True

    def _showing(self, body: dict[str, Any], responses: list[str]) -> PeerAnswer:
        """A result with these responses, which are finished when it has been handed off."""
        fresh = sum(not self._state.was_shown(response) for response in responses)
        waiting = self._state.without(fresh) if fresh else None
        return PeerAnswer(body, self._shows(responses=responses), waiting=waiting)

    def _shows(
        self,
        responses: list[str] | None = None,
        notices: list[tuple[str, str]] | None = None,
    ) -> Callable[[bool], None]:
        def settle(handed_off: bool) -> None:
            if handed_off:
                self._state.shown(responses or (), notices or ())

        return settle


def _taken_lease(body: dict[str, Any]) -> Lease | None:
    """The lease out of the answer to a wait, which is the model's without it."""
    token, lease_s = body.pop("token", None), body.pop("lease_seconds", None)
    delivery = body["delivery"]
    if delivery is None or token is None:
        return None
    return Lease(delivery["delivery_id"], delivery["envelope"]["id"], token, float(lease_s))


def _finishes(operation: PeerWriting, body: dict[str, Any]) -> bool:
    """Whether the session holds the delivery no more, now that this was done."""
    match operation:
        case PeerAck() | PeerHuman():
            return True
        case PeerReply(ack=ack):
            return ack
        case PeerSend(ack=ack):
            return ack is not False
        case PeerCheckpoint():
            return body.get("status") != "leased" and not body.get("duplicate")
        case _:
            return False


def _key(operation: PeerWriting) -> str | None:
    return getattr(operation, "idempotency_key", None)


def _repeat(operation: PeerWriting) -> str:
    key = _key(operation)
    return "unchanged" if key is None else f"unchanged, with idempotency_key {key!r}"


def _responses(messages: list[dict[str, Any]]) -> list[str]:
    """Ids of the answers among these whose text is there."""
    return [
        message["id"]
        for message in messages
        if message.get("kind") == "response" and message.get("body") is not None
    ]


def _late(requests: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The deliveries among these, one for each recipient, whose lateness is told herewith."""
    return [
        (request["id"], request["reply_state"])
        for request in requests
        if request["reply_state"] in ("overdue", "unanswered")
    ]
