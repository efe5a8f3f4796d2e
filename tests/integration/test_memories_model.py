"""A whole daemon against a model of a few dictionaries: what any sequence of calls must answer.

One daemon serves all runs of a test; each run has a channel, conversations and a word of its own.
What follows a commit a moment later (delivery, search) is asked for until it is as the model says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from agentbus.errors import NotFoundError
from agentbus.ids import new_id
from tests.bus_fixture import BusSession, ThrowAwayBus
from tests.redis_fixture import need_search

CONTENTS = ("alpha", "beta", "gamma delta", "delta gamma alpha")

QUERIES = {
    "": CONTENTS,
    "alpha": ("alpha", "delta gamma alpha"),
    "beta": ("beta",),
    "gamma delta": ("gamma delta", "delta gamma alpha"),
    '"gamma delta"': ("gamma delta",),
    "gam*": ("gamma delta", "delta gamma alpha"),
    "nobody": (),
}
"""Beside the word of the run: what is searched for, and which contents have it."""

AGREES_WITHIN_S = 20.0
STEPS = 16
SESSIONS = st.integers(0, 1)
MEMORIES = st.integers(0, STEPS)


class MemoryModel(RuleBasedStateMachine):
    """Two sessions, one memory channel; the model knows what lives, where, in which revision."""

    bus: ThrowAwayBus
    runs: int

    def __init__(self) -> None:
        super().__init__()
        type(self).runs += 1
        self.word = f"w{new_id()}"
        self.channel = f"facts-{self.word}"
        self.conversations = [new_id(), new_id()]
        self.sessions: list[BusSession] = []
        self.attach()
        self.sessions[0].call("create_channel", name=self.channel, kind="memory")
        self.memories: list[str] = []  # every id there ever was, in the order of creation
        self.live: dict[str, tuple[int, str]] = {}  # id -> revision, content
        self.sequence: dict[str, int] = {}
        self.position: dict[str, int] = {}
        self.repeats: list[tuple[int, str, dict[str, Any], dict[str, Any]]] = []
        self.subscription = self.sessions[1].call(
            "subscribe", channel=self.channel, **{"from": "oldest"}
        )["subscription_id"]

    def attach(self) -> None:
        self.sessions = [
            self.bus.attach(name, conversation=conversation)
            for name, conversation in zip(("Sam", "Ann"), self.conversations, strict=True)
        ]

    def detach(self) -> None:
        for session in self.sessions:
            session.close()

    def mutate(self, who: int, operation: str, **arguments: Any) -> dict[str, Any]:
        arguments["operation_id"] = new_id()
        answer: dict[str, Any] = self.sessions[who].call(operation, **arguments)
        assert answer["duplicate"] is False
        self.repeats.append((who, operation, arguments, answer))
        return answer

    def written(self, content: str) -> str:
        return f"{self.word} {content}".rstrip()

    def by_sequence(self) -> list[str]:
        """What lives, the newest change last."""
        return sorted(self.live, key=self.sequence.__getitem__)

    @rule(who=SESSIONS, content=st.sampled_from(CONTENTS))
    def create(self, who: int, content: str) -> None:
        answer = self.mutate(who, "send", channel=self.channel, content=self.written(content))
        memory_id = answer["message_id"]
        self.memories.append(memory_id)
        self.live[memory_id] = (1, content)
        self.position[memory_id] = self.sequence[memory_id] = answer["sequence"]

    @precondition(lambda self: self.memories)
    @rule(who=SESSIONS, which=MEMORIES, content=st.sampled_from(CONTENTS))
    def edit(self, who: int, which: int, content: str) -> None:
        memory_id = self.memories[which % len(self.memories)]
        changed = {"memory_id": memory_id, "content": self.written(content)}
        if memory_id not in self.live:
            with pytest.raises(NotFoundError):
                self.mutate(who, "edit_memory", **changed)
            return
        revision, _ = self.live[memory_id]
        answer = self.mutate(who, "edit_memory", **changed)
        assert (answer["revision"], answer["replaced"]["revision"]) == (revision + 1, revision)
        assert answer["sequence"] > max(self.sequence.values())
        self.live[memory_id] = (revision + 1, content)
        self.sequence[memory_id] = answer["sequence"]

    @precondition(lambda self: self.memories)
    @rule(who=SESSIONS, which=MEMORIES)
    def delete(self, who: int, which: int) -> None:
        memory_id = self.memories[which % len(self.memories)]
        if memory_id in self.live:
            answer = self.mutate(who, "delete_memory", memory_id=memory_id)
            assert answer["revision"] == self.live.pop(memory_id)[0]
        else:
            with pytest.raises(NotFoundError):
                self.mutate(who, "delete_memory", memory_id=memory_id)

    @precondition(lambda self: self.repeats)
    @rule(which=st.integers(0, STEPS))
    def repeat(self, which: int) -> None:
        who, operation, arguments, first = self.repeats[which % len(self.repeats)]
        again = self.sessions[who].call(operation, **arguments)
        assert again == {**first, "duplicate": True}

    @precondition(lambda self: self.memories)
    @rule(who=SESSIONS, which=MEMORIES)
    def get(self, who: int, which: int) -> None:
        memory_id = self.memories[which % len(self.memories)]
        if memory_id in self.live:
            memory = self.sessions[who].call("get_memory", memory_id=memory_id)["memory"]
            revision, content = self.live[memory_id]
            assert (memory["revision"], memory["content"]) == (revision, self.written(content))
        else:
            with pytest.raises(NotFoundError):
                self.sessions[who].call("get_memory", memory_id=memory_id)

    @rule(who=SESSIONS)
    def history(self, who: int) -> None:
        answer = self.sessions[who].call("history", channel=self.channel)
        assert [message["message_id"] for message in answer["messages"]] == self.by_sequence()
        assert answer["gaps"] == []
        (row,) = self.sessions[who].call("list_channels", prefix=self.channel)["channels"]
        assert row["retained"] == len(self.live)

    @rule(who=SESSIONS, query=st.sampled_from([*QUERIES]), named=st.booleans())
    def search(self, who: int, query: str, named: bool) -> None:
        """The newest change first, each memory once, as it is now."""
        conditions = {"channel": self.channel} if named else {}

        def found() -> list[tuple[str, int, str]]:
            answer = self.sessions[who].call("search", text=self.written(query), **conditions)
            assert (answer["engine"], answer["cursor"]) == (self.bus.config.search_engine, None)
            return [
                (message["message_id"], message["revision"], message["content"])
                for message in answer["messages"]
            ]

        expected = [
            (memory_id, revision, self.written(content))
            for memory_id in reversed(self.by_sequence())
            for revision, content in [self.live[memory_id]]
            if content in QUERIES[query]
        ]
        agree(found, expected)

    @rule(after=MEMORIES)
    def receive(self, after: int) -> None:
        """From any position: each living memory behind it, once, in the order of creation."""
        place = self.position[self.memories[after]] if after < len(self.memories) else 0

        def received() -> list[tuple[int, int, str]]:
            deliveries = self.sessions[1].pull({self.subscription: place}, include_own=True)
            assert all("gaps" not in delivery for delivery in deliveries)
            return [
                (position, record["revision"], record["content"])
                for delivery in deliveries
                for position, record in delivery["records"]
            ]

        expected = [
            (self.position[memory_id], revision, self.written(content))
            for memory_id in self.memories
            if memory_id in self.live and self.position[memory_id] > place
            for revision, content in [self.live[memory_id]]
        ]
        agree(received, expected)

    def teardown(self) -> None:
        self.detach()


class RestartedModel(MemoryModel):
    """The same while the daemon comes and goes, with and without its Redis: once in every run."""

    def __init__(self) -> None:
        super().__init__()
        self.restarted = False

    @precondition(lambda self: not self.restarted)
    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        self.restarted = True
        self.detach()
        if killed:
            self.bus.kill()
        else:
            self.bus.stop()
        self.bus.start()
        self.attach()

    def teardown(self) -> None:
        """A run that has chosen no restart ends with one, and then all must be as before."""
        try:
            if not self.restarted:
                self.restart(killed=True)
                self.history(0)
                self.search(0, "", named=False)
                self.receive(STEPS)
        finally:
            super().teardown()


def agree(look: Callable[[], list[Any]], expected: list[Any]) -> None:
    """Wait until the bus says what the model does."""
    deadline_s = time.monotonic() + AGREES_WITHIN_S
    while (seen := look()) != expected:
        assert time.monotonic() < deadline_s, f"{seen} instead of {expected}"
        time.sleep(0.001)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["redis", "sqlite"])
@pytest.mark.parametrize(
    ("model", "runs"), [(MemoryModel, 500), (RestartedModel, 50)], ids=["running", "restarted"]
)
def test_any_sequence_of_calls_answers_as_the_model_does(
    model: type[MemoryModel], runs: int, engine: str
) -> None:
    if engine == "redis":
        need_search()
    with ThrowAwayBus(search_engine=engine, send_messages_per_second=10_000) as bus:
        model.bus, model.runs = bus, 0
        run_state_machine_as_test(
            model,
            settings=settings(
                max_examples=runs,
                stateful_step_count=STEPS,
                derandomize=True,  # a failure is one wherever the test runs
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    assert model.runs >= runs
