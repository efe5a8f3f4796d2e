"""The times of an agent's deliveries: leases and windows of its work, dues of its requests.

Owns the deadlines, all on the monotonic clock, and which change of the ledger follows one that has
passed. Never decides that a lease is over: a commit does, and a change that comes too late changes
nothing there. Wall times of rows are read once, when an inbox loads. Belongs to the inbox's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from actors.base import Address
from actors.inbox_messages import InboxMessage, LeaseDue, ReplyDue, Upkeep, WindowDue
from actors.timer import Timer, TimerHandle
from agentbus.clock import Clock
from agentbus.ids import AgentId, DeliveryId, LeaseToken
from agentbus.protocol.peer_frames import LateState
from agentbus.rules.peer import is_reached
from agentbus.store.peer.changes import (
    AbandonLease,
    CloseWindow,
    DeliveryView,
    ExtendLease,
    MarkReplyLate,
)
from agentbus.store.peer.reading import Attached

RETRY_S = 2.0
"""Between two attempts of a change that the ledger could not take, as while the bus recovers."""

_US = 1_000_000


class _Deadline:
    """One time of one delivery, and the message that comes at it. Later is cheap: the message then
    comes too early once, and is sent again for the rest."""

    __slots__ = ("at_s", "handle")

    def __init__(self) -> None:
        self.at_s = 0.0
        self.handle: TimerHandle | None = None

    def cancel(self) -> None:
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None


@dataclass(slots=True)
class _Times:
    """Of one delivery. `saved_s`: until when the row says that its lease holds."""

    view: DeliveryView
    lease: _Deadline
    window: _Deadline
    reply: _Deadline
    saved_s: float = 0.0
    overdue_s: float = 0.0
    unanswered_s: float = 0.0


class DeliveryClocks:
    """1. A lease or a window runs from when its commit was told, a reply from when its delivery was
       made; a jump of the wall clock moves none of them.
    2. What was loaded from disk goes on: a lease anew and whole, since nobody could renew it
       meanwhile, the others from the wall time of the row, held between nothing and all of it.
    3. Only the recipient's inbox ends leases and windows, only the sender's marks late replies.
    """

    def __init__(
        self,
        agent_id: AgentId,
        owner: Address[InboxMessage],
        timer: Timer,
        clock: Clock,
        attached: Callable[[], Attached],
        *,
        lease_s: float,
        window_s: float,
    ) -> None:
        self._agent_id = agent_id
        self._owner = owner
        self._timer = timer
        self._clock = clock
        self._attached = attached
        self._lease_s = lease_s
        self._window_s = window_s
        self._times: dict[DeliveryId, _Times] = {}

    def __len__(self) -> int:
        return len(self._times)

    def stop(self) -> None:
        for times in self._times.values():
            _cancel(times)
        self._times.clear()

    # --- what is so ---

    def load(self, views: Iterable[DeliveryView]) -> None:
        """These are all that there are."""
        loaded = {view.delivery_id: view for view in views}
        for delivery_id in self._times.keys() - loaded.keys():
            _cancel(self._times.pop(delivery_id))
        for view in loaded.values():
            self.follow(view, from_disk=True)

    def follow(self, view: DeliveryView, *, from_disk: bool = False) -> None:
        """A delivery as it is now. `from_disk`: nobody saw when its times began."""
        times = self._times.get(view.delivery_id)
        works = view.recipient_agent == self._agent_id and view.is_open
        asks = view.sender_agent == self._agent_id and view.awaits_reply
        if not works and not asks:
            if times is not None:
                _cancel(self._times.pop(view.delivery_id))
            return
        before = None
        if times is None:
            times = _Times(view, _Deadline(), _Deadline(), _Deadline())
            self._times[view.delivery_id] = times
        else:
            before, times.view = times.view, view
        if view.recipient_agent == self._agent_id:
            self._follow_work(times, before, from_disk)
        if view.sender_agent == self._agent_id:
            self._follow_reply(times, before, from_disk)

    def _follow_work(self, times: _Times, before: DeliveryView | None, from_disk: bool) -> None:
        view, now_s = times.view, self._clock.monotonic_s()
        if view.deadline_us is not None and (
            before is None or before.deadline_us != view.deadline_us
        ):
            left_s = self._window_s
            if from_disk:
                left_s = self._left_s(view.deadline_us, self._window_s)
            times.window.at_s = now_s + left_s
            times.window.cancel()
        if view.state != "leased" or view.token is None:
            times.lease.cancel()
            times.window.cancel()
            return
        if before is None or before.token != view.token:
            times.lease.at_s = times.saved_s = now_s + self._lease_s
            times.lease.cancel()
            times.window.cancel()  # it names the token
        if times.lease.handle is None:
            self._arm(times.lease, LeaseDue(view.delivery_id, view.token))
        if times.window.handle is None and view.deadline_us is not None:
            self._arm(times.window, WindowDue(view.delivery_id, view.token, view.deadline_us))

    def _follow_reply(self, times: _Times, before: DeliveryView | None, from_disk: bool) -> None:
        view, now_s = times.view, self._clock.monotonic_s()
        dues = (view.reply_due_us, view.unanswered_us)
        if before is None or (before.reply_due_us, before.unanswered_us) != dues:
            times.overdue_s = now_s + self._reply_s(view, view.reply_due_us, from_disk)
            times.unanswered_s = now_s + self._reply_s(view, view.unanswered_us, from_disk)
        if before is None or before.reply_state != view.reply_state:
            times.reply.cancel()
        if view.awaits_reply and times.reply.handle is None:
            awaiting = view.reply_state == "awaiting"
            times.reply.at_s = times.overdue_s if awaiting else times.unanswered_s
            self._arm(times.reply, ReplyDue(view.delivery_id))

    def _reply_s(self, view: DeliveryView, due_us: int | None, from_disk: bool) -> float:
        whole_s = ((due_us or view.created_us) - view.created_us) / _US
        return self._left_s(due_us or 0, whole_s) if from_disk else whole_s

    def _left_s(self, until_us: int, whole_s: float) -> float:
        """Of a time that ends with `until_us` of the wall clock."""
        return min(max(0.0, (until_us - self._clock.wall_us()) / _US), whole_s)

    def _arm(self, deadline: _Deadline, message: InboxMessage) -> None:
        deadline.cancel()
        deadline.handle = self._timer.deliver_at(deadline.at_s, self._owner, message)

    # --- what follows ---

    def renew(self, delivery_id: DeliveryId, token: LeaseToken) -> ExtendLease | None:
        """Its holder still has it; what the disk should know, in every second half of a lease."""
        times = self._times.get(delivery_id)
        if times is None or times.view.token != token or times.view.state != "leased":
            return None
        now_s = self._clock.monotonic_s()
        times.lease.at_s = now_s + self._lease_s
        if times.saved_s - now_s > self._lease_s / 2:
            return None
        times.saved_s = times.lease.at_s
        expires_us = self._clock.wall_us() + round(self._lease_s * _US)
        return ExtendLease(delivery_id, token, expires_us)

    def passed(self, due: LeaseDue | WindowDue | ReplyDue) -> Upkeep | None:
        """The change that a deadline calls for, if it is still so and has passed."""
        times = self._times.get(due.delivery_id)
        if times is None:
            return None
        view = times.view
        match due:
            case LeaseDue(delivery_id, token):
                if view.state != "leased" or view.token != token:
                    return None
                change: Upkeep = AbandonLease(delivery_id, token)
                deadline = times.lease
            case WindowDue(delivery_id, token, deadline_us):
                if view.state != "leased" or (view.token, view.deadline_us) != (token, deadline_us):
                    return None
                change, deadline = CloseWindow(delivery_id, token, deadline_us), times.window
            case ReplyDue(delivery_id):
                if not view.awaits_reply or view.sender_agent != self._agent_id:
                    return None
                state: LateState = "overdue" if view.reply_state == "awaiting" else "unanswered"
                change = MarkReplyLate(delivery_id, state, self._is_reached(view))
                deadline = times.reply
        if self._clock.monotonic_s() < deadline.at_s:
            self._arm(deadline, due)
            return None
        return change

    def _is_reached(self, view: DeliveryView) -> bool:
        sessions = self._attached().get(view.recipient_agent, frozenset())
        return is_reached(sessions, view.recipient_session, view.sender_session)

    def refused(self, change: Upkeep) -> None:
        """It is judged anew after a pause: what was renewed by then is not given up."""
        due: InboxMessage
        match change:
            case AbandonLease(delivery_id, token):
                due = LeaseDue(delivery_id, token)
            case CloseWindow(delivery_id, token, deadline_us):
                due = WindowDue(delivery_id, token, deadline_us)
            case MarkReplyLate(delivery_id):
                due = ReplyDue(delivery_id)
        self._timer.deliver_after(RETRY_S, self._owner, due)


def _cancel(times: _Times) -> None:
    for deadline in (times.lease, times.window, times.reply):
        deadline.cancel()
