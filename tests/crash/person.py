"""The person of a crash test, on a thread of their own."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from typing import Any, Final

from agentbus.errors import BusError
from agentbus.transport.client import Client as DaemonClient
from agentbus.transport.client import NoAnswerError
from tests.bus_fixture import ThrowAwayBus
from tests.crash.attempts import Attempt, Outcome
from tests.crash.history import History, content_of
from tests.crash.peer_history import Decided, PeerOperation, Shown
from tests.crash.peering import AGENTS, REPEATS

PERSON: Final = "person"
_WITHIN_S: Final = 10.0


class Person(threading.Thread):
    """Who decides what rests, asks agents, and reads what they answer, by the requests of the
    command line."""

    def __init__(self, seed: str, bus: ThrowAwayBus, history: History) -> None:
        super().__init__(name=PERSON, daemon=True)
        self._random = random.Random(f"{seed} {PERSON}")
        self._bus = bus
        self._history = history
        self._count = 0
        self.ending = threading.Event()
        """It only lets work go on from now."""
        self.over = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.wait(0.3):
                with suppress(BusError):
                    self._decide()
                if not self.ending.is_set() and self._random.random() < 0.5:
                    self._send()
            self._read()
        except BaseException as error:
            self.failure = error

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        with DaemonClient.connect(self._bus.runtime.socket, 1.0) as client:
            return client.request(method, params, _WITHIN_S)

    def _decide(self) -> None:
        for one in self._ask("human_list", {})["interventions"]:
            action = "approve"
            if one["kind"] != "response" and not self.ending.is_set():
                action = self._random.choice(("approve", "nudge", "reassign", "reject", "cancel"))
            decision = {
                "intervention_id": one["intervention_id"],
                "version": one["version"],
                "action": action,
                **({"instructions": "Do it so."} if action == "nudge" else {}),
                **({"to": self._random.choice(AGENTS)} if action == "reassign" else {}),
            }
            outcome: Outcome = "ok"
            try:
                self._ask("human_decide", decision)
            except BusError as error:
                sent = isinstance(error, NoAnswerError) or error.code == "unknown"
                outcome = "unknown" if sent else "fail"
            self._history.peer.decided.append(Decided(one["delivery_id"], action, outcome))

    def _send(self) -> None:
        self._count += 1
        mark = f"{PERSON}-peer{self._count}"
        to = self._random.choice(AGENTS)
        operation = PeerOperation(PERSON, "send", mark, mark, (to,))
        self._history.peer.operations.append(operation)
        params = {"to": [to], "body": content_of(mark), "idempotency_key": mark}
        for _ in range(self._random.choice((1, REPEATS))):
            attempt = Attempt(self._history.now_s())
            operation.attempts.append(attempt)
            operation.tokens.append(None)
            try:
                answer = self._ask("human_send", params)
            except NoAnswerError as error:
                attempt.said = error.message
            except BusError as error:
                attempt.refused(error.as_data())
            else:
                operation.answers.append(answer)
                attempt.accepted(answer)
            attempt.ended_s = self._history.now_s()
            if attempt.outcome == "ok" or not attempt.may_be_repeated or self.ending.wait(0.1):
                return

    def _read(self) -> None:
        for reply in self._ask("human_replies", {})["replies"]:
            self._history.peer.shown.append(
                Shown(PERSON, 0, reply["message_id"], "replies", False, self._history.now_s())
            )
