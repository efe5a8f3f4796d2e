"""What peer messaging refuses, in its own words, and when work needs a person.

Owns the `reason` words and the texts of the errors. The numbers of `status` are those that peers of
other buses know the same refusals by. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Literal

from agentbus.errors import ConflictError, ForbiddenError, NotFoundError
from agentbus.limits import CONSULTATION_SECONDS, HUMAN_PREFIX, PEER_CONFIDENCE, TALK_PREFIX

KEY_REUSED = "COLLABORATION_IDEMPOTENCY_KEY_REUSED"
STALE_LEASE = "STALE_LEASE"
HUMAN_REQUIRED = "HUMAN_REQUIRED"
INSTRUCTIONS_CHANGED = "INSTRUCTIONS_CHANGED"
DELIVERY_UNAVAILABLE = "DELIVERY_UNAVAILABLE"
CONSULTATION_BUDGET = "CONSULTATION_BUDGET"
CONSULTATION_DEADLINE = "CONSULTATION_DEADLINE"
CONSULTATION_CYCLE = "CONSULTATION_CYCLE"
PEER_NOT_ALLOWED = "PEER_NOT_ALLOWED"
AMBIGUOUS_DELIVERY = "AMBIGUOUS_DELIVERY"
VERSION_CHANGED = "VERSION_CHANGED"

_CONFLICT, _FORBIDDEN, _NOT_FOUND, _SPENT = 409, 403, 404, 429


def key_reused(key: str) -> ConflictError:
    return ConflictError(
        f"idempotency key {key!r} was already used by this agent for a different message; repeat "
        "that call unchanged, or use a new key",
        reason=KEY_REUSED,
        status=_CONFLICT,
    )


def stale_lease(delivery_id: str) -> ConflictError:
    """The token is not that of the lease in force; the adapter claims again and retries."""
    return ConflictError(
        f"delivery {delivery_id} is not leased to this session any more; wait claims it again if "
        "nobody else has",
        reason=STALE_LEASE,
        state="lapsed",
        status=_CONFLICT,
        detail={"delivery_id": delivery_id},
    )


def paused(delivery_id: str, intervention_id: str | None) -> ConflictError:
    """Its own kind of refusal: nothing an agent can do lifts it."""
    return ConflictError(
        f"delivery {delivery_id} is paused until a person decides; stop work on it. wait shows the "
        "decision when there is one",
        reason=HUMAN_REQUIRED,
        state="paused",
        status=_CONFLICT,
        detail={"delivery_id": delivery_id, "intervention_id": intervention_id},
    )


def resumed(delivery_id: str, resume_context: dict[str, Any]) -> ConflictError:
    return ConflictError(
        f"delivery {delivery_id} goes on with new instructions of a person: follow "
        "detail.resume_context, rework the answer, and send it with a new idempotency key",
        reason=INSTRUCTIONS_CHANGED,
        state="resumed",
        status=_CONFLICT,
        detail={"delivery_id": delivery_id, "resume_context": resume_context},
    )


def unavailable(delivery_id: str, delivery_state: str | None) -> ConflictError:
    """`delivery_state` is not known where all that can be told is who does not hold it."""
    detail = {"delivery_id": delivery_id}
    if delivery_state is not None:
        detail["delivery_state"] = delivery_state
    return ConflictError(
        f"delivery {delivery_id} is {delivery_state or 'held by another session or by none'} and "
        "no longer this session's; drop the work and send the answer nowhere else",
        reason=DELIVERY_UNAVAILABLE,
        state="unavailable",
        status=_CONFLICT,
        detail=detail,
    )


def no_delivery(delivery_id: str) -> NotFoundError:
    return NotFoundError(
        f"there is no delivery {delivery_id!r} for this agent (a message_id names none); wait "
        "names what there is",
        status=_NOT_FOUND,
    )


def no_message(message_id: str) -> NotFoundError:
    return NotFoundError(
        f"there is no direct message {message_id!r} that this agent sent or got (a delivery_id "
        "names none), or it is retained no more",
        status=_NOT_FOUND,
    )


def no_recipient(word: str, asker: str) -> NotFoundError:
    """`asker`: the agent, or the person, who is told where to look."""
    where = "agentbus-admin sessions lists" if is_person(asker) else "peer discover and agents list"
    return NotFoundError(
        f"there is no agent or session {word!r}; {where} those there are", status=_NOT_FOUND
    )


def no_agent(word: str) -> NotFoundError:
    return NotFoundError(
        f"there is no agent {word!r}; peer agents lists those there are", status=_NOT_FOUND
    )


def nobody(allowed_only: bool) -> NotFoundError:
    """What `*` in the recipients stands for."""
    which = " that peer_allow names" if allowed_only else ""
    return NotFoundError(
        f'peer send: "*" stands for nobody: the directory has no other agent{which}; agents shows '
        "who is known",
        status=_NOT_FOUND,
    )


def ambiguous_delivery(message_id: str, deliveries: int) -> ConflictError:
    return ConflictError(
        f"message {message_id} has {deliveries} deliveries; give the delivery_id of the one that "
        "is meant, as status lists them",
        reason=AMBIGUOUS_DELIVERY,
        status=_CONFLICT,
    )


def budget_spent(requests: int, seconds_left: float) -> ConflictError:
    return ConflictError(
        f"{requests} requests were sent for this task, which is all that it may ask; answer with "
        "what you have, and say who did not reply",
        reason=CONSULTATION_BUDGET,
        status=_SPENT,
        detail={"consultation_seconds_left": round(max(0.0, seconds_left), 3)},
    )


def deadline_passed() -> ConflictError:
    return ConflictError(
        "the time for asking others about this task is over; answer with what you have, and say "
        "who did not reply",
        reason=CONSULTATION_DEADLINE,
        status=_SPENT,
        detail={"consultation_seconds_left": 0},
    )


def cycle(agent: str) -> ConflictError:
    return ConflictError(
        f"{agent} waits for the work that you handle, so a request to it could never be answered; "
        "ask with reply and ack=false instead",
        reason=CONSULTATION_CYCLE,
        status=_CONFLICT,
    )


def not_allowed(agent: str) -> ForbiddenError:
    return ForbiddenError(
        f"peer_allow does not let this user's agents write to {agent!r}; add it there and restart "
        "the bus, or choose another peer",
        reason=PEER_NOT_ALLOWED,
        status=_FORBIDDEN,
    )


def is_person(agent: str) -> bool:
    """Whether an agent's name is that of a person, which only the daemon gives."""
    return agent.startswith(HUMAN_PREFIX)


