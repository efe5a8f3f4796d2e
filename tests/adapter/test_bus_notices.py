"""Notices of the bus itself: told in the next result, the newest of each budget only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from agentbus.adapter.conversation import Conversation


def conversation(caution: str | None = None) -> Conversation:
    profile, binding = SimpleNamespace(agent="Sam"), SimpleNamespace(caution=caution)
    return Conversation(
        cast(Any, None), cast(Any, profile), cast(Any, binding), lambda _: (256, 1 << 20)
    )


def full(budget: str, *, exhausted: bool = True) -> dict[str, Any]:
    return {"kind": "capacity", "budget": budget, "exhausted": exhausted, "message": "m"}


def test_the_newest_notice_of_a_budget_replaces_the_one_before_and_no_other() -> None:
    sam = conversation("who are you")
    for notice in (full("a"), full("b"), full("a", exhausted=False)):
        sam.notified("notice", {"notice": notice})
    assert [notice["kind"] for notice in sam.notices] == ["identity", "capacity", "capacity"]
    assert sam.notices[1:] == [full("b"), full("a", exhausted=False)]


def test_it_is_told_until_a_result_with_it_was_handed_off() -> None:
    sam = conversation()
    sam.notified("notice", {"notice": full("a")})
    told = tuple(sam.notices)
    sam.notified("notice", {"notice": full("a", exhausted=False)})
    sam.notices_told(told)
    assert sam.notices == [full("a", exhausted=False)]
    sam.notices_told(tuple(sam.notices))
    assert sam.notices == []
    assert sam.memory_notices.of((), 1000) == ()
