"""Real adapters against no daemon: however they are started, they end on one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agentbus.transport.singleton import runtime_directory
from tests.adapter.adapter_process import AdapterProcess
from tests.adapter.raw_client import RawClient
from tests.bus_fixture import ROOT, ThrowAwayBus, stop_daemon

ADAPTERS = 20
ALL_WITHIN_S = 90.0
"""Each of them loads the MCP SDK, half a second of computing, on as few as two processors."""


@pytest.fixture
def stopped_bus() -> Iterator[ThrowAwayBus]:
    """No daemon runs yet; what the adapters start is stopped at the end."""
    bus = ThrowAwayBus()
    try:
        yield bus
    finally:
        stop_daemon(bus.runtime)
        bus.close()


@pytest.mark.timeout(120)
def test_20_adapters_started_at_once_end_with_one_daemon_and_20_attachments(
    stopped_bus: ThrowAwayBus,
) -> None:
    bus = stopped_bus
    with ExitStack() as stack:
        adapters = [
            stack.enter_context(
                AdapterProcess(bus.environment, bus.config_path, agent=f"A{n}", session=f"c{n}")
            )
            for n in range(ADAPTERS)
        ]
        # All are asked before any is listened to: their attachments are made at the same time.
        for adapter in adapters:
            params = {
                "protocolVersion": adapter.version,
                "capabilities": {},
                "clientInfo": {"name": "tester", "version": "1"},
            }
            adapter.request("initialize", params, request_id="initialize")
            adapter.notify("notifications/initialized")
            adapter.call("whoami", request_id="who")
        facts = []
        for adapter in adapters:
            assert adapter.receive(ALL_WITHIN_S)["id"] == "initialize"
            facts.append(adapter.answer("who", ALL_WITHIN_S))
        assert len({one["bus_id"] for one in facts}) == 1
        assert sorted(one["generation"] for one in facts) == list(range(1, ADAPTERS + 1))
        with bus.client() as client:
            sessions = client.request("sessions", {}, 10.0)["sessions"]
        assert {row["session_id"] for row in sessions} == {one["session_id"] for one in facts}
        assert len(sessions) == ADAPTERS


def test_adapters_with_different_environments_meet_on_one_daemon(short_folder: Path) -> None:
    home = short_folder / "home"
    home.mkdir()
    config = home / "config.json"
    config.write_text('{"data_directory": "data"}')
    bare = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    rich = bare | {
        "XDG_RUNTIME_DIR": str(short_folder / "xdg"),
        "XDG_STATE_HOME": str(short_folder / "state"),
        "XDG_CONFIG_HOME": str(short_folder / "config"),
        "XDG_DATA_HOME": str(short_folder / "data"),
        "TMPDIR": str(short_folder),
        "LANG": "C",
    }
    one, other = _only(rich, config, "Rich"), _only(bare, config, "Bare")
    try:
        one.initialize()
        other.initialize()
        assert _use(one, "whoami")["bus_id"] == _use(other, "whoami")["bus_id"]
        sent = _use(one, "send", channel="general", content="Are you there?")
        (heard,) = _use(other, "receive", wait_seconds=20)["messages"]
        assert heard["message_id"] == sent["message_id"]
        assert [path.name for path in short_folder.iterdir()] == ["home"]
    finally:
        one.close()
        other.close()
        stop_daemon(runtime_directory(bare, os.getuid()))


def _only(environment: dict[str, str], config: Path, agent: str) -> RawClient:
    """An adapter that is given these variables and no others."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    command = [sys.executable, "-m", "agentbus", "mcp", "--agent", agent, "--config", str(config)]
    return RawClient(["env", "-i", *variables, *command], env={})


def _use(client: RawClient, tool: str, **arguments: Any) -> Any:
    client.call(tool, **arguments)
    return client.receive(ALL_WITHIN_S)["result"]["structuredContent"]
