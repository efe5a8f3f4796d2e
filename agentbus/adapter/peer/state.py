"""What one conversation has of peer messaging between its calls.

Owns: its lease, how much waits for it, what it has been shown lately, which the daemon is told of,
whom `*` stood for under which idempotency key. Never: talks to the model. Used in the thread of the
event loop only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from agentbus.adapter.peer.leases import Leases, Notify

T = TypeVar("T")

EXPANSIONS_KEPT: Final = 64
"""Sends to everybody whose recipients are remembered, so that a repeat is the same send although
somebody new has come meanwhile."""

SHOWN_KEPT: Final = 4096
"""Responses, and as many notices, whose showing is remembered here: the daemon writes down what it
is told of after the call, so the next one may still come with a text that was just shown."""

SHOWN_TOLD_AGAIN: Final = 256
"""How many of them, the newest, the daemon is told of again after the next attachment: one that was
killed may not have written down what it was told last."""


class PeerState:
    """See the module."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._last_number = 0
        self._waited_before = 0  # the attachment; nobody is woken for it again
        self._responses = _Shown[str]()
        self._notices = _Shown[tuple[str, str]]()
        self.leases = Leases(notify)
        self.waiting = 0
        """Deliveries that this session could claim or holds, as the daemon said last."""
        self.heard = 0
        """How often it has said so."""
        self.expansions: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def attached(self) -> None:
        """To the same bus as before; the daemon says anew what waits, where there is anything."""
        self._waited_before = self.waiting
        self.waiting = 0
        self.leases.renew()
        self._responses.forget_told()
        self._notices.forget_told()
        self._tell_shown()

    def forget(self) -> None:
        """The conversation has ended, or its bus was reset."""
        self.leases.forget()
        self.waiting = self._waited_before = 0
        self._responses.clear()
        self._notices.clear()
        self.expansions.clear()

    def has_more(self, count: int) -> bool:
        """So many wait now; whether that is more than before."""
        self.heard += 1
        more = count > max(self.waiting, self._waited_before)
        self.waiting, self._waited_before = count, 0
        return more

    def without(self, done: int) -> int:
        """What waits when so many of those that were counted are done with."""
        return max(1 if self.leases.held is not None else 0, self.waiting - done)

    def next_number(self) -> int:
        """Names a wait or a collect, so that it can be cancelled."""
        self._last_number += 1
        return self._last_number

    def expanded(self, idempotency_key: str, recipients: tuple[str, ...]) -> None:
        """Everybody was these, for the send with this key."""
        self.expansions[idempotency_key] = recipients
        if len(self.expansions) > EXPANSIONS_KEPT:
            self.expansions.popitem(last=False)

    def shown(self, responses: Iterable[str], notices: Iterable[tuple[str, str]]) -> None:
        """A result with these was handed off; the daemon hears of it now, or once attached."""
        self._responses.add(responses)
        self._notices.add(notices)
        self._tell_shown()

    def was_shown(self, response: str) -> bool:
        """Whether a result with its text was handed off to this conversation."""
        return response in self._responses

    def _tell_shown(self) -> None:
        responses, notices = self._responses.untold, self._notices.untold
        if not responses and not notices:
            return
        params = {"responses": responses, "notices": [list(notice) for notice in notices]}
        if self._notify("peer_shown", params):
            self._responses.told()
            self._notices.told()


class _Shown(Generic[T]):
    """What was shown, the oldest first, and whether this attachment has told the daemon of it."""

    def __init__(self) -> None:
        self._is_told: dict[T, bool] = {}

    @property
    def untold(self) -> list[T]:
        return [one for one, is_told in self._is_told.items() if not is_told]

    def __contains__(self, one: T) -> bool:
        return one in self._is_told

    def add(self, shown: Iterable[T]) -> None:
        for one in shown:
            self._is_told.setdefault(one, False)

    def told(self) -> None:
        """The daemon has been told of all of them. Only the newest are kept."""
        newest = list(self._is_told)[-SHOWN_KEPT:]
        self._is_told = dict.fromkeys(newest, True)

    def forget_told(self) -> None:
        """It may not know of the newest any more."""
        for one in list(self._is_told)[-SHOWN_TOLD_AGAIN:]:
            self._is_told[one] = False

    def clear(self) -> None:
        self._is_told.clear()
