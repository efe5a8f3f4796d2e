"""The SDK's low-level server around our calls: tool list, tool call, server information.

The only module beside the transport that knows the SDK. Never decides what a tool does. Both eras
of the protocol go through the same two handlers: with `initialize` and without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

import agentbus
from agentbus.adapter.calls import Calls
from agentbus.adapter.tools import INSTRUCTIONS, TOOLS, ToolSpec


def make_server(calls: Calls) -> Server[Any]:
    """A server whose tools are these calls."""
    listing = types.ListToolsResult(tools=[_tool(spec) for spec in TOOLS])

    async def list_tools(
        ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return listing

    async def call_tool(
        ctx: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        answer = await calls.call(params.name, params.arguments, _client_name(ctx), _meta(ctx))
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=answer.text)],
            structured_content=answer.structured,
            is_error=answer.is_error,
        )

    server: Server[Any] = Server(
        "agentbus",
        version=agentbus.__version__,
        title="Agentbus",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    server.middleware.clear()  # the default one traces every call for nobody
    return server


def _tool(spec: ToolSpec) -> types.Tool:
    return types.Tool(
        name=spec.name,
        title=spec.title,
        description=spec.description,
        input_schema=spec.input_schema,
        output_schema=spec.output_schema,
        annotations=types.ToolAnnotations(
            read_only_hint=spec.read_only,
            destructive_hint=False,
            idempotent_hint=spec.idempotent,
            open_world_hint=False,
        ),
        _meta=None if spec.meta is None else dict(spec.meta),
    )


def _client_name(ctx: ServerRequestContext[Any]) -> str | None:
    client = ctx.session.client_params
    return None if client is None else client.client_info.name


def _meta(ctx: ServerRequestContext[Any]) -> Mapping[str, Any]:
    """The request's `_meta` as it was sent; what stands there is not checked by anybody."""
    meta = (ctx.params or {}).get("_meta")
    return meta if isinstance(meta, Mapping) else {}
