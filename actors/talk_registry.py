"""Which instances are served over talk, by which process, and who has proven to be one.

It answers what it knows, and hands on to the talk desk what has to be sent or read.

Owns that in plain memory, for the registrar, on its thread. An entry lives as long as the
connection of its process speaks; a daemon that starts anew hears of all of them again. A proof is a
word that the daemon gives to whoever holds a name, and takes for a minute.

Who holds the name of a served instance: the process that serves it, a live conversation of the
agent of that name, and everything that was started by either.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, assert_never

from actors.base import Address
from actors.messages import Link, TalkAsked
from actors.talk_desk_messages import DelegationAsked, DepthAsked, ResultAsked, TalkDeskMessage
from agentbus.clock import Clock
from agentbus.envelope import Recipient, rfc3339
from agentbus.errors import ConflictError, NotFoundError, UnavailableError
from agentbus.ids import AgentId, SessionId
from agentbus.limits import ATTACHMENT_EXPIRY_SECONDS
from agentbus.protocol.talk import (
    TalkAsk,
    TalkCaller,
    TalkFind,
    TalkGone,
    TalkList,
    TalkResult,
    TalkServe,
)

PROOF_SECONDS: Final = 60.0
PROOFS: Final = 10_000
"""Given out and not expired; the oldest go first."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A live one of an agent, and the processes of its adapter and its harness."""

    agent_id: AgentId
    session_id: SessionId
    pids: frozenset[int]


ConversationsOf = Callable[[str], list[Conversation]]
"""By the agent's name."""


@dataclass(frozen=True, slots=True)
class _Served:
    """What the process said last. `updated_us`: when."""

    entry: TalkServe
    link: Link
    updated_us: int


@dataclass(frozen=True, slots=True)
class _Proof:
    """`sessions`: those of the agent that the caller may be one of."""

    instance: str
    sessions: tuple[SessionId, ...]
    until_s: float


class TalkRegistry:
    """See the module."""

    def __init__(
        self, clock: Clock, conversations_of: ConversationsOf, desk: Address[TalkDeskMessage]
    ) -> None:
        self._clock = clock
        self._conversations_of = conversations_of
        self._desk = desk
        self._served: dict[str, _Served] = {}
        self._proofs: dict[str, _Proof] = {}  # oldest first

    def take(self, asked: TalkAsked) -> None:
        """Answer the request, or have the desk do it. Raises NotFoundError, ConflictError,
        UnavailableError."""
        reply_to = asked.reply_to
        match asked.request:
            case TalkServe() as entry:
                self._serve(entry, asked.link)
                reply_to.set({})
            case TalkFind() as find:
                reply_to.set(self._find(find, asked.peer_pid))
            case TalkCaller() as caller:
                self._know(caller, asked)
            case TalkAsk() as ask:
                recipient = self._recipient(ask, asked.link)
                self._desk.tell(DelegationAsked(ask, recipient, asked.link, reply_to))
            case TalkResult(message_id):
                self._desk.tell(ResultAsked(message_id, reply_to))
            case TalkGone(instance, pid):
                served = self._served.get(instance)
                if served is not None and served.entry.pid == pid:
                    del self._served[instance]
                reply_to.set({})
            case TalkList():
                living = filter(None, map(self._living, sorted(self._served)))
                reply_to.set({"instances": [_shown(served) for served in living]})
            case _:
                assert_never(asked.request)

    def disconnected(self, link: Link) -> None:
        """Its process has ended, or the daemon's connection to it."""
        for name, served in list(self._served.items()):
            if served.link is link:
                del self._served[name]

    def _serve(self, entry: TalkServe, link: Link) -> None:
        holder = self._living(entry.instance)
        if holder is not None and holder.link is not link:
            raise ConflictError(
                f"{entry.instance} is served already, by process {holder.entry.pid} on port "
                f"{holder.entry.port}; end that one, or take another name"
            )
        self._served[entry.instance] = _Served(entry, link, self._clock.wall_us())

    def _find(self, find: TalkFind, peer_pid: int | None) -> dict[str, Any]:
        served = self._living(find.instance)
        if served is None:
            raise NotFoundError(
                f"nobody serves {find.instance}; start it: agentbus talk serve --instance NAME"
            )
        entry = served.entry
        pids = {*find.pids, *(() if peer_pid is None else (peer_pid,))}
        return {
            "port": entry.port,
            "pid": entry.pid,
            "started": entry.started,
            "kind": entry.kind,
            "secret": entry.secret,
            "session": self._proof(find.caller, pids),
        }

    def _recipient(self, ask: TalkAsk, link: Link) -> Recipient | None:
        served = self._living(ask.instance)
        if served is None or served.link is not link:
            raise UnavailableError(f"{ask.instance} is not served by this connection; serve it")
        for conversation in self._conversations_of(ask.instance):
            return Recipient(ask.instance, conversation.agent_id)
        return None

    def _living(self, instance: str) -> _Served | None:
        served = self._served.get(instance)
        if served is None:
            return None
        silent_s = self._clock.monotonic_s() - served.link.last_seen_s
        if served.link.closed or silent_s > ATTACHMENT_EXPIRY_SECONDS:
            del self._served[instance]
            return None
        return served

    def _proof(self, instance: str, pids: set[int]) -> str | None:
        """A word for who holds the name, by one of these processes."""
        sessions = tuple(
            conversation.session_id
            for conversation in self._conversations_of(instance)
            if not pids.isdisjoint(conversation.pids)
        )
        served = self._living(instance)
        if not sessions and (served is None or served.entry.pid not in pids):
            return None
        now_s = self._clock.monotonic_s()
        while self._proofs:
            oldest = next(iter(self._proofs))
            if self._proofs[oldest].until_s > now_s and len(self._proofs) < PROOFS:
                break
            del self._proofs[oldest]
        word = secrets.token_hex(16)
        self._proofs[word] = _Proof(instance, sessions, now_s + PROOF_SECONDS)
        return word

    def _know(self, caller: TalkCaller, asked: TalkAsked) -> None:
        proof = self._proofs.get(caller.session or "")
        if (
            proof is None
            or proof.instance != caller.instance
            or proof.until_s <= self._clock.monotonic_s()
        ):
            is_free = self._living(caller.instance) is None
            asked.reply_to.set({"may_be": is_free, "depth": 0})
        elif not proof.sessions:
            asked.reply_to.set({"may_be": True, "depth": 0})
        else:
            self._desk.tell(DepthAsked(proof.sessions, asked.reply_to))


def _shown(served: _Served) -> dict[str, Any]:
    """Without the secret."""
    entry = served.entry
    return {
        "instance": entry.instance,
        "port": entry.port,
        "pid": entry.pid,
        "started": entry.started,
        "kind": entry.kind,
        "updated_at": rfc3339(served.updated_us),
    }
