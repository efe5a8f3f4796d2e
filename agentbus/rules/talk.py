"""What talk allows, and every code that it answers with.

Owns the one table of codes with what a caller can expect of a repeat, and the decisions on peers
and depth. Never reads a configuration, a request or a clock. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Peers: TypeAlias = Literal["*"] | tuple[str, ...]
"""Whom talk reaches and who may ask: everybody, or these. Empty: talk is off."""


@dataclass(frozen=True, slots=True)
class TalkCode:
    """One code on the wire. Codes are added, never renamed and never removed.

    `retryable`: can the same question reasonably be asked again without anybody repairing
    anything. `status` is that of our server's answers; other codes come with status 200.
    """

    name: str
    retryable: bool
    meaning: str
    status: int = 200


TALK_CODES: Final = (
    TalkCode("request_too_large", False, "the body, or the request's head, is over its limit", 413),
    TalkCode("invalid_request", False, "the request is not what this page says", 400),
    TalkCode("bus_disabled", False, "`talk_peers` is empty, or cannot be read", 403),
    TalkCode("auth_failed", False, "the secret is missing or wrong", 401),
    TalkCode(
        "peer_not_allowed",
        False,
        "the caller is not among `talk_peers`, or says to be an instance that it is not",
        403,
    ),
    TalkCode("max_depth_exceeded", False, "the chain of delegations is too long", 429),
    TalkCode("invalid_handler_response", True, "what answers gave no answer that can be sent", 500),
    TalkCode("internal_error", True, "a fault of the server; its log has the details", 500),
    TalkCode("instance_unavailable", True, "nobody serves that instance now, or it is full", 503),
    TalkCode("invalid_response", True, "what was answered is no answer of this protocol"),
    TalkCode("timeout", True, "no answer in time; it may have been carried out all the same", 408),
    TalkCode("budget_exhausted", False, "the target is over its own budget, not the caller"),
    TalkCode("auth", False, "the target is not logged in to its own provider"),
    TalkCode("write_permission", False, "the target may not write what it would have to"),
    TalkCode("telegram_conflict", True, "of other bridges: two of them share one bot"),
    TalkCode("telegram_delivery", True, "of other bridges: a chat message was not delivered"),
    TalkCode("engine_cli", True, "the program that answers has failed"),
    TalkCode("file_workflow", False, "of other bridges: the state of a file workflow"),
    TalkCode(
        "workflow_state",
        False,
        "a person rejected or cancelled the request, or it was removed; of other bridges: the "
        "state of a workflow",
    ),
    TalkCode("session_state", False, "of other bridges: the state of a session"),
    TalkCode("unknown", True, "a failure that gives no code"),
)

TALK_CODE: Final[Mapping[str, TalkCode]] = MappingProxyType({row.name: row for row in TALK_CODES})

UNKNOWN: Final = "unknown"


def is_secret(text: str) -> bool:
    """Whether a header can carry it, and nobody can misread it."""
    return text != "" and all("\x21" <= character <= "\x7e" for character in text)


def is_off(peers: Peers) -> bool:
    """Whether nobody talks at all."""
    return peers == ()


def is_peer(peers: Peers, name: str) -> bool:
    """Whether `name` may ask, or be asked."""
    return peers == "*" or name in peers


def is_too_deep(depth: int, max_depth: int) -> bool:
    """`depth` counts the delegations so far; the last one allowed has `max_depth - 1`."""
    return depth >= max_depth
