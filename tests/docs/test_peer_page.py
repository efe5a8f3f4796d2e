"""docs/peer.md: its examples are accepted, and its tables are what the code says."""

from __future__ import annotations

import re

from agentbus.encoding import decode_strict
from agentbus.errors import BusError
from agentbus.protocol.peer import PEER_OPERATIONS, parse_peer
from agentbus.rules import peer as refusals
from agentbus.settings import SETTINGS
from tests.docs.documents import blocks
from tests.docs.pages import DOCS

PAGE = DOCS / "peer.md"

REFUSALS: tuple[BusError, ...] = (
    refusals.paused("d", "i"),
    refusals.resumed("d", {}),
    refusals.unavailable("d", "acked"),
    refusals.stale_lease("d"),
    refusals.key_reused("k"),
    refusals.cycle("Sam"),
    refusals.budget_spent(4, 1.0),
    refusals.deadline_passed(),
    refusals.ambiguous_delivery("m", 2),
    refusals.not_allowed("Sam"),
    refusals.no_delivery("d"),
)


def section(title: str) -> str:
    return PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_operation_is_shown_as_it_is_called() -> None:
    shown = set()
    for block in blocks(PAGE, "json"):
        for line in block.splitlines():
            call = decode_strict(line)
            assert isinstance(call, dict)
            parse_peer(call["op"], call.get("args"))
            shown.add(call["op"])
    assert shown == PEER_OPERATIONS.keys()


def test_every_refusal_is_in_the_table_as_it_is_told() -> None:
    rows = [line.split("|")[1:5] for line in section("Errors").splitlines() if line[:1] == "|"]
    told = {
        reason: tuple(part.strip(" `") for part in rest)
        for reasons, *rest in rows
        for reason in re.findall(r"`(\w+)`", reasons) or [None]
    }
    for error in REFUSALS:
        said = error.as_data()
        expected = (said["code"], said.get("state", ""), str(said["status"]))
        assert told[error.reason] == expected, error.reason
    words = [value for value in vars(refusals).values() if isinstance(value, str)]
    reasons = {word for word in words if word.isupper()}
    assert reasons <= told.keys()


def test_every_setting_of_direct_work_is_named() -> None:
    names = {row.name for row in SETTINGS if row.name.startswith("peer_")}
    assert {name for name in names if f"`{name}`" in section("Settings and limits")} == names
