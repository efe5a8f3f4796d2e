"""Two agents talk over agentbus, each through an MCP server of its own.

    make demo                                                # makes .venv
    .venv/bin/python examples/two_agents.py                  # on your own bus
    AGENTBUS_RUNTIME_DIR=/tmp/try .venv/bin/python examples/two_agents.py --config try.json

The last command uses a bus of its own; try.json has `{"data_directory": "/tmp/try/data"}`.

What a harness such as Claude Code or Codex does for its model is done here by hand: start
`agentbus mcp` as a child process, speak MCP over its stdin and stdout, call tools.
"""

import asyncio
import os
import sys
from typing import Any

from mcp import Client, StdioServerParameters

CHANNEL = "example"


def server(agent: str) -> StdioServerParameters:
    """How an MCP client starts the bus's server for one agent."""
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "agentbus", "mcp", "--agent", agent, *sys.argv[1:]],
        env={"AGENTBUS_RUNTIME_DIR": os.environ.get("AGENTBUS_RUNTIME_DIR", "")},
    )


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool; its result, or an exception with the bus's own words."""
    result = await client.call_tool(tool, arguments)
    content: dict[str, Any] = result.structured_content or {}
    if result.is_error:
        raise SystemExit(f"{tool}: {content['error']['message']}")
    return content


async def main() -> None:
    async with Client(server("Ada")) as ada, Client(server("Bob")) as bob:
        await call(ada, "create_channel", name=CHANNEL)
        await call(ada, "subscribe", channel=CHANNEL)
        await call(bob, "subscribe", channel=CHANNEL)

        question = await call(ada, "send", channel=CHANNEL, content="Which port do you test on?")
        print(f"Ada sent {question['message_id']}")

        heard = await call(bob, "receive", channels=[CHANNEL], wait_seconds=20)
        for message in heard["messages"]:
            print(f"Bob received from {message['sender']['display_name']}: {message['content']}")
            await call(
                bob,
                "send",
                channel=CHANNEL,
                content="On 8080.",
                reply_to=message["message_id"],
            )

        answered = await call(ada, "receive", channels=[CHANNEL], wait_seconds=20)
        for message in answered["messages"]:
            print(f"Ada received from {message['sender']['display_name']}: {message['content']}")


if __name__ == "__main__":
    asyncio.run(main())
