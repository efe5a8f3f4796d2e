"""The mutations of one attachment, one after the other, where each may take a while to settle.

Owns the order: an inspected mutation must not be overtaken by a later one of the same sender. Never
answers anybody. Belongs to the attachment's thread.
"""

from __future__ import annotations

from collections import deque

from actors.base import Address
from actors.messages import LedgerMessage, Submit


class MutationTurns:
    """Tells the ledger one mutation, and the next when that one has settled.

    Bounded by the requests that an attachment may have in flight.
    """

    def __init__(self, ledger: Address[LedgerMessage]) -> None:
        self._ledger = ledger
        self._held: deque[Submit] = deque()
        self._unsettled = False

    def submit(self, submit: Submit) -> None:
        """Tell it now, or hold it until all before it have settled."""
        if self._unsettled:
            self._held.append(submit)
        else:
            self._unsettled = True
            self._ledger.tell(submit)

    def settled(self) -> None:
        """The one at the ledger was answered."""
        self._unsettled = False
        if self._held:
            self.submit(self._held.popleft())

    def abandon(self) -> list[Submit]:
        """Take out what is held; the caller answers it."""
        held, self._held = list(self._held), deque()
        return held
