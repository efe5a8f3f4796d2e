"""A bus that is full, through MCP servers as a client sees it."""

from __future__ import annotations

import asyncio

import pytest

from agentbus.errors import CapacityExhaustedError
from agentbus.limits import KIB
from tests.bus_fixture import ThrowAwayBus
from tests.crash.conversation import attempt
from tests.integration.test_memories_in_adapters import agent

LARGEST = "x" * (1000 * KIB)


def fill_with_memories(bus: ThrowAwayBus) -> int:
    """Until one is refused; how many there are."""
    with bus.attach("Filler") as filler:
        filler.call("create_channel", name="facts", kind="memory")
        for number in range(100):
            answer = attempt(lambda: filler.call("send", channel="facts", content=LARGEST))
            if isinstance(answer, CapacityExhaustedError):
                return number
            assert isinstance(answer, dict), answer
    raise AssertionError("the bus is never full")


def test_agents_of_a_full_bus_are_told_once_and_a_larger_budget_lets_them_go_on() -> None:
    settings = {"max_message_kib": 1024, "send_kib_per_second": 65_536}

    async def run(bus: ThrowAwayBus) -> None:
        async with agent(bus, "Sam") as sam, agent(bus, "Ann") as ann:
            await ann("whoami")
            await sam("send", channel="general", content="before")
            assert 50 < await asyncio.to_thread(fill_with_memories, bus) < 70
            with pytest.raises(AssertionError, match=r"'capacity_exhausted'.*'retryable': False"):
                await sam("send", channel="general", content=LARGEST)
            for call in (sam, ann):
                (notice,) = (await call("receive", wait_seconds=10))["notices"]
                assert (notice["kind"], notice["exhausted"]) == ("capacity", True)
                ways_out = ("sqlite_budget_mib", str(bus.config_path), "stop", "agentbus reset")
                assert all(part in notice["message"] for part in ways_out), notice
                assert not (await call("receive")).get("notices")
            bus.configure(sqlite_budget_mib=128, **settings)
            await asyncio.to_thread(bus.stop)
            await asyncio.to_thread(bus.start)
            sent = await sam("send", channel="general", content="after")
            assert not sent["duplicate"]
            received = await ann("receive", wait_seconds=10)
            assert [message["content"] for message in received["messages"]] == ["after"]

    with ThrowAwayBus(sqlite_budget_mib=64, **settings) as bus:
        asyncio.run(run(bus))
