"""The delivery that one conversation holds, and the proof of it.

Owns the token of the lease, the renewals, and which instructions of a person the model has seen.
A token never leaves this process but to the daemon: the model names its work by `delivery_id`.
Never decides whether a lease holds, which the ledger does; a token that is out of date is refused
there. Used in the thread of the event loop only.

A session holds one delivery at most, so there is one lease. It survives a lost connection: the
daemon remembers the session, not the socket.

Only work that the model was shown is renewed for long: a lease whose result was never handed off is
let go, and the delivery goes to whoever waits next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from agentbus.limits import LEASE_RENEWAL_SECONDS

RENEWALS_PER_LEASE: Final = 3

Notify = Callable[[str, dict[str, Any]], bool]
"""Tells the daemon something, with a method and its params; False: there is no connection."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One claim, as the daemon answered it. `message_id`: what a reply answers."""

    delivery_id: str
    message_id: str
    token: str
    lease_s: float


class Leases:
    """See the module."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._timer: asyncio.TimerHandle | None = None
        self._shown: str | None = None  # the delivery that the model knows it holds
        self._instructed_by: str | None = None  # the intervention that the model was shown last
        self.held: Lease | None = None

    def hold(self, lease: Lease) -> None:
        """From now on this one is in force, whatever was before."""
        self.held = lease
        if self._shown != lease.delivery_id:
            self._shown = None
        self._again()

    def of(self, delivery_id: str) -> Lease | None:
        """The lease of that delivery, if this conversation has it."""
        held = self.held
        return held if held is not None and held.delivery_id == delivery_id else None

    def answered_by(self, reply_to: str | None) -> Lease | None:
        """The lease of the delivery whose message a send with `reply_to` answers."""
        held = self.held
        return held if held is not None and held.message_id == reply_to else None

    def ended(self, delivery_id: str) -> None:
        """It is finished, paused, or another session's."""
        if self.of(delivery_id) is not None:
            self._release()

    def settle(self, lease: Lease, *, handed_off: bool) -> None:
        """A result that showed this delivery has left, or did not."""
        if handed_off:
            self._shown = lease.delivery_id
        elif self.held == lease and self._shown != lease.delivery_id:
            self._release()

    def forget(self) -> None:
        """The conversation or its bus is gone."""
        self._release()
        self._instructed_by = None

    def renew(self) -> None:
        """Tell the daemon that the holder is alive."""
        if self.held is not None:
            self._notify("renew", {"leases": [[self.held.delivery_id, self.held.token]]})

    # --- instructions of a person -----------------------------------------------------------------

    def unseen_instructions(self, delivery: dict[str, Any]) -> dict[str, Any] | None:
        """What a person says to it that the model does not know. The daemon repeats instructions
        with each claim until the first operation that follows them."""
        context: dict[str, Any] | None = delivery.get("resume_context")
        if context is None or context["intervention_id"] == self._instructed_by:
            return None
        return context

    def instructed(self, context: dict[str, Any] | None) -> None:
        """A result with these was handed off."""
        if context is not None:
            self._instructed_by = context["intervention_id"]

    # --- inside -----------------------------------------------------------------------------------

    def _release(self) -> None:
        self.held = None
        self._shown = None
        self._again()

    def _again(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.held is not None:
            pause_s = min(self.held.lease_s / RENEWALS_PER_LEASE, LEASE_RENEWAL_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._due)

    def _due(self) -> None:
        self.renew()
        self._again()
