"""Tool calls one at a time over stdio: to the bus's adapter, and to a server that does nothing.

The client is this process, without any SDK, so that the server's side is what is measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.adapter.raw_client import RawClient
from tests.benchmarks.content import contents
from tests.benchmarks.figures import Sample
from tests.benchmarks.load import CHANNEL
from tests.bus_fixture import ThrowAwayBus

WARM_UP_CALLS = 5


class ToolCalls:
    """One server process and one client of it; `tool` is called with 400 bytes of content."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], tool: str) -> None:
        self._client = RawClient([sys.executable, "-m", *argv], env=environment)
        self._client.initialize()
        self._tool = tool
        self._texts = contents()
        self._calls = 0
        for _ in range(WARM_UP_CALLS):
            self._call()

    def measure(self, seconds: float) -> Sample:
        latencies_s: list[float] = []
        begin_s = now_s = time.perf_counter()
        while now_s - begin_s < seconds:
            self._call()
            before_s, now_s = now_s, time.perf_counter()
            latencies_s.append(now_s - before_s)
        return Sample.of_latencies(latencies_s, now_s - begin_s)

    def _call(self) -> None:
        content = self._texts[self._calls % len(self._texts)]
        self._calls += 1
        call = self._client.call(self._tool, channel=CHANNEL, content=content)
        answer: dict[str, Any] = self._client.receive()
        if answer["id"] != call or "result" not in answer or answer["result"].get("isError"):
            raise SystemExit(f"{self._tool}: {answer}")

    def close(self) -> None:
        self._client.close()


def to_adapter(bus: ThrowAwayBus) -> ToolCalls:
    """`send` through `agentbus mcp`."""
    argv = ["agentbus", "mcp", "--agent", "Sam", "--config", str(bus.config_path)]
    return ToolCalls(argv, bus.environment, "send")


def to_empty_server(bus: ThrowAwayBus) -> ToolCalls:
    """The same call to a tool that ignores it."""
    return ToolCalls(["tests.benchmarks.empty_server"], bus.environment, "empty")
