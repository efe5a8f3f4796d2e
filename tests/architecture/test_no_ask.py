"""Actors tell. An actor that waits for another can deadlock the ring; only system.py may wait."""

from __future__ import annotations

import ast

from tests.architecture.tree import modules

MAY_WAIT = ("actors.system",)
QUEUE_OWNERS = ("actors.mailbox", "actors.pool")
"""They are what an actor's own thread sleeps in: their `get()` empties a queue, not a future."""


def _waits(call: ast.Call, module_name: str) -> bool:
    """`x.ask(...)`, `x.proxy(...)`, `x.get()`: the last without argument, as futures have it."""
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "get":
        return not call.args and not call.keywords and module_name not in QUEUE_OWNERS
    return call.func.attr in ("ask", "proxy")


def test_no_actor_waits_for_another() -> None:
    wrong = [
        f"{module}:{node.lineno} {ast.unparse(node)}"
        for module in modules("actors")
        if module.name not in MAY_WAIT
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and _waits(node, module.name)
    ]
    assert not wrong, "\n".join(wrong)
