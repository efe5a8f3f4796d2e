"""Lifetimes and the age cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbus.rules.retention import HOUR_US, age_cut, end_us, over_since_us


@given(st.integers(0, 2**52), st.integers(1, 8760), st.integers(-2, 2))
def test_both_readings_of_a_lifetime_agree_at_the_edge(
    began_us: int, hours: int, offset_us: int
) -> None:
    now_us = began_us + hours * HOUR_US + offset_us
    assert (end_us(began_us, hours) <= now_us) == (began_us <= over_since_us(now_us, hours))
    assert (end_us(began_us, hours) <= now_us) == (offset_us >= 0)


@pytest.mark.parametrize(
    ("times_us", "removed"),
    [
        ([], 0),
        ([11], 0),
        ([10], 1),
        ([9, 10, 11], 2),
        ([9, 11, 9], 1),
        ([11, 9, 9], 0),
        ([1, 2, 3], 3),
    ],
)
def test_the_cut_ends_at_the_first_that_is_young_enough(times_us: list[int], removed: int) -> None:
    assert age_cut(times_us, cutoff_us=10) == removed
