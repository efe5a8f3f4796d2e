"""The clients of a crash test: agents behind a real adapter, and programs on the daemon's socket.

Each has a thread and a random sequence of its own, does one call after the other, and writes down
what became of it. An adapter that dies is started again with the same conversation, as a harness
does on resume. None gives up before it is told to: then each takes what is still waiting for it.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, ClassVar

from agentbus.errors import BusError
from agentbus.ids import new_id
from agentbus.launch import ensure_daemon
from agentbus.transport.client import NoAnswerError
from tests.adapter.adapter_process import AdapterProcess
from tests.bus_fixture import BusSession, ThrowAwayBus
from tests.crash.attempts import Attempt
from tests.crash.history import (
    Gap,
    Handed,
    History,
    Kind,
    Operation,
    Subscribed,
    content_of,
    mark_of,
)
from tests.crash.peer_history import Claim
from tests.crash.peering import Gone, Peering, Refused

ORDINARY = ("general", "work")
MEMORIES = "notes"
CHANNELS = (*ORDINARY, MEMORIES)

ANSWER_WITHIN_S = 90.0
"""Longer than any fault and all retries together: a call without an answer then is stuck."""

DRAIN_WITHIN_S = 60.0
REPEATS = 20
"""Attempts of an operation that its client does not leave open."""

PADDING_MAX = 4000


class Client(threading.Thread):
    """One client. `memories` are ids that all clients know; appending to a list is safe."""

    RENEWS: ClassVar[bool]
    """Whether it keeps a lease by itself."""

    def __init__(
        self,
        name: str,
        agent: str,
        seed: str,
        bus: ThrowAwayBus,
        history: History,
        memories: list[str],
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.random = random.Random(seed)
        self.bus = bus
        self.history = history
        self.memories = memories
        self.ending = threading.Event()
        self.quiet = threading.Event()
        """It changes nothing any more."""
        self.may_finish = threading.Event()
        self.failure: BaseException | None = None
        self.incarnation = 0
        self.peering = Peering(
            name, agent, self.random, history, self.ending, self, renews=self.RENEWS
        )
        self._agent = agent
        self._marks = 0

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self.step()
                self.ending.wait(self.random.uniform(0.0, 0.1))
            self.peering.settle()
            self.quiet.set()
            self.may_finish.wait()
            self.finish()
        except BaseException as error:
            self.failure = error
            self.quiet.set()

    def step(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def drop(self) -> None:
        """End the process or connection to the bus; the next call makes another."""
        raise NotImplementedError

    def attempt(self, operation: Operation) -> Attempt:
        """One call of it; never raises."""
        raise NotImplementedError

    def peer(self, op: str, args: dict[str, Any], held: Claim | None, key: str) -> dict[str, Any]:
        raise NotImplementedError

    def drain_peer(self) -> None:
        """Take all directed work that there is, and that others let go of."""
        deadline_s = time.monotonic() + DRAIN_WITHIN_S
        empty = 0
        while empty < 2:
            empty = 0 if self.peering.drain() else empty + 1
            if time.monotonic() > deadline_s:
                self.history.stuck.append(f"{self.name} still gets directed work after the end")
                break

    def mutate(
        self, kind: Kind, channel: str, memory_id: str | None = None, attempts: int = REPEATS
    ) -> Operation:
        """A new operation, repeated until it is accepted, but not more often than that."""
        self._marks += 1
        mark = f"{self.name}-{self._marks}"
        operation = Operation(self.name, kind, mark, new_id(), channel, memory_id)
        self.history.operations.append(operation)
        self.repeat(operation, attempts)
        if kind == "send" and channel == MEMORIES and operation.message_id is not None:
            self.memories.append(operation.message_id)
        return operation

    def repeat(self, operation: Operation, attempts: int = REPEATS) -> None:
        for _ in range(attempts):
            attempt = self.attempt(operation)
            if attempt.outcome == "ok" or not attempt.may_be_repeated:
                break
            if self.ending.wait(0.05):
                break

    def arguments(self, operation: Operation) -> dict[str, Any]:
        padding = len(operation.mark) ** 9 % PADDING_MAX if operation.mark.endswith("7") else 0
        content = content_of(operation.mark, padding)
        arguments = {"operation_id": operation.operation_id}
        if operation.kind == "send":
            return arguments | {"channel": operation.channel, "content": content}
        arguments["memory_id"] = str(operation.memory_id)
        return arguments if operation.kind == "delete" else arguments | {"content": content}

    def answered(self, operation: Operation, attempt: Attempt, answer: dict[str, Any]) -> None:
        operation.answers.append({"message_id": operation.memory_id, **answer})
        attempt.accepted(answer)

    def mutate_somehow(self) -> None:
        """Some of those that are not answered are left open for ever."""
        attempts = self.random.choice((1, 2, REPEATS, REPEATS))
        if not self.memories or self.random.random() < 0.8:
            channel = self.random.choice((*ORDINARY, *ORDINARY, MEMORIES))
            self.mutate("send", channel, attempts=attempts)
        else:
            kind: Kind = "edit" if self.random.random() < 0.8 else "delete"
            self.mutate(kind, MEMORIES, self.random.choice(self.memories), attempts)


class SocketClient(Client):
    """A program that speaks to the daemon itself and starts it when there is none.

    It renews a lease only now and then, so it also loses work that it goes on with.
    """

    RENEWS = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._session: BusSession | None = None
        self._peer_calls = 0

    def step(self) -> None:
        if self.random.random() < 0.6:
            self.peering.step()
        else:
            self.mutate_somehow()

    def finish(self) -> None:
        self.drain_peer()
        self.drop()

    def attempt(self, operation: Operation) -> Attempt:
        attempt = Attempt(self.history.now_s())
        operation.attempts.append(attempt)
        tool = {"send": "send", "edit": "edit_memory", "delete": "delete_memory"}[operation.kind]
        try:
            session = self._attached()
        except BusError as error:
            self.drop()
            attempt.refused(error.as_data())  # nothing was sent
        else:
            try:
                answer = session.call(tool, **self.arguments(operation))
                self.answered(operation, attempt, answer)
            except NoAnswerError as error:
                attempt.said = error.message
                self.drop()
            except BusError as error:
                attempt.refused(error.as_data())
                if error.code == "stale_attachment":
                    self.drop()
        attempt.ended_s = self.history.now_s()
        return attempt

    def _attached(self) -> BusSession:
        if self._session is None:
            ensure_daemon(
                self.bus.runtime, self.bus.config_path, deadline_s=10.0, env=self.bus.environment
            ).close()
            self._session = self.bus.attach(self._agent, conversation=self.name)
            self.incarnation += 1
        return self._session

    def peer(self, op: str, args: dict[str, Any], held: Claim | None, key: str) -> dict[str, Any]:
        began_s = self.history.now_s()
        try:
            session = self._attached()
        except BusError as error:
            self.drop()
            raise Refused(error.as_data()) from error  # nothing was sent
        self._peer_calls += 1
        params: dict[str, Any] = {"op": op, "args": args, "number": self._peer_calls}
        if held is not None and held.token is not None:
            params["token"] = held.token
        if op in ("ack", "human"):
            params["operation_id"] = key
        try:
            if held is not None and self.random.random() < 0.3:
                session.notify("renew", leases=[[held.delivery_id, held.token]])
            answer: dict[str, Any] = session.request("peer", **params)
        except NoAnswerError as error:
            self.drop()
            raise Gone(error.message) from error
        except BusError as error:
            if error.code == "stale_attachment":
                self.drop()
            raise Refused(error.as_data()) from error
        self.peering.saw(op, answer, began_s)
        return answer

    def drop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call without an answer. `op`: of the tool `peer`."""

    tool: str
    op: str
    at_s: float


