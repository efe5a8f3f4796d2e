"""What each tool call does: from its arguments and evidence to an answer and its delivery.

Owns: the conversations of this process, the tool calls in flight, what a receive waits for. Never:
lets an exception out (an answer always comes), speaks MCP. Used in the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentbus.adapter.binding import Binder, Binding, Caller
from agentbus.adapter.conversation import Conversation, Profile
from agentbus.adapter.evidence import HOOK_TOOL, HookEvent
from agentbus.adapter.handoff import Delivery, Outcome, current_delivery
from agentbus.adapter.hook_reports import HookReports
from agentbus.adapter.link import Link
from agentbus.adapter.peer import tool as peer_tool
from agentbus.adapter.peer.calls import PeerCall
from agentbus.adapter.prefetch import Batch, Budget, Prefetch
from agentbus.adapter.results import (
    Answer,
    Header,
    ReceiveFacts,
    answer,
    ceiling_characters,
    error_answer,
    fit_history,
    fit_history_message,
    fit_list,
    fit_memory,
    fit_search,
    receive_answer,
    receive_budget,
)
from agentbus.adapter.retry import Retry
from agentbus.adapter.subscription import Held
from agentbus.adapter.tools import parse_call
from agentbus.adapter.waking import Waker, polling_hint
from agentbus.config import Config
from agentbus.encoding import encode
from agentbus.errors import BusError, InternalError, OverloadedError
from agentbus.failpoints import reach
from agentbus.identity import SessionIdentity
from agentbus.ids import new_id
from agentbus.limits import IN_FLIGHT_PER_ATTACHMENT, KIB, MIB, RESULT_BYTES
from agentbus.protocol.operations import (
    MUTATIONS,
    History,
    Operation,
    Receive,
    given_arguments,
)
from agentbus.protocol.peer import PeerMemoryContext, PeerOperation, PeerWait

_log = logging.getLogger(__name__)

_EMPTY_WAITS_BEFORE_HINT = 3
_SHUTDOWN_REPORTS_S = 0.3
_MARGIN_CHARACTERS = 100
"""For numbers of a header that change while a peer call is under way."""

_LISTS = {"list_channels": "channels", "discover": "sessions"}
"""Tools whose answer is one list, cut to the ceiling."""


@dataclass(eq=False, slots=True, kw_only=True)
class ResultDelivery(Delivery):
    """A result on its way out, with what it carries and whose it is."""

    conversation: Conversation
    prefetch: Prefetch
    batch: Batch | None
    notices: tuple[dict[str, Any], ...]
    settle_peer: Callable[[bool], None] | None = None
    """Told whether a result of the tool `peer` was handed off."""


def _begun(delivery: Delivery) -> None:
    assert isinstance(delivery, ResultDelivery)
    if delivery.batch is not None:
        delivery.conversation.handing_off(delivery.prefetch, delivery.batch)


def _settled(delivery: Delivery) -> None:
    assert isinstance(delivery, ResultDelivery)
    if delivery.handed_off:
        delivery.conversation.notices_told(delivery.notices)
    if delivery.settle_peer is not None:
        delivery.settle_peer(delivery.handed_off)
    if delivery.batch is not None:
        if delivery.handed_off and delivery.batch.entries:
            reach("after_handoff_write")
        delivery.conversation.settle(
            delivery.prefetch,
            delivery.batch,
            handed_off=delivery.handed_off,
            bytes_left=delivery.bytes_left,
            begun=delivery.begun,
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """One sound tool call. `arrival` is for confirming what was handed off before it came."""

    name: str
    operation: Operation | PeerOperation
    arguments: dict[str, Any]
    caller: Caller
    conversation: Conversation
    arrival: int

    def header(self, notices: tuple[dict[str, Any], ...] = ()) -> Header:
        """With what every result tells, and these notices."""
        conversation = self.conversation
        told = (*conversation.notices, *notices)
        pending, peer = conversation.prefetch.pending, conversation.peer.waiting
        return Header(conversation.display_name, pending, told, peer)

    def deliver(self, batch: Batch | None, notices: tuple[dict[str, Any], ...] = ()) -> None:
        """From now on the transport says what became of the result of this task."""
        conversation = self.conversation
        current_delivery.set(
            ResultDelivery(
                on_settle=_settled,
                on_begin=_begun,
                conversation=conversation,
                prefetch=conversation.prefetch,
                batch=batch,
                notices=(*conversation.notices, *notices),
            )
        )

    def deliver_peer(self, settle: Callable[[bool], None] | None, *, with_header: bool) -> None:
        """The same for a result of the tool `peer`."""
        conversation = self.conversation
        current_delivery.set(
            ResultDelivery(
                on_settle=_settled,
                conversation=conversation,
                prefetch=conversation.prefetch,
                batch=None,
                notices=tuple(conversation.notices) if with_header else (),
                settle_peer=settle,
            )
        )


class Calls:
    """See the module."""

    def __init__(self, link: Link, profile: Profile, binder: Binder) -> None:
        self.in_flight = 0
        self._link = link
        self._profile = profile
        self._binder = binder
        self._hook_reports = HookReports(link)
        self._waker = Waker(profile.harness_pid)
        self._conversations: dict[SessionIdentity, Conversation] = {}
        self._windows: dict[Conversation, tuple[int, int]] = {}
        link.on_reconnected = self._reconnected
        link.on_evidence = self.hook

    async def call(
        self, name: str, arguments: Any, client_name: str | None, meta: Mapping[str, Any]
    ) -> Answer:
        """The answer to one tool call, an error answer for whatever goes wrong."""
        if name == HOOK_TOOL:
            event = self.hook(arguments if isinstance(arguments, Mapping) else {})
            if event is not None:
                self._hook_reports.spoke(client_name, event)
            return answer({})
        self.in_flight += 1
        try:
            return await self._call(name, arguments, client_name, meta)
        except BusError as error:
            return self._failed(error)
        except Exception:
            _log.exception("tool %s failed", name[:64])
            return self._failed(InternalError("the adapter failed on this call; see its stderr"))
        finally:
            self.in_flight -= 1

    def hook(self, fields: Mapping[str, Any]) -> HookEvent | None:
        """Take what a hook of the harness said; None: it names no event, and is passed over."""
        event = HookEvent.read(fields)
        if event is None:
            return None
        self._binder.hooks.saw(event)
        for identity in self._conversations:
            if (identity.conversation, identity.child) == (event.conversation, None):
                if event.event == "Stop" and event.child is None:
                    self._waker.stopped(identity)
                elif event.event in ("SessionStart", "UserPromptSubmit"):
                    self._waker.active(identity)
        if event.event == "SubagentStop" and event.child is not None and event.role is not None:
            self._leave(lambda identity: identity.child == event.child)
        elif event.event == "SessionEnd":
            self._leave(lambda identity: identity.conversation == event.conversation)
        return event

    def _leave(self, ended: Callable[[SessionIdentity], bool]) -> None:
        """Close the attachments of what has ended, rather than when their connection does."""
        for identity in [known for known in self._conversations if ended(known)]:
            conversation = self._conversations.pop(identity)
            self._windows.pop(conversation, None)
            conversation.leave()

    async def finish(self) -> None:
        """Give the last handoff reports a moment to be answered."""
        waits = [c.reported(_SHUTDOWN_REPORTS_S) for c in self._conversations.values()]
        await asyncio.gather(*waits)

    # --- one call ---------------------------------------------------------------------------------

    async def _call(
        self, name: str, arguments: Any, client_name: str | None, meta: Mapping[str, Any]
    ) -> Answer:
        caller = self._binder.caller(client_name, meta)
        conversation = self._conversation(caller.binding)
        self._waker.active(caller.binding.identity)
        arrival = conversation.prefetch.arrival()
        operation: Operation | PeerOperation
        if name == peer_tool.NAME:
            operation = peer = peer_tool.parse_peer_call(arguments)
            call = _Call(name, operation, {}, caller, conversation, arrival)
        else:
            operation, peer = parse_call(name, arguments, self._link.config_in_force), None
            given = given_arguments(operation, arguments or {})
            call = _Call(name, operation, given, caller, conversation, arrival)
        if conversation.in_flight >= IN_FLIGHT_PER_ATTACHMENT:
            raise OverloadedError(
                f"{name}: {IN_FLIGHT_PER_ATTACHMENT} calls of this session are under way; wait for "
                "an answer first"
            )
        conversation.in_flight += 1
        try:
            if peer is not None:
                return await self._peer(call, peer)
            if isinstance(operation, Receive):
                return await self._receive(call, operation)
            return await self._operate(call)
        finally:
            conversation.in_flight -= 1
            if conversation.has_left and not conversation.in_flight:
                conversation.leave()

    def _reconnected(self) -> None:
        for conversation in self._conversations.values():
            conversation.reconnected()

    @staticmethod
    def _failed(error: BusError) -> Answer:
        delivery = current_delivery.get()
        if delivery is not None:
            delivery.settle(Outcome.ERROR_RESPONSE)
            current_delivery.set(None)
        return error_answer(error)

    def _conversation(self, binding: Binding) -> Conversation:
        conversation = self._conversations.get(binding.identity)
        if conversation is None:
            conversation = Conversation(self._link, self._profile, binding, self._window)
            conversation.on_arrival = partial(self._waker.arrived, binding.identity)
            self._conversations[binding.identity] = conversation
        conversation.proven(binding)
        return conversation

    def _window(self, conversation: Conversation) -> tuple[int, int]:
        """Half of what the attached conversations leave, so that all together keep the bound.

        Never less than one message, however many there are.
        """
        config = self._link.config_in_force()
        others = [
            window
            for other, window in self._windows.items()
            if other is not conversation and other.attachment is not None
        ]
        left_messages = config.prefetch_messages - sum(messages for messages, _ in others)
        left_bytes = config.prefetch_mib * MIB - sum(size_bytes for _, size_bytes in others)
        window = max(1, left_messages // 2), max(1, left_bytes // 2)
        self._windows[conversation] = window
        return window

    # --- operations of the daemon -----------------------------------------------------------------

    async def _operate(self, call: _Call) -> Answer:
        conversation = call.conversation
        args = dict(call.arguments)
        ceiling = 0
        if call.name in MUTATIONS:
            args.setdefault("operation_id", new_id())
        if call.name in ("history", "search", "get_memory") or call.name in _LISTS:
            ceiling = self._ceiling(call)
        if call.name in ("history", "search"):
            args["max_kib"] = -(-ceiling // KIB)
        conversation.used(call.arrival, None)
        body: dict[str, Any] = await conversation.operate(call.name, args)
        if call.name == "subscribe":
            conversation.prefetch.subscribed(
                body.pop("subscription_id"), body["channel"], body["from_sequence"] - 1
            )
        elif call.name == "unsubscribe":
            body.pop("subscription_id", None)
            conversation.prefetch.left(body["channel"])
        elif call.name == "whoami":
            body["identity_source"] = conversation.binding.source
        header = call.header().data()
        left = ceiling - len(encode(header))
        if isinstance(call.operation, History):
            if "message" in body:
                body = fit_history_message(body, left)
            else:
                body = fit_history(body, left, forwards=call.operation.after is not None)
        elif call.name == "search":
            body = fit_search(body, left)
        elif call.name == "get_memory":
            body = fit_memory(body, left)
        elif call.name in _LISTS:
            body = fit_list(body, _LISTS[call.name], left)
        if conversation.notices:
            call.deliver(None)
        return answer(header | body)

    def _ceiling(self, call: _Call) -> int:
        return ceiling_characters(
            call.arguments.get("max_kib"),
            self._link.config_in_force(),
            call.caller.result_characters,
        )

    # --- direct work ------------------------------------------------------------------------------

    async def _peer(self, call: _Call, operation: PeerOperation) -> Answer:
        conversation = call.conversation
        ceiling = self._ceiling(call) - _MARGIN_CHARACTERS
        peer = PeerCall(
            self._link,
            conversation,
            self._profile.agent,
            call.caller.wait_seconds,
            room=lambda: ceiling - len(encode(call.header().data())),
        )
        conversation.used(call.arrival, None)
        told = await peer.answer(operation)
        # Metadata of a memory is passed on as it is, so nothing may stand beside it.
        with_header = told.error is None and not isinstance(operation, PeerMemoryContext)
        call.deliver_peer(told.settle, with_header=with_header)
        if told.error is not None:
            return error_answer(told.error)
        if not with_header:
            return answer(told.body)
        shown = call.header()
        if told.waiting is not None:
            shown = replace(shown, peer=told.waiting)
        header = shown.data()
        body = header | told.body
        if isinstance(operation, PeerWait):
            if told.body["delivery"] is not None or told.body["notices"]:
                conversation.empty_waits = 0
            elif operation.timeout > 0:
                conversation.empty_waits += 1
            if conversation.empty_waits >= _EMPTY_WAITS_BEFORE_HINT:
                body["hint"] = polling_hint(call.caller)
            body["notices"] = [*header.get("notices", ()), *told.body["notices"]]
        return answer(body)

    # --- receive ----------------------------------------------------------------------------------

    async def _receive(self, call: _Call, operation: Receive) -> Answer:
        conversation = call.conversation
        receive = _Receive(call, operation, self._link.config_in_force(), self._ceiling(call))
        retry = Retry(self._link, until_s=receive.started_s + call.caller.wait_seconds)
        used = False
        while True:
            try:
                await conversation.attach()
                conversation.prefetch.select(operation.channels)
                if not used:
                    conversation.used(call.arrival, operation.channels)
                    used = True
                await receive.compare_memories()
                if operation.replay:
                    return receive.replay()
                if not operation.include_own and (answered := receive.take()) is not None:
                    return answered
                await receive.pull()
                await receive.compare_memories()
                retry.succeeded()
                if (answered := receive.take(last=receive.left_s() <= 0)) is not None:
                    return answered
            except BusError as error:
                await retry.after(error)


class _Receive:
    """One receive: its clock, its ceilings, and the result it ends with."""

    def __init__(self, call: _Call, operation: Receive, config: Config, ceiling: int) -> None:
        self._now = asyncio.get_running_loop().time
        self.started_s = self._now()
        self._call = call
        self._operation = operation
        self._ceiling = ceiling
        self._count = operation.count or config.recv_default_count
        self._wait_s = min(
            operation.wait_seconds, config.recv_max_wait_seconds, call.caller.wait_seconds
        )

    def left_s(self) -> float:
        return self.started_s + self._wait_s - self._now()

    async def pull(self) -> None:
        """Ask the daemon, and wait for its answer or for what it pushes meanwhile."""
        operation, conversation = self._operation, self._call.conversation
        pull = conversation.pull(
            operation.channels,
            count=self._count,
            max_bytes=RESULT_BYTES,
            wait_s=max(0.0, self.left_s()),
            own=operation.include_own,
        )

        def something_came() -> bool:
            if self._notices():
                return True
            prefetch = conversation.prefetch
            return not operation.include_own and prefetch.has_waiting(operation.channels)

        await pull.wait(something_came)

    async def compare_memories(self) -> None:
        """What is shown next is as it is now; only memories have to be asked for."""
        operation, conversation = self._operation, self._call.conversation

        def held() -> list[Held]:
            if operation.replay:
                return conversation.prefetch.last_memories()
            return conversation.prefetch.held_memories(operation.channels, self._count)

        await conversation.compare_memories(held)

    def take(self, *, last: bool = False) -> Answer | None:
        """The result, if there is something to tell; in any case when it is the last attempt."""
        prefetch, operation = self._call.conversation.prefetch, self._operation
        notices = self._notices()
        budget = receive_budget(self._facts(notices), self._count, self._ceiling)
        batch = prefetch.take(operation.channels, budget, own=operation.include_own)
        if batch.is_empty and not prefetch.has_untold_expiry and not notices and not last:
            return None
        return self._result(batch, notices, budget)

    def replay(self) -> Answer:
        notices = self._notices()
        budget = receive_budget(self._facts(notices), self._count, self._ceiling)
        return self._result(self._call.conversation.prefetch.replay(budget), notices, budget)

    def _notices(self) -> tuple[dict[str, Any], ...]:
        """What is told of changed memories; at most half of the result."""
        notices = self._call.conversation.memory_notices
        return notices.of(self._operation.channels, self._ceiling // 2)

    def _result(self, batch: Batch, notices: tuple[dict[str, Any], ...], budget: Budget) -> Answer:
        conversation = self._call.conversation
        self._call.deliver(batch, notices)
        if not batch.is_empty or notices:
            conversation.empty_waits = 0
        elif self._wait_s > 0:
            conversation.empty_waits += 1
        return receive_answer(self._facts(notices), batch, budget)

    def _facts(self, notices: tuple[dict[str, Any], ...]) -> ReceiveFacts:
        conversation = self._call.conversation
        return ReceiveFacts(
            header=self._call.header(notices),
            expired=conversation.prefetch.expired,
            waited_seconds=self._now() - self.started_s,
            hint=self._hint(),
        )

    def _hint(self) -> str | None:
        if self._call.conversation.empty_waits < _EMPTY_WAITS_BEFORE_HINT:
            return None
        return polling_hint(self._call.caller)
