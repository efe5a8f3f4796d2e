"""`agentbus mcp` as a client of it sees it: a real process, spoken to line by line."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import jsonschema

from agentbus.adapter.tools import TOOLS
from tests.adapter.raw_client import RawClient

_OUTPUT_SCHEMAS = {tool.name: tool.output_schema for tool in TOOLS}


class AdapterProcess(RawClient):
    """One adapter and the harness that started it.

    `client_name` is what the harness calls itself; it decides identity and limits.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        config_path: Path,
        *,
        agent: str = "Sam",
        session: str | None = None,
        options: Sequence[str] = (),
        client_name: str = "tester",
        version: str = "2025-11-25",
        extra_environment: Mapping[str, str] | None = None,
        stderr: IO[bytes] | None = None,
    ) -> None:
        argv = [sys.executable, "-m", "agentbus", "mcp", "--agent", agent]
        argv += ["--config", str(config_path), *options]
        if session is not None:
            argv += ["--session", session]
        super().__init__(argv, env={**environment, **(extra_environment or {})}, stderr=stderr)
        self.client_name = client_name
        self.version = version

    def initialize(self, version: str | None = None, within_s: float = 30.0) -> Any:
        params = {
            "protocolVersion": version or self.version,
            "capabilities": {},
            "clientInfo": {"name": self.client_name, "version": "1"},
        }
        self.request("initialize", params, request_id="initialize")
        answer = self.receive(within_s)
        self.notify("notifications/initialized")
        return answer

    def answer(self, request_id: Any, within_s: float = 40.0) -> Any:
        """The structured content of the answer to that request, which is the next message."""
        message = self.receive(within_s)
        assert message["id"] == request_id, message
        assert "result" in message, message
        return message["result"]["structuredContent"]

    def use(self, tool: str, *, meta: Any = None, within_s: float = 40.0, **arguments: Any) -> Any:
        """Call a tool and wait for what it answers, which clients check against its schema."""
        structured = self.answer(self.call(tool, meta=meta, **arguments), within_s)
        jsonschema.validate(structured, _OUTPUT_SCHEMAS.get(tool, {}))
        return structured

    def peer(self, op: str, *, within_s: float = 80.0, **args: Any) -> Any:
        """Call the tool `peer` and wait for what it answers."""
        return self.use("peer", within_s=within_s, op=op, args=args)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
