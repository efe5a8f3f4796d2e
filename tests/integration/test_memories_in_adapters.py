"""Memories through MCP servers as a client sees them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client, StdioServerParameters

from tests.bus_fixture import ThrowAwayBus

PREFETCHED = 256

Call = Callable[..., Awaitable[dict[str, Any]]]


@asynccontextmanager
async def agent(bus: ThrowAwayBus, name: str) -> AsyncIterator[Call]:
    """An adapter process; calling it calls a tool. A failure is an AssertionError of its error."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "agentbus", "mcp", "--agent", name, "--config", str(bus.config_path)],
        env=bus.environment,
    )
    async with Client(server) as client:

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            result = await client.call_tool(tool, arguments)
            content: dict[str, Any] = result.structured_content or {}
            assert not result.is_error, content
            return content

        yield call


async def prefetched(call: Call, count: int) -> None:
    """Until so many messages wait in the adapter; asking takes none of them."""
    async with asyncio.timeout(20):
        while (await call("whoami"))["pending"] < count:
            await asyncio.sleep(0.01)


def bus_for_many() -> ThrowAwayBus:
    return ThrowAwayBus(send_messages_per_second=10_000, prefetch_messages=PREFETCHED * 2)


def test_an_edit_while_256_messages_are_prefetched_is_what_the_next_receive_shows() -> None:
    async def run(bus: ThrowAwayBus) -> None:
        async with agent(bus, "Sam") as sam, agent(bus, "Ann") as ann:
            await sam("create_channel", name="facts", kind="memory")
            await ann("subscribe", channel="facts")
            memories = [
                (await sam("send", channel="facts", content=f"old {n}"))["message_id"]
                for n in range(PREFETCHED)
            ]
            await prefetched(ann, PREFETCHED)
            edited, deleted = memories[PREFETCHED // 2], memories[PREFETCHED // 2 + 1]
            await sam("delete_memory", memory_id=deleted)
            await sam("edit_memory", memory_id=edited, content="new")
            result = await ann("receive", channels=["facts"], max_kib=4096, count=PREFETCHED)
            contents = {m["message_id"]: m["content"] for m in result["messages"]}
            assert contents[edited] == "new"
            assert deleted not in contents
            assert [*contents] == [memory for memory in memories if memory != deleted]
            notices = result["notices"]
            while len(notices) < 2:  # each is told once, at the latest in a later receive
                again = await ann("receive", wait_seconds=10)
                assert again["messages"] == []
                notices += again["notices"]
            assert [(notice["memory_id"], notice["kind"]) for notice in notices] == [
                (deleted, "memory_deleted"),
                (edited, "memory_edited"),
            ]
            again = await ann("receive")
            assert (again["messages"], again["notices"]) == ([], [])

    with bus_for_many() as bus:
        asyncio.run(run(bus))


def test_edits_one_after_the_other_are_never_seen_late() -> None:
    async def run(bus: ThrowAwayBus) -> None:
        async with agent(bus, "Sam") as sam, agent(bus, "Ann") as ann:
            await sam("create_channel", name="facts", kind="memory")
            await ann("subscribe", channel="facts")
            for number in range(50):
                memory = (await sam("send", channel="facts", content="old"))["message_id"]
                if number % 2:
                    await prefetched(ann, 1)
                await sam("edit_memory", memory_id=memory, content=f"new {number}")
                received = await ann("receive", wait_seconds=10)
                while not received["messages"]:
                    received = await ann("receive", wait_seconds=10)
                assert [m["content"] for m in received["messages"]] == [f"new {number}"]

    with bus_for_many() as bus:
        asyncio.run(run(bus))


def test_the_three_tools_say_what_they_did() -> None:
    async def run(bus: ThrowAwayBus) -> None:
        async with agent(bus, "Sam") as sam, agent(bus, "Ann") as ann:
            await sam("create_channel", name="facts", kind="memory")
            sent = await sam("send", channel="facts", content="first", subject="s", tags=["t"])
            memory_id = sent["message_id"]
            edited = await ann(
                "edit_memory", memory_id=memory_id, content="second", subject=None, tags=[]
            )
            assert (edited["revision"], edited["duplicate"]) == (2, False)
            assert edited["replaced"]["sender"]["agent"] == "Sam"
            memory = (await sam("get_memory", memory_id=memory_id))["memory"]
            assert memory["content"] == "second"
            assert "subject" not in memory
            assert "tags" not in memory
            await sam("edit_memory", memory_id=memory_id, content="x" * 60_000)
            memory = (await sam("get_memory", memory_id=memory_id))["memory"]
            cut = memory["truncated"]["next_offset"]
            rest = await sam("history", message_id=memory_id, offset=cut)
            assert len(memory["content"]) == cut
            assert rest["offset"] == cut
            assert (await ann("delete_memory", memory_id=memory_id))["revision"] == 3

    with bus_for_many() as bus:
        asyncio.run(run(bus))


def test_a_waiting_receive_ends_when_a_memory_changes() -> None:
    async def run(bus: ThrowAwayBus) -> None:
        async with agent(bus, "Sam") as sam, agent(bus, "Ann") as ann:
            await sam("create_channel", name="facts", kind="memory")
            sent = await sam("send", channel="facts", content="first")
            await ann("subscribe", channel="facts")
            waiting = asyncio.create_task(ann("receive", channels=["facts"], wait_seconds=30))
            elsewhere = asyncio.create_task(ann("receive", channels=["general"], wait_seconds=1))
            await asyncio.sleep(0)
            await sam("edit_memory", memory_id=sent["message_id"], content="second")
            result = await asyncio.wait_for(waiting, 15)
            assert result["messages"] == []
            assert [notice["content"] for notice in result["notices"]] == ["second"]
            assert (await elsewhere)["notices"] == []

    with bus_for_many() as bus:
        asyncio.run(run(bus))
