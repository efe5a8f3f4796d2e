"""docs/errors.md and agentbus/errors.py say the same."""

from __future__ import annotations

import re

import pytest

from agentbus.errors import ERRORS_BY_CODE, BusError, error_from_data
from tests.architecture.tree import ROOT

ROW = re.compile(r"\| `(\w+)` \| (.+) \| (yes|no) \| (.+) \|")


def _rows() -> list[tuple[str, str, str, str]]:
    lines = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")][2:]
    matches = [ROW.fullmatch(line) for line in table]
    assert all(matches), "a row is not `| `code` | when | yes or no | what to do |`"
    return [(m[1], m[2], m[3], m[4]) for m in matches if m]


def test_every_code_has_exactly_one_row() -> None:
    assert sorted(row[0] for row in _rows()) == sorted(ERRORS_BY_CODE)


@pytest.mark.parametrize("code", ERRORS_BY_CODE)
def test_row_tells_truly_whether_the_error_is_retryable(code: str) -> None:
    told = {row[0]: row[2] == "yes" for row in _rows()}
    assert told[code] is ERRORS_BY_CODE[code].retryable


def test_every_error_class_has_a_code_of_its_own() -> None:
    codes = [cls.code for cls in BusError.__subclasses__()]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("cls", ERRORS_BY_CODE.values(), ids=ERRORS_BY_CODE.keys())
def test_error_survives_the_wire(cls: type[BusError]) -> None:
    error = error_from_data(cls("why", reason="r", retry_after_ms=7).as_data())
    assert type(error) is cls
    assert (error.message, error.reason, error.retry_after_ms) == ("why", "r", 7)
    assert error.retryable is cls.retryable


def test_error_of_an_unknown_code_becomes_internal_and_keeps_its_text() -> None:
    error = error_from_data({"code": "from_the_future", "message": "text"})
    assert (error.code, error.message) == ("internal", "text")
