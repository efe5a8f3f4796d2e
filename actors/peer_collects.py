"""The collections of one agent that still wait for answers to a request.

Owns their numbers, their ends and what they answer. A collection consumes nothing: it may be
repeated. Blocks on its reads of the store; belongs to the thread of its owner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from actors.base import Address, Reply
from actors.inbox import Collector, InboxDirectory
from actors.inbox_messages import RequestAdvanced, RequestUnwatched, RequestWatched
from actors.peer_messages import CollectDue
from actors.timer import Timer, TimerHandle
from agentbus.clock import Clock
from agentbus.errors import BusError
from agentbus.ids import AgentId, MessageId
from agentbus.protocol.peer import PeerCollect
from agentbus.store.peer.collected import Collected, Slot

Outcome = Literal["complete", "partial", "no_reply", "cancelled"]


@dataclass(slots=True)
class _Collect:
    operation: PeerCollect
    reply_to: Reply
    began_s: float
    due: TimerHandle | None = None

    @property
    def message_id(self) -> MessageId:
        return MessageId(self.operation.message_id)


class PeerCollects:
    """Each is answered once: when enough has come, nothing more can come, or its time is over.

    `read` says what has become of a request, `seconds_left` how long the session may still ask.
    """

    def __init__(
        self,
        agent_id: AgentId,
        inboxes: InboxDirectory,
        owner: Address[CollectDue | RequestAdvanced],
        timer: Timer,
        clock: Clock,
        read: Callable[[str], Collected],
        seconds_left: Callable[[], float],
    ) -> None:
        self._agent_id = agent_id
        self._inboxes = inboxes
        self._owner = owner
        self._watcher: Collector = owner
        self._timer = timer
        self._clock = clock
        self._read = read
        self._seconds_left = seconds_left
        self._waiting: dict[int, _Collect] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._waiting

    def begin(self, number: int, operation: PeerCollect, reply_to: Reply) -> None:
        """Answer at once, or keep it until `CollectDue`. Raises what the request is not."""
        if number in self._waiting:
            self.cancel(number)
        collect = _Collect(operation, reply_to, self._clock.monotonic_s())
        wait_s = min(operation.timeout, self._seconds_left())
        if wait_s > 0:
            # Watched before it is read, so that no change falls between the two.
            self._watch(collect.message_id)
        try:
            collected = self._read(operation.message_id)
        except BusError:
            self._unwatch_unneeded(collect.message_id)
            raise
        if wait_s <= 0 or _is_over(operation, collected):
            self._unwatch_unneeded(collect.message_id)
            reply_to.set(self._answer(collect, collected))
            return
        self._waiting[number] = collect
        collect.due = self._timer.deliver_after(wait_s, self._owner, CollectDue(number))

    def watch_anew(self) -> None:
        """The inbox may be another than before; what came meanwhile is looked at."""
        for message_id in {collect.message_id for collect in self._waiting.values()}:
            self._watch(message_id)
            self.advanced(message_id)

    def advanced(self, message_id: MessageId) -> None:
        """Something has become of this request."""
        concerned = [n for n, one in self._waiting.items() if one.message_id == message_id]
        for number in concerned:
            self._look(number, last=False)

    def due(self, number: int) -> None:
        if number in self._waiting:
            self._look(number, last=True)

    def cancel(self, number: int) -> None:
        """Nobody waits for it any more."""
        self._look(number, last=True, outcome="cancelled")

    def end(self, error: BusError) -> None:
        """Answer all that wait with this error."""
        for number in list(self._waiting):
            self._take(number).reply_to.set_exception(error)

    def _look(self, number: int, *, last: bool, outcome: Outcome | None = None) -> None:
        """Answer it if it is over, or if this is the `last` look at it."""
        collect = self._waiting[number]
        try:
            collected = self._read(collect.message_id)
            if not last and not _is_over(collect.operation, collected):
                return
            answer = self._answer(collect, collected, outcome)
        except BusError as error:
            self._take(number).reply_to.set_exception(error)
            return
        self._take(number).reply_to.set(answer)

    def _take(self, number: int) -> _Collect:
        collect = self._waiting.pop(number)
        if collect.due is not None:
            collect.due.cancel()
        self._unwatch_unneeded(collect.message_id)
        return collect

    def _watch(self, message_id: MessageId) -> None:
        self._inboxes.address(self._agent_id).tell(RequestWatched(message_id, self._watcher))

    def _unwatch_unneeded(self, message_id: MessageId) -> None:
        if all(one.message_id != message_id for one in self._waiting.values()):
            self._inboxes.address(self._agent_id).tell(RequestUnwatched(message_id, self._watcher))

    def _answer(
        self, collect: _Collect, collected: Collected, outcome: Outcome | None = None
    ) -> dict[str, Any]:
        expected = _expected(collect.operation, collected)
        if outcome is None:
            if collected.answered >= expected:
                outcome = "complete"
            else:
                outcome = "partial" if collected.answered else "no_reply"
        slots, seconds_left = collected.slots, self._seconds_left()
        return {
            "request_id": collected.message_id,
            "outcome": outcome,
            "expected": expected,
            "answers": [_answer_data(slot) for slot in slots if slot.answer is not None],
            "pending": {slot.recipient: slot.as_pending() for slot in slots if slot.is_pending},
            "closed": {slot.recipient: slot.as_closed() for slot in slots if _is_closed(slot)},
            "excluded": collected.excluded,
            "elapsed_seconds": round(self._clock.monotonic_s() - collect.began_s, 3),
            "summary": _summary(collected, expected, seconds_left),
            "consultation_seconds_left": round(seconds_left, 3),
        }


def _expected(operation: PeerCollect, collected: Collected) -> int:
    if operation.expected is None:
        return len(collected.slots)
    return min(operation.expected, len(collected.slots))


def _is_over(operation: PeerCollect, collected: Collected) -> bool:
    return not collected.pending or collected.answered >= _expected(operation, collected)


def _is_closed(slot: Slot) -> bool:
    return slot.answer is None and not slot.is_pending


def _answer_data(slot: Slot) -> dict[str, Any]:
    answer = slot.answer
    assert answer is not None
    data = {
        "recipient": slot.recipient,
        "sender": answer.sender,
        "message_id": answer.message_id,
        "late": answer.late,
    }
    if answer.already_presented:
        return {**data, "body": None, "already_presented": True}
    return {**data, "body": answer.body}


def _summary(collected: Collected, expected: int, seconds_left: float) -> str:
    """One line for a reader who looks at nothing else."""
    parts = [f"{collected.answered} of {expected} expected answers"]
    late = [slot.recipient for slot in collected.slots if slot.answer and slot.answer.late]
    for what, names in (
        ("late", late),
        ("pending", [slot.recipient for slot in collected.slots if slot.is_pending]),
        ("closed without an answer", [s.recipient for s in collected.slots if _is_closed(s)]),
    ):
        if names:
            parts.append(f"{what}: {', '.join(names)}")
    if seconds_left <= 0 and collected.pending:
        parts.append("the time for asking others about this task is over, so nothing is waited for")
    return "; ".join(parts)
