"""The page about tests names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.architecture.tree import ROOT
from tests.docs.pages import DOCS

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
PAGE = (DOCS / "testing.md").read_text(encoding="utf-8")


@cache
def _tests_of(path: str) -> frozenset[str]:
    source = ROOT / path
    if not source.exists():
        return frozenset()
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    )


def test_every_test_that_is_named_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 100
    assert [f"{path}::{name}" for path, name in named if name not in _tests_of(path)] == []


def test_every_fault_has_a_test() -> None:
    faults = PAGE[PAGE.index("## Faults") : PAGE.index("## What is not tested")]
    rows = [line for line in faults.splitlines() if line.startswith("| ")]
    assert len(rows) > 50
    assert [row for row in rows if not NAMED.search(row) and "Shown by" not in row] == []


def test_every_suite_is_on_the_page() -> None:
    suites = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert [suite for suite in sorted(suites) if f"`tests/{suite}`" not in PAGE] == []
