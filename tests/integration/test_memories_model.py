"""A whole daemon against a model of a few dictionaries: what any sequence of calls must answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from agentbus.errors import NotFoundError
from agentbus.ids import new_id
from tests.bus_fixture import BusSession, ThrowAwayBus

CONTENTS = st.sampled_from(["alpha", "beta", "gamma delta"])


class MemoryModel(RuleBasedStateMachine):
    """Two sessions, one memory channel; the model knows what lives, where, in which revision."""

    bus: ThrowAwayBus

    def __init__(self) -> None:
        super().__init__()
        self.channel = f"facts-{new_id()}"
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

    def mutate(self, who: int, operation: str, **arguments: Any) -> dict[str, Any]:
        arguments["operation_id"] = new_id()
        answer: dict[str, Any] = self.sessions[who].call(operation, **arguments)
        assert answer["duplicate"] is False
        self.repeats.append((who, operation, arguments, answer))
        return answer

    @rule(who=st.integers(0, 1), content=CONTENTS)
    def create(self, who: int, content: str) -> None:
        answer = self.mutate(who, "send", channel=self.channel, content=content)
        memory_id = answer["message_id"]
        self.memories.append(memory_id)
        self.live[memory_id] = (1, content)
        self.position[memory_id] = self.sequence[memory_id] = answer["sequence"]

    @precondition(lambda self: self.memories)
    @rule(who=st.integers(0, 1), which=st.integers(0, 20), content=CONTENTS)
    def edit(self, who: int, which: int, content: str) -> None:
        memory_id = self.memories[which % len(self.memories)]
        if memory_id not in self.live:
            with pytest.raises(NotFoundError):
                self.mutate(who, "edit_memory", memory_id=memory_id, content=content)
            return
        revision, _ = self.live[memory_id]
        answer = self.mutate(who, "edit_memory", memory_id=memory_id, content=content)
        assert (answer["revision"], answer["replaced"]["revision"]) == (revision + 1, revision)
        assert answer["sequence"] > max(self.sequence.values())
        self.live[memory_id] = (revision + 1, content)
        self.sequence[memory_id] = answer["sequence"]

    @precondition(lambda self: self.memories)
    @rule(who=st.integers(0, 1), which=st.integers(0, 20))
    def delete(self, who: int, which: int) -> None:
        memory_id = self.memories[which % len(self.memories)]
        if memory_id in self.live:
            answer = self.mutate(who, "delete_memory", memory_id=memory_id)
            assert answer["revision"] == self.live.pop(memory_id)[0]
        else:
            with pytest.raises(NotFoundError):
                self.mutate(who, "delete_memory", memory_id=memory_id)

    @precondition(lambda self: self.repeats)
    @rule(which=st.integers(0, 50))
    def repeat(self, which: int) -> None:
        who, operation, arguments, first = self.repeats[which % len(self.repeats)]
        again = self.sessions[who].call(operation, **arguments)
        assert again == {**first, "duplicate": True}

    @precondition(lambda self: self.memories)
    @rule(who=st.integers(0, 1), which=st.integers(0, 20))
    def get(self, who: int, which: int) -> None:
        memory_id = self.memories[which % len(self.memories)]
        if memory_id in self.live:
            memory = self.sessions[who].call("get_memory", memory_id=memory_id)["memory"]
            assert (memory["revision"], memory["content"]) == self.live[memory_id]
        else:
            with pytest.raises(NotFoundError):
                self.sessions[who].call("get_memory", memory_id=memory_id)

    @rule(who=st.integers(0, 1))
    def history(self, who: int) -> None:
        answer = self.sessions[who].call("history", channel=self.channel)
        shown = [message["message_id"] for message in answer["messages"]]
        assert shown == sorted(self.live, key=self.sequence.__getitem__)
        assert answer["gaps"] == []
        (row,) = self.sessions[who].call("list_channels", prefix=self.channel)["channels"]
        assert row["retained"] == len(self.live)

    @rule(after=st.integers(0, 20))
    def receive(self, after: int) -> None:
        """From any position: each living memory behind it, once, in the order of creation."""
        place = self.position[self.memories[after]] if after < len(self.memories) else 0
        expected = [
            (self.position[memory_id], *self.live[memory_id])
            for memory_id in self.memories
            if memory_id in self.live and self.position[memory_id] > place
        ]
        for _ in range(200):  # the projection follows the commit
            deliveries = self.sessions[1].pull({self.subscription: place}, include_own=True)
            received = [
                (position, record["revision"], record["content"])
                for delivery in deliveries
                for position, record in delivery["records"]
            ]
            assert all("gaps" not in delivery for delivery in deliveries)
            if received == expected:
                return
            self.sessions[1].call("whoami")
        raise AssertionError(f"{received} instead of {expected}")

    def teardown(self) -> None:
        for session in self.sessions:
            session.close()


class RestartedModel(MemoryModel):
    """The same while the daemon comes and goes, with and without its Redis."""

    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        if killed:
            self.bus.kill()
        else:
            self.bus.stop()
        self.bus.start()
        self.attach()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("model", "runs"), [(MemoryModel, 60), (RestartedModel, 5)], ids=["running", "restarted"]
)
def test_any_sequence_of_calls_answers_as_the_model_does(
    model: type[MemoryModel], runs: int
) -> None:
    with ThrowAwayBus(send_messages_per_second=10_000) as bus:
        model.bus = bus
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            model,
            settings=settings(
                max_examples=runs,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
