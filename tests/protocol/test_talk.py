"""The requests of talk as frames."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.errors import TooLargeError, ValidationError
from agentbus.limits import PEER_BODY_CHARACTERS
from agentbus.protocol.talk import (
    PARSERS,
    TalkAsk,
    TalkCaller,
    TalkFind,
    TalkGone,
    TalkList,
    TalkResult,
    TalkServe,
)

SERVE = {"instance": "w", "port": 1, "pid": 2, "started": "m", "kind": "agentbus", "secret": "s"}
ASK = {
    "instance": "w",
    "caller": "c",
    "prompt": "p",
    "depth": 1,
    "key": "k",
    "delegation_id": "d",
    "within_ms": 0,
}


@pytest.mark.parametrize(
    ("method", "params", "parsed"),
    [
        ("talk_serve", SERVE, TalkServe("w", 1, 2, "m", "agentbus", "s")),
        (
            "talk_serve",
            {**SERVE, "port": 65535, "secret": None},
            TalkServe("w", 65535, 2, "m", "agentbus", None),
        ),
        (
            "talk_find",
            {"instance": "w", "caller": "c", "pids": [1, 2]},
            TalkFind("w", "c", (1, 2)),
        ),
        ("talk_find", {"instance": "w", "caller": "c"}, TalkFind("w", "c", ())),
        ("talk_caller", {"instance": "w"}, TalkCaller("w", None)),
        ("talk_caller", {"instance": "w", "session": "s"}, TalkCaller("w", "s")),
        ("talk_ask", ASK, TalkAsk("w", "talk:c", "p", 1, "k", "d", 0)),
        ("talk_ask", {**ASK, "prompt": ""}, TalkAsk("w", "talk:c", "", 1, "k", "d", 0)),
        (
            "talk_ask",
            {**ASK, "caller": "c" * 123},
            TalkAsk("w", "talk:" + "c" * 123, "p", 1, "k", "d", 0),
        ),
        ("talk_result", {"message_id": "m"}, TalkResult("m")),
        ("talk_gone", {"instance": "w", "pid": 1}, TalkGone("w", 1)),
        ("talk_list", {}, TalkList()),
    ],
)
def test_request_is_read(method: str, params: dict[str, Any], parsed: object) -> None:
    assert PARSERS[method](params) == parsed


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("talk_serve", {**SERVE, "port": 0}),
        ("talk_serve", {**SERVE, "port": 65536}),
        ("talk_serve", {**SERVE, "pid": 0}),
        ("talk_serve", {**SERVE, "instance": ""}),
        ("talk_serve", {**SERVE, "instance": "x" * 129}),
        ("talk_serve", {**SERVE, "started": None}),
        ("talk_serve", {**SERVE, "secret": ""}),
        ("talk_serve", {**SERVE, "more": 1}),
        ("talk_find", {"instance": "w"}),
        ("talk_find", {"instance": "w", "caller": "c", "pids": ["1"]}),
        ("talk_caller", {"session": "s"}),
        ("talk_ask", {**ASK, "caller": ""}),
        ("talk_ask", {**ASK, "caller": "c" * 124}),
        ("talk_ask", {**ASK, "caller": "a\nb"}),
        ("talk_ask", {**ASK, "prompt": None}),
        ("talk_ask", {**ASK, "depth": -1}),
        ("talk_ask", {**ASK, "within_ms": 0.5}),
        ("talk_ask", {**ASK, "key": ""}),
        ("talk_result", {}),
        ("talk_gone", {"instance": "w"}),
        ("talk_list", {"instance": "w"}),
        ("talk_list", []),
    ],
)
def test_malformed_request_is_refused(method: str, params: Any) -> None:
    with pytest.raises(ValidationError, match=method):
        PARSERS[method](params)


def test_prompt_is_as_long_as_a_direct_message_may_be() -> None:
    longest = "p" * PEER_BODY_CHARACTERS
    assert PARSERS["talk_ask"]({**ASK, "prompt": longest})
    with pytest.raises(TooLargeError):
        PARSERS["talk_ask"]({**ASK, "prompt": longest + "p"})
