"""A small MCP server over our transport that writes down what happens, for tests from outside.

Environment: PROBE_EVENTS names the event log; PROBE_TRANSPORT=sdk runs over the SDK's own stdio
transport instead, which can know no better than that `send` has returned; PROBE_KILL=before_write
kills the process between the return of the handler and the write of its result.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from agentbus.adapter.handoff import Delivery, Outcome, current_delivery
from agentbus.adapter.transport import StdioTransport, open_stdio
from agentbus.encoding import encode_line

HEARTBEAT_SECONDS = 0.05
_events_fd = os.open(os.environ["PROBE_EVENTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def record(event: str, **fields: Any) -> None:
    os.write(_events_fd, encode_line({"event": event, "at_s": time.monotonic(), **fields}))


@dataclass(eq=False, slots=True)
class ProbeDelivery(Delivery):
    tag: str = field(kw_only=True)


def report(delivery: Delivery) -> None:
    assert isinstance(delivery, ProbeDelivery)
    record("settled", tag=delivery.tag, outcome=delivery.outcome, bytes_left=delivery.bytes_left)


def result(structured: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[], structured_content=structured)


async def receive(arguments: dict[str, Any]) -> types.CallToolResult:
    """Give out `bytes` bytes of records; with `gate`, when that file exists."""
    tag = arguments["tag"]
    current_delivery.set(ProbeDelivery(on_settle=report, tag=tag))
    record("handler_start", tag=tag)
    try:
        while "gate" in arguments and not Path(arguments["gate"]).exists():
            await asyncio.sleep(0.005)
    except asyncio.CancelledError:
        record("handler_cancelled", tag=tag)
        raise
    record("handler_return", tag=tag)
    return result({"tag": tag, "content": "x" * arguments.get("bytes", 10)})


def spoil(kind: str) -> types.CallToolResult:
    """Results that no client can get."""
    current_delivery.set(ProbeDelivery(on_settle=report, tag=kind))
    if kind == "lone_surrogate":
        return types.CallToolResult(content=[types.TextContent(type="text", text="\ud800")])
    if kind == "huge_integer":
        return result({"number": 1 << 70})
    if kind == "not_an_object":
        return result([1])
    raise RuntimeError("the handler failed")


class Probe:
    def __init__(self) -> None:
        self.stdio: StdioTransport | None = None

    async def call_tool(
        self, ctx: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        arguments = params.arguments or {}
        if params.name == "receive":
            return await receive(arguments)
        if params.name == "spoil":
            return spoil(arguments["kind"])
        if params.name == "notify":
            current_delivery.set(ProbeDelivery(on_settle=report, tag="notify"))
            await ctx.session.report_progress(1)
            return result({"notified": True})
        queued_bytes = self.stdio.write.queued_bytes if self.stdio is not None else None
        record("mark", tag=arguments.get("tag"), queued_bytes=queued_bytes)
        return result({"echo": arguments})

    async def list_tools(
        self, ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        names = ("receive", "spoil", "notify", "mark")
        schema = {"type": "object"}
        return types.ListToolsResult(
            tools=[types.Tool(name=name, description=name, input_schema=schema) for name in names]
        )

    def server(self) -> Server[Any]:
        server: Server[Any] = Server(
            "probe", version="1", on_list_tools=self.list_tools, on_call_tool=self.call_tool
        )
        server.middleware.clear()
        if os.environ.get("PROBE_KILL") == "before_write":
            server.middleware.append(kill_before_write)
        return server


async def kill_before_write(ctx: Any, call_next: Any) -> Any:
    answer = await call_next(ctx)
    if current_delivery.get() is not None:
        record("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    return answer


async def beat() -> None:
    while True:
        record("heartbeat")
        await asyncio.sleep(HEARTBEAT_SECONDS)


async def run_over_our_transport() -> None:
    probe = Probe()
    server = probe.server()
    async with open_stdio() as stdio:
        probe.stdio = stdio
        print("a stray print must not reach the client")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stdio.stop)
        heartbeat = asyncio.create_task(beat())
        await server.run(stdio.read, stdio.write, server.create_initialization_options())
        heartbeat.cancel()


class AcknowledgesWhenSendReturns:
    """The earliest moment at which anybody outside the SDK's transport can learn of a write."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def send(self, item: SessionMessage, /) -> None:
        await self._inner.send(item)
        delivery = current_delivery.get()
        if delivery is not None and isinstance(item.message, types.JSONRPCResponse):
            delivery.settle(Outcome.HANDED_OFF)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()


async def run_over_sdk_transport() -> None:
    server = Probe().server()
    async with stdio_server() as (read, write):
        options = server.create_initialization_options()
        await server.run(read, AcknowledgesWhenSendReturns(write), options)


if __name__ == "__main__":
    own = os.environ.get("PROBE_TRANSPORT", "own") == "own"
    asyncio.run(run_over_our_transport() if own else run_over_sdk_transport())
    record("exit")
