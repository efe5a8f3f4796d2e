"""The answers to `discover` and `agents`: who could be asked, what each can do, in which state.

Owns the shape of a directory entry, its states and the pages. Reads with its caller's reader, as
much as a page takes; the caller's thread.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, Literal

from actors.presence import Presence
from agentbus.envelope import rfc3339
from agentbus.errors import ValidationError
from agentbus.ids import AgentId, SessionId
from agentbus.limits import (
    PEER_DISPLAY_CHARACTERS,
    PEER_HOST_CHARACTERS,
    PEER_RUNTIME_CHARACTERS,
)
from agentbus.protocol.peer import PeerAgents, PeerDiscover
from agentbus.store.peer.directory import AgentCard, DirectoryReader, SessionCard

PeerState = Literal["ready", "busy", "waiting_for_user", "not_listening", "offline"]

_BEST_FIRST: tuple[PeerState, ...] = (
    "ready",
    "busy",
    "waiting_for_user",
    "not_listening",
    "offline",
)
"""An agent is in the best state of its sessions, since each of them may claim what comes, unless
what was sent to the agent as a whole keeps that back."""


def directory_page(
    operation: PeerDiscover | PeerAgents,
    store: DirectoryReader,
    seen: Mapping[SessionId, Presence],
    own_agent: AgentId,
    own_session: SessionId,
) -> dict[str, Any]:
    """One page, by the agents' names; the cursor is the last of them.

    `agents` leaves the asking agent out, `discover` only the asking session: another one of the
    same agent can be asked. Raises ValidationError for a cursor that no page gave.
    """
    if operation.cursor is not None and not store.is_agent(operation.cursor):
        raise ValidationError(
            f"peer {operation.NAME}: cursor is no cursor; give the next_cursor of the page before, "
            "unchanged"
        )
    attached = {
        session_id: presence.session.sender.agent_id
        for session_id, presence in seen.items()
        if session_id != own_session
    }
    capability, available_only = None, False
    if isinstance(operation, PeerDiscover):
        capability, available_only = operation.capability, operation.available_only
    count = operation.limit + 2  # one to know that there are more, one that is the asking agent
    found: list[dict[str, Any]] = []
    after: str | None = operation.cursor or ""
    while after is not None and len(found) <= operation.limit:
        cards = store.directory(
            attached,
            count,
            after=after,
            capability=capability,
            attached_only=available_only or operation.fleet_id is not None,
        )
        for card in cards:
            if card.agent_id == own_agent and (
                isinstance(operation, PeerAgents) or not card.sessions
            ):
                continue
            entry = _agent_entry(card, seen)
            if _is_wanted(operation, entry):
                found.append(entry)
        after = cards[-1].agent if len(cards) == count else None
    page = found[: operation.limit]
    more = len(found) > len(page)
    return {
        "agents": page,
        "next_cursor": page[-1]["agent"] if more else None,
        "has_more": more,
    }


def _is_wanted(operation: PeerDiscover | PeerAgents, entry: dict[str, Any]) -> bool:
    fleet_id = operation.fleet_id
    if fleet_id is not None and all(one["fleet_id"] != fleet_id for one in entry["sessions"]):
        return False
    if isinstance(operation, PeerAgents):
        return True
    return entry["available"] or not operation.available_only


def _agent_entry(card: AgentCard, seen: Mapping[SessionId, Presence]) -> dict[str, Any]:
    sessions = [_session_entry(session, seen[session.session_id]) for session in card.sessions]
    states = [entry["state"] for entry in sessions] or ["offline"]
    state = min(states, key=_BEST_FIRST.index)
    if state in ("ready", "busy") and card.in_work is not None:
        state = "waiting_for_user" if card.in_work == "paused" else "busy"
    return {
        "agent": card.agent,
        "agent_id": card.agent_id,
        "description": card.description,
        "capabilities": list(card.capabilities),
        "state": state,
        "available": state == "ready",
        "last_seen_at": rfc3339(card.last_seen_us),
        "sessions": sessions,
    }


def _session_entry(card: SessionCard, presence: Presence) -> dict[str, Any]:
    return {
        "session_id": card.session_id,
        "display_name": presence.session.sender.display_name[:PEER_DISPLAY_CHARACTERS],
        "runtime": card.application[:PEER_RUNTIME_CHARACTERS],
        "host": socket.gethostname()[:PEER_HOST_CHARACTERS],
        "fleet_id": card.repository,
        "state": _state(card, presence),
        "attached_at": rfc3339(presence.session.attached_at_us),
    }


def _state(card: SessionCard, presence: Presence) -> PeerState:
    if card.paused:
        return "waiting_for_user"
    if card.leased:
        return "busy"
    return "ready" if presence.listens else "not_listening"
