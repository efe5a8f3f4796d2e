"""Every place where a crash test may strike is on the list, and every entry is a place."""

from __future__ import annotations

import ast
from collections import Counter

from agentbus.failpoints import POINTS
from tests.architecture.tree import modules


def test_each_failpoint_is_reached_in_exactly_one_place() -> None:
    reached = Counter(
        ast.literal_eval(node.args[0])
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "reach"
    )
    assert reached == Counter(dict.fromkeys(POINTS, 1))
