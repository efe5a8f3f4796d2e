"""Handoff reports of one attachment, gathered until they are committed together.

Reports move `handed_off` at once; what a report moved becomes `confirmed` when a later call of the
conversation proves that the result was taken. Positions only grow. Not thread-safe: one owner.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from agentbus.ids import Sequence

UNCONFIRMED_REPORTS = 256
"""Reports kept apart; beyond it the two oldest become one, which only confirms later."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What one flush commits; subscription -> position."""

    handed_off: dict[int, Sequence]
    confirmed: dict[int, Sequence]
    renewed: tuple[int, ...]
    expiry_confirmed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Report:
    number: int
    positions: dict[int, Sequence]
    expired: tuple[int, ...]


@dataclass(slots=True)
class ReportCoalescer:
    """Gathers reports, confirmations and renewals; `take` hands them over for one commit."""

    _handed_off: dict[int, Sequence] = field(default_factory=dict)
    _confirmed: dict[int, Sequence] = field(default_factory=dict)
    _renewed: dict[int, None] = field(default_factory=dict)
    _expiry_confirmed: dict[int, None] = field(default_factory=dict)
    _unconfirmed: deque[_Report] = field(default_factory=deque)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit (unconfirmed reports may still wait for a call)."""
        return not (self._handed_off or self._confirmed or self._renewed or self._expiry_confirmed)

    def report(
        self, number: int, positions: dict[int, Sequence], expired: tuple[int, ...] = ()
    ) -> None:
        """A result was handed off up to these positions."""
        _advance(self._handed_off, positions)
        self._unconfirmed.append(_Report(number, dict(positions), expired))
        if len(self._unconfirmed) > UNCONFIRMED_REPORTS:
            oldest, second = self._unconfirmed.popleft(), self._unconfirmed.popleft()
            _advance(second.positions, oldest.positions)
            merged = _Report(second.number, second.positions, oldest.expired + second.expired)
            self._unconfirmed.appendleft(merged)

    def confirm(self, number: int) -> None:
        """A call came after the handoff of report `number`: it and all before were taken."""
        while self._unconfirmed and self._unconfirmed[0].number <= number:
            report = self._unconfirmed.popleft()
            _advance(self._confirmed, report.positions)
            self._expiry_confirmed.update(dict.fromkeys(report.expired))

    def renew(self, subscription: int) -> None:
        """The subscription was used explicitly."""
        self._renewed[subscription] = None

    def forget(self, subscription: int) -> None:
        """The subscription is gone; nothing of it may be committed any more."""
        self._handed_off.pop(subscription, None)
        self._confirmed.pop(subscription, None)
        self._renewed.pop(subscription, None)
        for report in self._unconfirmed:
            report.positions.pop(subscription, None)

    def only_committed(self, committed: dict[int, Sequence]) -> ReportCoalescer:
        """What still holds after a recovery: of reports, what was committed before it.

        A confirmation of that stays true, whether it came already or is still to come.
        """
        kept = ReportCoalescer(
            _confirmed=at_most(self._confirmed, committed),
            _renewed=self._renewed,
            _expiry_confirmed=self._expiry_confirmed,
        )
        for report in self._unconfirmed:
            positions = at_most(report.positions, committed)
            kept._unconfirmed.append(_Report(report.number, positions, report.expired))
        return kept

    def confirm_again(self, confirmed: dict[int, Sequence]) -> None:
        """Confirmations that were taken, and not committed."""
        _advance(self._confirmed, confirmed)

    def take(self) -> Moves:
        """Everything gathered since the last time."""
        moves = Moves(
            self._handed_off,
            self._confirmed,
            tuple(self._renewed),
            tuple(self._expiry_confirmed),
        )
        self._handed_off, self._confirmed = {}, {}
        self._renewed, self._expiry_confirmed = {}, {}
        return moves


def at_most(positions: dict[int, Sequence], limits: dict[int, Sequence]) -> dict[int, Sequence]:
    """These positions, none above its limit; without a limit there is none."""
    return {key: min(position, limits[key]) for key, position in positions.items() if key in limits}


def _advance(target: dict[int, Sequence], positions: dict[int, Sequence]) -> None:
    for subscription, position in positions.items():
        if position > target.get(subscription, -1):
            target[subscription] = position
