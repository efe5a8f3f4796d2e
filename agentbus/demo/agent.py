"""One agent of the demonstration: `python -m agentbus.demo.agent NAME SESSION CONFIG`.

A process of its own that does what a harness does: it starts `agentbus mcp` and calls its tools
with the MCP SDK's own stdio client. It has hands but no head: what to call comes on stdin as JSON
lines `{"tool", "arguments"}`; every answer goes to stdout as `{"result", "is_error", "took_ms"}`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from mcp import Client, StdioServerParameters

from agentbus.encoding import decode_trusted, encode_line

TOOL_CALL_S = 60.0
_PASSED_ON = frozenset({"AGENTBUS_RUNTIME_DIR", "PATH", "PYTHONPATH"})
"""The SDK gives a server a few variables only; these lead it to the throw-away bus and our code."""


def main() -> None:
    """Serve until stdin ends."""
    agent, session, config = sys.argv[1:]
    asyncio.run(_serve(agent, session, config))


async def _serve(agent: str, session: str, config: str) -> None:
    adapter = StdioServerParameters(
        command=sys.executable,
        args=["-m", "agentbus", "mcp", "--agent", agent, "--session", session, "--config", config],
        env={name: value for name, value in os.environ.items() if name in _PASSED_ON},
    )
    async with Client(adapter, read_timeout_seconds=TOOL_CALL_S) as client:
        tools = await client.list_tools()
        _answer({"tools": [tool.name for tool in tools.tools]})
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            call = decode_trusted(line)
            began_s = time.monotonic()
            result = await client.call_tool(call["tool"], call["arguments"])
            _answer(
                {
                    "result": result.structured_content,
                    "is_error": bool(result.is_error),
                    "took_ms": (time.monotonic() - began_s) * 1000,
                }
            )


def _answer(document: dict[str, Any]) -> None:
    sys.stdout.buffer.write(encode_line(document))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