def is_issued(agent: str) -> bool:
    """Whether an agent's name is one that only the daemon gives: whose bearer is no agent."""
    return is_person(agent) or agent.startswith(TALK_PREFIX)


def not_unasked(agent: str) -> ForbiddenError:
    """Who is no agent is answered, and nothing else."""
    if not is_person(agent):
        return ForbiddenError(
            f"{agent!r} asks over talk: answer its request with reply; nothing else is sent there",
            reason=PEER_NOT_ALLOWED,
            status=_FORBIDDEN,
        )
    return ForbiddenError(
        f"{agent!r} is a person: answer a message of theirs with reply, and ask a person about "
        "work that you hold with human; nothing else is sent to people",
        reason=PEER_NOT_ALLOWED,
        status=_FORBIDDEN,
    )


def is_reached(sessions: Set[str], recipient_session: str | None, sender_session: str) -> bool:
    """Whether somebody who could claim a delivery is among the attached sessions of its agent."""
    if recipient_session is not None:
        return recipient_session in sessions
    return bool(sessions - {sender_session})


def why_no_reply(
    delivery_state: str, attempt: int, progressed: bool, reached: bool
) -> Literal["undelivered", "unclaimed", "stuck", "silent"] | None:
    """What keeps the reply to a request; None: it is being worked on.

    `reached`: see `is_reached`. `progressed`: there was a word about it.
    """
    if delivery_state == "acked":
        return "silent"
    if attempt == 0:
        return "unclaimed" if reached else "undelivered"
    if delivery_state == "leased" and progressed:
        return None
    return "stuck"


def why_a_person(
    action_type: str,
    confidence: float,
    missing_information: Sequence[str],
    conflicting_results: bool,
    request_human: bool,
) -> str | None:
    """What of a checkpoint needs a person, in words; None: it may go on."""
    reasons = []
    if confidence < PEER_CONFIDENCE:
        reasons.append(f"confidence {confidence:g} is below {PEER_CONFIDENCE:g}")
    if action_type in ("external", "destructive"):
        reasons.append(f"the action is {action_type}")
    if missing_information:
        reasons.append("information is missing")
    if conflicting_results:
        reasons.append("results conflict")
    if request_human:
        reasons.append("the agent asks for a person")
    return "; ".join(reasons) or None


def consultation_left_us(started_at_us: int, deadline_us: int | None, now_us: int) -> int:
    """Microseconds in which others may still be asked; none left: 0.

    `deadline_us`: of the work that is done meanwhile, which the time never outlasts. A clock that
    was set back gives no more than there was at the start.
    """
    whole_us = CONSULTATION_SECONDS * 1_000_000
    left_us = min(whole_us, started_at_us + whole_us - now_us)
    if deadline_us is not None:
        left_us = min(left_us, deadline_us - now_us)
    return max(0, left_us)
