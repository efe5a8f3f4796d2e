"""Positions, gaps and idle expiry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbus.ids import Sequence
from agentbus.rules.cursors import Positions, advance, is_idle, missed
from agentbus.rules.retention import HOUR_US

_SEQUENCES = st.integers(0, 50).map(Sequence)


@pytest.mark.parametrize(
    ("before", "handed_off", "confirmed", "after"),
    [
        ((5, 3), None, None, (5, 3)),
        ((5, 3), 6, None, (6, 3)),
        ((5, 3), 4, None, (5, 3)),
        ((5, 3), None, 5, (5, 5)),
        ((5, 3), None, 2, (5, 3)),
        ((5, 3), None, 7, (7, 7)),
        ((5, 3), 8, 7, (8, 7)),
        ((5, 3), 6, 9, (9, 9)),
        ((0, 0), 0, 0, (0, 0)),
    ],
)
def test_a_report_moves_positions_forward_only(
    before: tuple[int, int], handed_off: int | None, confirmed: int | None, after: tuple[int, int]
) -> None:
    positions = Positions(*map(Sequence, before))
    assert advance(positions, handed_off, confirmed) == after  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.none() | _SEQUENCES, st.none() | _SEQUENCES)), st.randoms())
def test_reports_may_come_late_twice_and_in_any_order(
    reports: list[tuple[Sequence | None, Sequence | None]], random: object
) -> None:
    def after(these: list[tuple[Sequence | None, Sequence | None]]) -> Positions:
        positions = Positions(Sequence(0), Sequence(0))
        for report in these:
            moved = advance(positions, *report)
            assert moved.confirmed <= moved.handed_off
            assert moved.handed_off >= positions.handed_off
            assert moved.confirmed >= positions.confirmed
            positions = moved
        return positions

    shuffled = reports * 2
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert after(shuffled) == after(reports)


@pytest.mark.parametrize(
    ("position", "part"),
    [(0, (3, 7)), (2, (3, 7)), (3, (4, 7)), (6, (7, 7)), (7, None), (8, None)],
)
def test_a_gap_is_the_part_of_a_removed_range_after_the_position(
    position: int, part: tuple[int, int] | None
) -> None:
    assert missed(Sequence(position), Sequence(3), Sequence(7)) == part


@pytest.mark.parametrize(("offset_us", "idle"), [(-1, False), (0, True), (1, True)])
def test_idle_time_is_over_exactly_at_its_end(offset_us: int, idle: bool) -> None:
    assert is_idle(1000, 1000 + 72 * HOUR_US + offset_us, 72) is idle


def test_a_clock_that_went_back_expires_nothing() -> None:
    assert not is_idle(10 * HOUR_US, 0, 1)
