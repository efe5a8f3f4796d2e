"""What a client of a crash test does with directed work.

Requests and notices go to agents of several sessions, so that one can take over what another lets
go. Whoever holds a delivery reports progress, answers once or in parts, acknowledges, asks for a
person, stands still beyond its lease, or forgets the work. Each works on its client's thread.
"""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from typing import Any, Final, Protocol

from agentbus.rules.peer import DELIVERY_UNAVAILABLE, HUMAN_REQUIRED, STALE_LEASE
from tests.crash.attempts import Attempt
from tests.crash.history import History, content_of, mark_of
from tests.crash.peer_history import Claim, PeerKind, PeerOperation, Shown, Way

AGENTS: Final = ("north", "south")
LEASE_S: Final = 5
"""The shortest that the bus allows."""

REPEATS: Final = 20
LOST: Final = frozenset({STALE_LEASE, DELIVERY_UNAVAILABLE, HUMAN_REQUIRED})
"""Reasons after which a client does not have its work any more."""

_PADDING: Final = 3000
_STAND_STILL_S: Final = LEASE_S + 2.0


class Gone(Exception):
    """There is no answer; nobody knows what became of the call."""


class Refused(Exception):
    """The bus said no. `error` is what it said."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error


class Caller(Protocol):
    """One way to the tool `peer`."""

    incarnation: int
    """Grows with each new process, or connection."""

    def peer(self, op: str, args: dict[str, Any], held: Claim | None, key: str) -> dict[str, Any]:
        """The result. Raises Gone or Refused.

        Every complete result is also given to `Peering.saw`, one that comes too late as well.
        """


class Peering:
    """The directed work of one client; its name is that of its conversation."""

    def __init__(
        self,
        name: str,
        agent: str,
        rng: random.Random,
        history: History,
        ending: threading.Event,
        caller: Caller,
        *,
        renews: bool,
    ) -> None:
        self._name = name
        self._random = rng
        self._history = history
        self._peer = history.peer
        self._ending = ending
        self._caller = caller
        self._renews = renews
        self._count = 0
        self._held: Claim | None = None
        self._blocked = False
        self._requests: list[str] = []
        self._open: list[tuple[PeerOperation, str, dict[str, Any], Claim | None]] = []
        """What nobody answered, under the claim that it was begun with."""
        self._peer.agents[name] = agent

    @property
    def is_at_work(self) -> bool:
        """It believes that it holds a delivery. Any thread may ask."""
        return self._held is not None

    # --- what it does ---

    def step(self) -> None:
        if self._open and self._random.random() < 0.3:
            self._repeat_open()
        elif self._held is not None and self._random.random() < 0.8:
            self._work(self._held)
        else:
            action = self._random.random()
            if action < 0.2:
                self._send("request")
            elif action < 0.45:
                self._send("info")
            elif action < 0.6 and self._requests:
                self._collect()
            else:
                self._wait(self._random.choice((0, 0.3)))

    def settle(self) -> None:
        """Find out what became of all that is open; afterwards nothing is sent any more."""
        while self._open:
            self._repeat_open()

    def drain(self) -> bool:
        """Acknowledge one delivery more, if there is one; whether there was, or may be."""
        if not self._wait(0.3):
            return True
        if self._held is not None:
            self._write("ack", {"delivery_id": self._held.delivery_id}, self._held, finishes=True)
            return True
        return self._blocked

    # --- steps ---

    def _send(self, kind: str) -> None:
        others = [agent for agent in AGENTS if agent != self._peer.agents[self._name]]
        to = self._random.choice((others, others, [*AGENTS], [self._peer.agents[self._name]]))
        operation = self._write("send", {"to": to, "kind": kind}, self._held)
        if kind == "request" and operation.message_id is not None:
            self._requests.append(operation.message_id)

    def _work(self, held: Claim) -> None:
        action = self._random.random()
        about = {"delivery_id": held.delivery_id}
        if action < 0.1:
            self._held = None  # it was forgotten: the next wait shows it again
        elif action < 0.17 and not self._renews:
            self._ending.wait(_STAND_STILL_S)
            self._write("reply", about, held, finishes=True)
        elif action < 0.3:
            self._write("progress", about, held)
        elif action < 0.33:
            self._write("human", about, held, finishes=True)
        elif action < 0.5 or held.kind == "response":  # whose answers would never end
            self._write("ack", about, held, finishes=True)
        elif action < 0.6:
            self._write("reply", {**about, "ack": False}, held)
        else:
            self._write("reply", about, held, finishes=True)

    def _wait(self, timeout_s: float) -> bool:
        """Whether there was an answer."""
        try:
            self._caller.peer("wait", {"timeout": timeout_s}, None, "")
        except (Gone, Refused):
            return False
        return True

    def _collect(self) -> None:
        message_id = self._random.choice(self._requests)
        with suppress(Gone, Refused):
            self._caller.peer("collect", {"message_id": message_id, "timeout": 0.2}, None, "")

    def saw(self, op: str, result: dict[str, Any], began_s: float) -> None:
        """Write down what a complete result showed."""
        if op == "wait":
            self._took(result, began_s)
        elif op == "collect":
            for answer in result["answers"]:
                self._showed(answer["message_id"], "collect", is_new=answer["body"] is not None)

    def _took(self, result: dict[str, Any], began_s: float) -> None:
        delivery = result["delivery"]
        self._blocked = "blocked" in result
        if delivery is None:
            self._held = None
            return
        envelope = delivery["envelope"]
        self._held = Claim(
            client=self._name,
            incarnation=self._caller.incarnation,
            delivery_id=delivery["delivery_id"],
            message_id=envelope["id"],
            kind=envelope["kind"],
            mark=mark_of(envelope["body"] or ""),
            attempt=delivery["attempt"],
            token=result.get("token"),
            began_s=began_s,
            ended_s=self._history.now_s(),
        )
        self._peer.claims.append(self._held)
        if envelope["kind"] == "response":
            self._showed(envelope["id"], "wait", is_new="already_presented" not in delivery)

    def _showed(self, message_id: str, way: Way, *, is_new: bool) -> None:
        self._peer.shown.append(
            Shown(
                client=self._name,
                incarnation=self._caller.incarnation,
                message_id=message_id,
                way=way,
                marked=not is_new,
                at_s=self._history.now_s(),
            )
        )

    # --- writing operations ---

    def _write(
        self,
        kind: PeerKind,
        args: dict[str, Any],
        held: Claim | None,
        *,
        finishes: bool = False,
    ) -> PeerOperation:
        """A new operation, repeated until there is an answer, or left open for later."""
        self._count += 1
        mark = f"{self._name}-peer{self._count}"
        padding = _PADDING if self._count % 7 == 0 else 0
        texts = {"progress": "summary", "human": "reason", "send": "body", "reply": "body"}
        if kind in texts:
            args = {**args, texts[kind]: content_of(mark, padding if kind == "send" else 0)}
        if kind in ("send", "reply", "progress"):
            args["idempotency_key"] = mark
        operation = PeerOperation(
            client=self._name,
            kind=kind,
            mark=mark,
            key=mark,
            to=tuple(args.get("to", ())),
            delivery_id=args.get("delivery_id"),
            finishes=finishes,
        )
        self._peer.operations.append(operation)
        for _ in range(self._random.choice((1, 2, REPEATS))):
            if not self._attempt(operation, kind, args, held) or self._ending.wait(0.05):
                break
        if operation.attempts[-1].outcome == "unknown":
            self._open.append((operation, kind, args, held))
        elif operation.outcome == "ok" and self._random.random() < 0.2:
            self._attempt(operation, kind, args, held)
        return operation

    def _repeat_open(self) -> None:
        operation, op, args, held = self._open.pop(0)
        for _ in range(REPEATS):
            if not self._attempt(operation, op, args, held):
                return
        if not self._ending.is_set():
            self._open.append((operation, op, args, held))

    def _attempt(
        self, operation: PeerOperation, op: str, args: dict[str, Any], held: Claim | None
    ) -> bool:
        """One call; whether it should be repeated."""
        attempt = Attempt(self._history.now_s())
        operation.attempts.append(attempt)
        operation.tokens.append(held.token if held is not None else None)
        try:
            answer = self._caller.peer(op, args, held, operation.key)
        except Gone as gone:
            attempt.said = str(gone)
        except Refused as refused:
            attempt.refused(refused.error)
            reason = refused.error.get("reason")
            if reason in LOST:
                operation.fenced = True
                self._let_go(operation)
        else:
            operation.answers.append(answer)
            attempt.accepted({"duplicate": answer.get("duplicate", False)})
            if operation.finishes:
                self._let_go(operation)
        attempt.ended_s = self._history.now_s()
        return attempt.outcome != "ok" and attempt.may_be_repeated

    def _let_go(self, operation: PeerOperation) -> None:
        if self._held is not None and self._held.delivery_id == operation.delivery_id:
            self._held = None