class AdapterClient(Client):
    """An agent: its tool calls go through `agentbus mcp`, a process that may die at any time."""

    RENEWS = True

    def __init__(
        self,
        name: str,
        agent: str,
        seed: str,
        bus: ThrowAwayBus,
        history: History,
        memories: list[str],
        log: IO[bytes],
    ) -> None:
        super().__init__(name, agent, seed, bus, history, memories)
        self.next_failpoint = ""
        """Armed in the next adapter that is started."""
        self.process: subprocess.Popen[bytes] | None = None
        self._log = log
        self._adapter: AdapterProcess | None = None
        self._asked: dict[Any, _Asked] = {}
        self._results = 0
        self._subscriptions: dict[str, Subscribed] = {}
        self._subscribed = 0

    # --- what it does ---

    def begin(self) -> None:
        """Subscribe everywhere, before anything is sent."""
        for channel in CHANNELS:
            self._subscribe(channel, "oldest")

    def step(self) -> None:
        if self.random.random() < 0.5:
            if self.random.random() < 0.05:
                self._cancelled_call("peer", op="wait", args={"timeout": 1})
            else:
                self.peering.step()
            return
        action = self.random.random()
        if action < 0.5:
            self.receive(self.random.choice((0, 0, 0.3)), self.random.choice((None, 1, 5)))
        elif action < 0.9:
            self.mutate_somehow()
        elif action < 0.94:
            self._cancelled_call("receive", wait_seconds=1)
        elif action < 0.97:
            self._look_around()
        else:
            self._leave_and_come_back(self.random.choice(CHANNELS))

    def finish(self) -> None:
        """Take what waits until there is nothing, which also confirms what came last."""
        self.drain_peer()
        deadline_s = time.monotonic() + DRAIN_WITHIN_S
        empty = 0
        while empty < 2:
            result = self.receive(0.5, None)
            quiet = result is not None and not (result["messages"] or result["gaps"])
            empty = empty + 1 if quiet and result is not None and not result["more"] else 0
            if time.monotonic() > deadline_s:
                self.history.stuck.append(f"{self.name} still gets messages after the end")
                break
        if self._adapter is not None:
            self._adapter.close_write()
            with suppress(subprocess.TimeoutExpired):
                self._adapter.wait_exit(5.0)
            self.drop()

    def attempt(self, operation: Operation) -> Attempt:
        tool = {"send": "send", "edit": "edit_memory", "delete": "delete_memory"}[operation.kind]
        attempt = Attempt(self.history.now_s())
        operation.attempts.append(attempt)
        try:
            result = self._call(tool, **self.arguments(operation))
        except Gone as gone:
            attempt.said = str(gone)
        else:
            if "error" in result:
                attempt.refused(result["error"])
            else:
                self.answered(operation, attempt, result)
        attempt.ended_s = self.history.now_s()
        return attempt

    def peer(self, op: str, args: dict[str, Any], held: Claim | None, key: str) -> dict[str, Any]:
        result = self._call("peer", op=op, args=args)
        if "error" in result:
            raise Refused(result["error"])
        return result

    def receive(self, wait_s: float, count: int | None) -> dict[str, Any] | None:
        """The result, None when there was none."""
        arguments: dict[str, Any] = {"wait_seconds": wait_s}
        if count is not None:
            arguments["count"] = count
        try:
            result = self._call("receive", **arguments)
        except Gone:
            return None
        return None if "error" in result else result

    def _cancelled_call(self, tool: str, **arguments: Any) -> None:
        """What comes although it was cancelled comes before the answer to the next call."""
        with suppress(Gone):
            request = self._ask(tool, arguments)
            self.ending.wait(self.random.uniform(0.0, 0.05))
            with self._adapter_gone():
                assert self._adapter is not None
                self._adapter.cancel(request)

    def _look_around(self) -> None:
        with suppress(Gone):
            if self.memories and self.random.random() < 0.5:
                self._call("get_memory", memory_id=self.random.choice(self.memories))
            elif self.random.random() < 0.5:
                self._call("search", text="conversation", count=5)
            else:
                self._call("history", channel=self.random.choice(CHANNELS), count=5)

    def _leave_and_come_back(self, channel: str) -> None:
        left = self._subscriptions[channel]
        left.open = False
        self._until_done("unsubscribe", channel=channel)
        self._subscribe(channel, self.random.choice(("now", "oldest")))

    def _subscribe(self, channel: str, begin: str) -> None:
        self._subscribed += 1
        subscription = Subscribed(self.name, channel, self._subscribed, 0)
        self._subscriptions[channel] = subscription
        self.history.subscriptions.append(subscription)
        answer = self._until_done("subscribe", channel=channel, **{"from": begin})
        if answer is None:
            subscription.open = False  # whether it is subscribed nobody knows
        else:
            subscription.from_sequence = answer["from_sequence"]

    def _until_done(self, tool: str, **arguments: Any) -> dict[str, Any] | None:
        for _ in range(REPEATS):
            with suppress(Gone):
                result = self._call(tool, **arguments)
                if "error" not in result or not result["error"]["retryable"]:
                    return None if "error" in result else result
            self.ending.wait(0.05)
        return None

    # --- the adapter ---

    def _call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured result. Raises Gone."""
        request = self._ask(tool, arguments)
        deadline_s = time.monotonic() + ANSWER_WITHIN_S
        while True:
            with self._adapter_gone():
                assert self._adapter is not None
                message = self._adapter.receive(max(0.0, deadline_s - time.monotonic()))
            result = self._read(message)
            if result is not None and message["id"] == request:
                return result

    def _read(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """The structured result in a message; what came in it is written down."""
        asked = self._asked.pop(message.get("id"), None)
        if asked is None:
            return None
        result: dict[str, Any] = message["result"]["structuredContent"]
        if "error" not in result and asked.tool == "receive":
            self._took(result)
        elif "error" not in result and asked.tool == "peer":
            self.peering.saw(asked.op, result, asked.at_s)
        return result

    def _ask(self, tool: str, arguments: dict[str, Any]) -> Any:
        with self._adapter_gone():
            if self._adapter is None:
                self._start()
            assert self._adapter is not None
            request = self._adapter.call(tool, **arguments)
        self._asked[request] = _Asked(tool, arguments.get("op", ""), self.history.now_s())
        return request

    def _start(self) -> None:
        environment = dict(self.bus.environment)
        failpoint, self.next_failpoint = self.next_failpoint, ""
        if failpoint:
            environment["AGENTBUS_TEST_FAILPOINT"] = failpoint
        self._adapter = AdapterProcess(
            environment,
            self.bus.config_path,
            agent=self._agent,
            session=self.name,
            stderr=self._log,
        )
        self.process = self._adapter.process
        self.incarnation += 1
        self._adapter.initialize(within_s=ANSWER_WITHIN_S)

    def _adapter_gone(self) -> _AdapterGone:
        return _AdapterGone(self._lost)

    def _lost(self, error: BaseException) -> None:
        if isinstance(error, TimeoutError):
            asked = ", ".join(f"{one.tool} {one.op}".strip() for one in self._asked.values())
            asked = asked or "initialize"
            self.history.stuck.append(
                f"{self.name} had no answer to {asked} by {self.history.now_s():.3f}"
            )
        self.drop()

    def drop(self) -> None:
        """End the adapter. What it wrote completely before is in the pipe, and was handed off."""
        adapter, self._adapter = self._adapter, None
        if adapter is None:
            return
        adapter.process.kill()
        with suppress(EOFError, OSError):
            while True:
                self._read(adapter.receive(5.0))
        self._asked.clear()
        adapter.close()

    def _took(self, result: dict[str, Any]) -> None:
        self._results += 1
        at_s = self.history.now_s()
        for message in result["messages"]:
            channel = message["channel"]
            self.history.handed.append(
                Handed(
                    self.name,
                    self._subscriptions[channel].number,
                    channel,
                    mark_of(message["content"]),
                    message["message_id"],
                    message["sequence"],
                    message.get("redelivered", False),
                    self._results,
                    at_s,
                )
            )
        for gap in result["gaps"]:
            self.history.gaps.append(
                Gap(
                    self.name,
                    self._subscriptions[gap["channel"]].number,
                    gap["channel"],
                    gap["from_sequence"],
                    gap["to_sequence"],
                    gap["cause"],
                    self._results,
                    at_s,
                )
            )


class _AdapterGone:
    """Turns the end of an adapter, as its client sees it, into Gone."""

    def __init__(self, lost: Callable[[BaseException], None]) -> None:
        self._lost = lost

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, EOFError | OSError):  # TimeoutError is an OSError
            self._lost(error)
            raise Gone(f"the adapter ended ({type(error).__name__})") from error
