"""The table of codes, and who may ask how deep."""

from __future__ import annotations

import pytest

from agentbus.rules.talk import TALK_CODES, is_off, is_peer, is_too_deep

FINAL = {
    "request_too_large",
    "invalid_request",
    "bus_disabled",
    "auth_failed",
    "peer_not_allowed",
    "max_depth_exceeded",
    "budget_exhausted",
    "auth",
    "write_permission",
    "file_workflow",
    "workflow_state",
    "session_state",
}
PASSING = {
    "invalid_handler_response",
    "internal_error",
    "instance_unavailable",
    "invalid_response",
    "timeout",
    "telegram_conflict",
    "telegram_delivery",
    "engine_cli",
    "unknown",
}


def test_table_has_each_code_of_the_protocol_once_with_its_retryability() -> None:
    assert len(TALK_CODES) == len(FINAL) + len(PASSING)
    assert {code.name for code in TALK_CODES if not code.retryable} == FINAL
    assert {code.name for code in TALK_CODES if code.retryable} == PASSING


@pytest.mark.parametrize(
    ("peers", "allowed"), [("*", True), (("Sam",), True), (("Robin",), False), ((), False)]
)
def test_peers(peers: object, allowed: bool) -> None:
    assert is_peer(peers, "Sam") is allowed  # type: ignore[arg-type]
    assert is_off(peers) is (peers == ())  # type: ignore[arg-type]


@pytest.mark.parametrize(("depth", "too_deep"), [(0, False), (2, False), (3, True), (4, True)])
def test_depth(depth: int, too_deep: bool) -> None:
    assert is_too_deep(depth, 3) is too_deep
