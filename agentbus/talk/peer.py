"""`--peer`: the agent of the instance's name answers, in its live session.

Owns what the outcomes and errors of a request to it mean to the caller. Never waits for an agent
that is not there. A question that is given up here goes on as a request: its answer is kept by the
daemon, and a repeat with the same key finds it. Lives on the server's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Protocol

from agentbus.errors import (
    BusError,
    ConflictError,
    InspectionRejectedError,
    NotFoundError,
    TooLargeError,
    UnknownOutcomeError,
    ValidationError,
)
from agentbus.talk.handler import Answered, Delegation, NotAnswered
from agentbus.talk.http_guard import CONNECTIONS
from agentbus.transport.client import NoAnswerError

_log = logging.getLogger(__name__)

AT_ONCE: Final = CONNECTIONS
"""Under way, those of callers that have gone included; more are refused."""

RETRY_S: Final = 0.5
"""Between two attempts while there is no daemon, or it recovers."""

_REFUSALS: Final = (
    (NotFoundError, "instance_unavailable"),
    (TooLargeError, "request_too_large"),
    (ValidationError, "invalid_request"),
    (InspectionRejectedError, "invalid_request"),
)


class Daemon(Protocol):
    """The daemon, as far as this handler needs it."""

    async def delegate(self, question: dict[str, Any]) -> dict[str, Any]:
        """What has become of a question, the parameters of `talk_ask`. Raises BusError."""
        ...


class PeerHandler:
    """Asks the agent called `instance`."""

    knows_repeats: Final = True

    def __init__(self, instance: str, daemon: Daemon) -> None:
        self._instance = instance
        self._daemon = daemon
        self._under_way: set[asyncio.Task[Answered | NotAnswered]] = set()
        self._stopped = False

    async def answer(self, delegation: Delegation) -> Answered | NotAnswered:
        if len(self._under_way) >= AT_ONCE:
            return NotAnswered("instance_unavailable", f"{AT_ONCE} questions are under way here")
        task = asyncio.ensure_future(self._answer(delegation))
        self._under_way.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            _log.warning("delegation %s is orphaned by the stop", delegation.delegation_id)
            return NotAnswered("instance_unavailable", "the server was stopped meanwhile")
        finally:
            self._under_way.discard(task)
            task.cancel()

    def stop(self) -> None:
        self._stopped = True
        for task in self._under_way:
            task.cancel()

    def close(self) -> None:
        return None

    async def _answer(self, delegation: Delegation) -> Answered | NotAnswered:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + delegation.work_s
        was_sent = False
        while True:
            try:
                outcome = await self._daemon.delegate(self._question(delegation, deadline_s))
            except BusError as error:
                was_sent |= _may_be_sent(error)
                if not error.retryable:
                    return refused(error)
                if loop.time() + RETRY_S >= deadline_s:
                    return self._given_up(delegation, error, was_sent)
                await asyncio.sleep(RETRY_S)
            else:
                return self._meaning(delegation, outcome)

    def _question(self, delegation: Delegation, deadline_s: float) -> dict[str, Any]:
        left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
        return {
            "instance": self._instance,
            "caller": delegation.from_instance,
            "prompt": delegation.prompt,
            "depth": delegation.depth,
            "key": delegation.key or delegation.delegation_id,
            "delegation_id": delegation.delegation_id,
            "within_ms": round(left_s * 1000),
        }

    def _given_up(self, delegation: Delegation, error: BusError, was_sent: bool) -> NotAnswered:
        if not was_sent:
            return NotAnswered("instance_unavailable", f"the bus does not answer: {error.message}")
        _log.warning(
            "delegation %s is orphaned: the bus was lost while it was asked",
            delegation.delegation_id,
        )
        return NotAnswered("timeout", "the bus was lost meanwhile; the agent may have been asked")

    def _meaning(self, delegation: Delegation, outcome: dict[str, Any]) -> Answered | NotAnswered:
        if outcome["state"] == "pending":
            _log.warning(
                "delegation %s is orphaned as request %s",
                delegation.delegation_id,
                outcome["message_id"],
            )
        return meaning_of(outcome)


def meaning_of(outcome: dict[str, Any]) -> Answered | NotAnswered:
    """What to tell the caller of the outcome of a request, as the daemon shows it."""
    message_id, reason = outcome["message_id"], outcome.get("reason")
    match outcome["state"]:
        case "answered":
            return Answered(outcome["text"])
        case "pending":
            how = _PENDING.get(outcome["delivery_state"], "is at it")
            return NotAnswered(
                "timeout",
                f"no answer yet: the agent {how}; the request goes on, look for its answer with "
                f"`agentbus talk result {message_id}`",
            )
        case "ended" if outcome["delivery_state"] in ("rejected", "cancelled"):
            ended = f"request {message_id} was {outcome['delivery_state']}"
            return NotAnswered("workflow_state", f"{ended}: {reason}" if reason else ended)
        case "ended":
            return NotAnswered("timeout", f"request {message_id} was never answered")
        case "gone":
            return NotAnswered("workflow_state", f"request {message_id} is retained no more")
        case _:
            return NotAnswered("internal_error", f"request {message_id}: {reason}")


_PENDING: Final = {
    "queued": "has not taken it up",
    "paused": "waits for a person",
    "acked": "has finished it without an answer",
}


def refused(error: BusError) -> NotAnswered:
    """What an error of the bus means to the caller. Raises a ConflictError again."""
    if isinstance(error, ConflictError):
        raise error
    for kind, code in _REFUSALS:
        if isinstance(error, kind):
            return NotAnswered(code, error.message)
    return NotAnswered("internal_error", f"the bus refused the request: {error.message}")


def _may_be_sent(error: BusError) -> bool:
    return isinstance(error, UnknownOutcomeError) or (
        isinstance(error, NoAnswerError) and error.sent
    )
