"""One agent asks two others for work and collects what comes; one of them never answers.

    make demo                                                # makes .venv
    .venv/bin/python examples/peer_request.py                # on your own bus
    AGENTBUS_RUNTIME_DIR=/tmp/try .venv/bin/python examples/peer_request.py --config try.json

The last command uses a bus of its own; try.json has `{"data_directory": "/tmp/try/data"}`.

Each agent has an MCP server of its own, as in `two_agents.py`. What happens here between their
calls is what a model does: read a result, decide on the next call.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from mcp import Client, StdioServerParameters

QUESTION = "Which tests fail on the main branch? One line each."
PATIENCE_S = 1
"""For who has not answered when somebody else has; a real agent gives more."""


class StoppedError(Exception):
    """What ends the example: a refusal of the bus, in its words, or work that does not come."""


def server(agent: str, *options: str) -> StdioServerParameters:
    """How an MCP client starts the bus's server for one agent."""
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "agentbus", "mcp", "--agent", agent, *options, *sys.argv[1:]],
        env={"AGENTBUS_RUNTIME_DIR": os.environ.get("AGENTBUS_RUNTIME_DIR", "")},
    )


async def peer(client: Client, op: str, **args: Any) -> dict[str, Any]:
    """One operation; its result, or an exception with the bus's own words."""
    result = await client.call_tool("peer", {"op": op, "args": args})
    content: dict[str, Any] = result.structured_content or {}
    if result.is_error:
        raise StoppedError(f"peer {op}: {content['error']['message']}")
    return content


def key() -> str:
    """A new one for each message. The same one again would be the same message."""
    return str(uuid4())


async def ask(ada: Client) -> str:
    """Ada finds out who can review, and asks all of them at once."""
    found = await peer(ada, "discover", capability="review")
    reviewers = [one["agent_id"] for one in found["agents"]]
    print(f"Ada found {', '.join(one['agent'] for one in found['agents'])}")
    sent = await peer(
        ada, "send", to=reviewers, body=QUESTION, kind="request", idempotency_key=key()
    )
    return str(sent["message_id"])


async def work(bob: Client) -> None:
    """Bob claims what waits for him, says that he is at it, and answers once."""
    claimed = await peer(bob, "wait", timeout=20)
    delivery = claimed["delivery"]
    if delivery is None:
        raise StoppedError("nothing came for Bob")
    request, delivery_id = delivery["envelope"], delivery["delivery_id"]
    print(f"Bob claimed what {request['from']['agent']} asks: {request['body']}")
    await peer(
        bob,
        "progress",
        delivery_id=delivery_id,
        summary="Running the tests.",
        idempotency_key=key(),
    )
    await peer(
        bob,
        "reply",
        delivery_id=delivery_id,
        body="test_parser: it does not know tabs.",
        idempotency_key=key(),
    )


async def collect(ada: Client, request_id: str) -> None:
    """Ada takes the first answer as soon as it is there, and gives the other one a moment more.
    What comes later still is there for the next collect."""
    first = await peer(ada, "collect", message_id=request_id, expected=1, timeout=30)
    for answer in first["answers"]:
        print(f"{answer['recipient']} answered: {answer['body']}")
    rest = await peer(ada, "collect", message_id=request_id, timeout=PATIENCE_S)
    print(f"Ada ends with a {rest['outcome']} result: {rest['summary']}")
    for name, what in rest["pending"].items():
        print(f"{name} has not answered: {what['reply_state']}, {what['cause']}")


async def main() -> None:
    able = ("--capability", "review")
    async with (
        Client(server("Ada")) as ada,
        Client(server("Bob", *able)) as bob,
        Client(server("Cleo", *able)) as cleo,
    ):
        await peer(bob, "describe", description="Knows the tests.")
        await peer(cleo, "describe", description="Knows the tests, too; is silent today.")
        request_id = await ask(ada)
        async with asyncio.TaskGroup() as both:
            both.create_task(work(bob))
            both.create_task(collect(ada, request_id))


def reasons(group: BaseExceptionGroup[StoppedError]) -> Iterator[str]:
    """The words of what tasks within tasks were ended by."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from reasons(error)
        else:
            yield str(error)


if __name__ == "__main__":
    stopped: str | None = None
    try:
        asyncio.run(main())
    except* StoppedError as group:
        stopped = next(reasons(group))
    sys.exit(stopped)
