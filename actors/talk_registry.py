"""Which instances are served over talk, by which process, and who has proven to be one.

Owns that in plain memory, for the registrar, on its thread. An entry lives as long as the
connection of its process speaks; a daemon that starts anew hears of all of them again. A proof is a
word that the daemon gives to whoever holds a name, and takes for a minute.

Who holds the name of a served instance: the process that serves it, a live conversation of the
agent of that name, and everything that was started by either.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, assert_never

from actors.messages import Link, TalkAsked
from agentbus.clock import Clock
from agentbus.envelope import rfc3339
from agentbus.errors import ConflictError, NotFoundError
from agentbus.limits import ATTACHMENT_EXPIRY_SECONDS
from agentbus.protocol.talk import TalkCaller, TalkFind, TalkGone, TalkList, TalkServe

PROOF_SECONDS: Final = 60.0
PROOFS: Final = 10_000
"""Given out and not expired; the oldest go first."""

PidsOfAgent = Callable[[str], Collection[int]]
"""The adapters and harnesses of the live conversations of an agent."""


@dataclass(frozen=True, slots=True)
class _Served:
    """What the process said last. `updated_us`: when."""

    entry: TalkServe
    link: Link
    updated_us: int


@dataclass(frozen=True, slots=True)
class _Proof:
    instance: str
    until_s: float


class TalkRegistry:
    """See the module."""

    def __init__(self, clock: Clock, pids_of_agent: PidsOfAgent) -> None:
        self._clock = clock
        self._pids_of_agent = pids_of_agent
        self._served: dict[str, _Served] = {}
        self._proofs: dict[str, _Proof] = {}  # oldest first

    def answer(self, asked: TalkAsked) -> dict[str, Any]:
        """What the request gets. Raises NotFoundError, ConflictError."""
        match asked.request:
            case TalkServe() as entry:
                self._serve(entry, asked.link)
                return {}
            case TalkFind() as find:
                return self._find(find, asked.peer_pid)
            case TalkCaller(instance, session):
                return {"may_be": self._may_be(instance, session)}
            case TalkGone(instance, pid):
                served = self._served.get(instance)
                if served is not None and served.entry.pid == pid:
                    del self._served[instance]
                return {}
            case TalkList():
                living = filter(None, map(self._living, sorted(self._served)))
                return {"instances": [_shown(served) for served in living]}
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
            "session": self._proof(find.caller) if self._holds(find.caller, pids) else None,
        }

    def _living(self, instance: str) -> _Served | None:
        served = self._served.get(instance)
        if served is None:
            return None
        silent_s = self._clock.monotonic_s() - served.link.last_seen_s
        if served.link.closed or silent_s > ATTACHMENT_EXPIRY_SECONDS:
            del self._served[instance]
            return None
        return served

    def _holds(self, instance: str, pids: set[int]) -> bool:
        served = self._living(instance)
        if served is not None and served.entry.pid in pids:
            return True
        return not pids.isdisjoint(self._pids_of_agent(instance))

    def _proof(self, instance: str) -> str:
        now_s = self._clock.monotonic_s()
        while self._proofs:
            oldest = next(iter(self._proofs))
            if self._proofs[oldest].until_s > now_s and len(self._proofs) < PROOFS:
                break
            del self._proofs[oldest]
        word = secrets.token_hex(16)
        self._proofs[word] = _Proof(instance, now_s + PROOF_SECONDS)
        return word

    def _may_be(self, instance: str, session: str | None) -> bool:
        if self._living(instance) is None:
            return True
        proof = self._proofs.get(session or "")
        return (
            proof is not None
            and proof.instance == instance
            and proof.until_s > self._clock.monotonic_s()
        )


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
