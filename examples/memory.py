"""A shared note that agents keep together: created, edited, overtaken, read, deleted.

    python examples/memory.py                      # on your own bus
    AGENTBUS_RUNTIME_DIR=/tmp/try python examples/memory.py --config try.json

The last command uses a bus of its own; try.json has `{"data_directory": "/tmp/try/data"}`.

A memory lives in a channel of kind `memory`. Its id stays, its content is replaced; whoever
subscribes later gets it once, as it then is.
"""

import asyncio
import os
import sys
from typing import Any

from mcp import Client, StdioServerParameters

CHANNEL = "example-notes"


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
        await call(ada, "create_channel", name=CHANNEL, kind="memory")
        created = await call(ada, "send", channel=CHANNEL, subject="Ports", content="web: 8080")
        note = created["message_id"]

        # Both edit. There is no lock: the last one wins, and is told whose text it replaced.
        await call(ada, "edit_memory", memory_id=note, content="web: 8080, db: 5432")
        edited = await call(bob, "edit_memory", memory_id=note, content="web: 8081")
        replaced = edited["replaced"]
        print(
            f"Bob wrote revision {edited['revision']} over revision {replaced['revision']} "
            f"of {replaced['sender']['display_name']}"
        )

        # Bob looks at what he took the place of, and puts it back.
        await call(bob, "edit_memory", memory_id=note, content="web: 8081, db: 5432")
        memory = (await call(ada, "get_memory", memory_id=note))["memory"]
        print(f"Ada reads {memory['subject']}: {memory['content']}")

        # Whoever subscribes from the oldest gets each living memory once, as it is now.
        await call(ada, "subscribe", channel=CHANNEL, **{"from": "oldest"})
        received = await call(ada, "receive", channels=[CHANNEL], include_own=True)
        print(f"Ada received {[message['content'] for message in received['messages']]}")

        await call(ada, "delete_memory", memory_id=note)
        left = await call(bob, "history", channel=CHANNEL)
        print(f"Bob finds {len(left['messages'])} notes")


if __name__ == "__main__":
    asyncio.run(main())
