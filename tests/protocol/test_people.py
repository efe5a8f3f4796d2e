"""What a person asks is checked strictly before anything happens."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.errors import ValidationError
from agentbus.limits import PEER_ACTION_CHARACTERS, PEER_BODY_CHARACTERS, PEER_PAGE_MAX
from agentbus.protocol.peer import PeerSend
from agentbus.protocol.people import (
    HumanDecide,
    HumanList,
    HumanReplies,
    HumanSend,
    HumanShow,
    Requests,
    parse_persons_request,
)

DECIDE = {"intervention_id": "i1", "version": 1, "action": "approve"}
SEND = {"to": ["Sam"], "body": "Look.", "idempotency_key": "k1"}


@pytest.mark.parametrize(
    ("method", "params", "request_"),
    [
        ("human_list", {}, HumanList()),
        ("human_list", {"decided": True, "limit": 1}, HumanList(True, 1)),
        ("human_show", {"id": "i1"}, HumanShow("i1")),
        ("human_decide", DECIDE, HumanDecide("i1", 1, "approve")),
        (
            "human_decide",
            {**DECIDE, "action": "reassign", "to": "Kim", "instructions": None},
            HumanDecide("i1", 1, "reassign", to="Kim"),
        ),
        *(
            (
                "human_decide",
                {**DECIDE, "action": "nudge", "instructions": text},
                HumanDecide("i1", 1, "nudge", text),
            )
            for text in ("x" * (PEER_ACTION_CHARACTERS - 1), "x" * PEER_ACTION_CHARACTERS)
        ),
        ("human_send", SEND, HumanSend(("Sam",), "Look.", "k1")),
        ("human_send", {**SEND, "kind": "info"}, HumanSend(("Sam",), "Look.", "k1", "info")),
        (
            "human_send",
            {**SEND, "body": "x" * PEER_BODY_CHARACTERS, "expect_reply_within_seconds": 60},
            HumanSend(("Sam",), "x" * PEER_BODY_CHARACTERS, "k1", "request", None, 60),
        ),
        ("human_replies", {"limit": PEER_PAGE_MAX}, HumanReplies(PEER_PAGE_MAX)),
        ("requests", {"state": "overdue", "agent": "Sam"}, Requests("overdue", "Sam")),
    ],
)
def test_a_good_request_is_read_as_it_was_meant(method: str, params: Any, request_: object) -> None:
    assert parse_persons_request(method, params) == request_


@pytest.mark.parametrize(
    ("method", "params", "complaint"),
    [
        ("human_list", [], "must be an object"),
        ("human_list", {"limit": 0}, "limit must be 1 to 100"),
        ("human_list", {"limit": PEER_PAGE_MAX + 1}, "limit must be 1 to 100"),
        ("human_list", {"limit": "5"}, "limit must be a whole number"),
        ("human_list", {"limit": True}, "limit must be a whole number"),
        ("human_list", {"decided": 1}, "decided must be true or false"),
        ("human_list", {"all": True}, "unknown parameter 'all'; known: decided, limit"),
        ("human_show", {}, "the parameter id is required"),
        ("human_show", {"id": ""}, "id must not be empty"),
        ("human_show", {"id": "x" * 81}, "id must be at most 80 characters"),
        ("human_decide", {**DECIDE, "version": 0}, "version must be 1 or more"),
        ("human_decide", {**DECIDE, "version": "1"}, "version must be a whole number"),
        ("human_decide", {"intervention_id": "i1", "action": "approve"}, "version is required"),
        ("human_decide", {**DECIDE, "action": "maybe"}, "action must be one of approve, reject"),
        ("human_decide", {**DECIDE, "action": "redirect"}, "redirect needs instructions"),
        ("human_decide", {**DECIDE, "action": "nudge"}, "nudge needs instructions"),
        ("human_decide", {**DECIDE, "instructions": ""}, "instructions must not be empty"),
        (
            "human_decide",
            {**DECIDE, "instructions": "x" * (PEER_ACTION_CHARACTERS + 1)},
            "instructions must be at most 4000 characters",
        ),
        ("human_decide", {**DECIDE, "action": "reassign"}, "to is required: reassign needs"),
        ("human_decide", {**DECIDE, "to": "Kim"}, "to goes with reassign, not with approve"),
        ("human_decide", {**DECIDE, "decided_by": "me"}, "unknown parameter 'decided_by'"),
        ("human_send", {**SEND, "to": []}, "to must hold 1 to 100 items"),
        ("human_send", {**SEND, "to": ["Sam", "Sam"]}, "to item 1 is there twice"),
        ("human_send", {**SEND, "body": ""}, "body must not be empty"),
        ("human_send", {**SEND, "body": "x" * (PEER_BODY_CHARACTERS + 1)}, "body must be at most"),
        ("human_send", {**SEND, "thread_id": "x" * 81}, "thread_id must be at most 80"),
        ("human_send", {**SEND, "thread_id": "ä" * 65}, "thread_id must be 1 to 128 bytes"),
        ("human_send", {**SEND, "thread_id": "a\tb"}, "thread_id must not hold control"),
        ("human_send", {**SEND, "kind": "response"}, "kind must be one of request, info"),
        ("human_send", {**SEND, "expect_reply_within_seconds": 59}, "must be 60 to 604800"),
        (
            "human_send",
            {**SEND, "kind": "info", "expect_reply_within_seconds": 60},
            "goes with a request",
        ),
        ("human_send", {**SEND, "from": "human:root"}, "unknown parameter 'from'"),
        ("requests", {"state": "late"}, "state must be one of awaiting, overdue"),
        ("requests", {"agent": ""}, "agent must not be empty"),
    ],
)
def test_a_bad_request_is_refused_with_what_would_be_right(
    method: str, params: Any, complaint: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        parse_persons_request(method, params)
    assert refused.value.message.startswith(f"{method}: ")
    assert complaint in refused.value.message


def test_a_persons_message_is_sent_as_an_agents_would_be() -> None:
    request = HumanSend(("Sam", "Kim"), "Look.", "k1", "request", "t1", 120)
    assert request.operation() == PeerSend(
        ("Sam", "Kim"), "Look.", "k1", "request", "t1", expect_reply_within_seconds=120
    )
