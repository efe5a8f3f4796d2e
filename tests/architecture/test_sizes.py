"""A file that grew beyond what one sitting can hold has more than one subject."""

from __future__ import annotations

from tests.architecture.tree import ROOT

LINES_MAX = 600


def test_no_source_file_is_longer_than_the_limit() -> None:
    too_long = {
        str(path.relative_to(ROOT)): lines
        for folder in ("agentbus", "actors", "tests", "examples")
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LINES_MAX
    }
    assert not too_long
