"""Whole numbers of options: what is one, within bounds, and what the refusal says."""

from __future__ import annotations

import pytest

from agentbus.cli.numbers import optional_number, whole_number
from agentbus.errors import ValidationError
from agentbus.limits import PORT_MAX, WHOLE_MAX

NO_NUMBERS = ["", " 1", "+1", "-1", "1.0", "1e3", "0x10", "1_0", "\u0661", "\u00b2", "9" * 5000]


@pytest.mark.parametrize(
    ("given", "number"), [(None, 0), ("0", 0), ("007", 7), ("65535", PORT_MAX)]
)
def test_whole_number_within_its_bounds(given: str | None, number: int) -> None:
    assert whole_number(given, "--port", PORT_MAX) == number


@pytest.mark.parametrize("given", [*NO_NUMBERS, str(PORT_MAX + 1)], ids=lambda given: given[:9])
def test_refusal_of_a_whole_number_says_what_it_may_be(given: str) -> None:
    with pytest.raises(ValidationError, match=r"^--port must be 0 to 65535, not '") as refused:
        whole_number(given, "--port", PORT_MAX)
    assert len(refused.value.message) < 100


@pytest.mark.parametrize(("given", "number"), [(None, None), ("0", 0), (str(WHOLE_MAX), WHOLE_MAX)])
def test_number_that_may_be_left_out(given: str | None, number: int | None) -> None:
    assert optional_number({"--limit": given}, "--limit") == number


@pytest.mark.parametrize("given", [*NO_NUMBERS, str(WHOLE_MAX + 1)], ids=lambda given: given[:9])
def test_number_that_nothing_could_carry_is_refused(given: str) -> None:
    with pytest.raises(ValidationError, match=r"^--limit must be a whole number, not '"):
        optional_number({"--limit": given}, "--limit")
