"""Both command lines on one bus whose daemon is not started: the first adapter has to do that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bus_fixture import ThrowAwayBus
from tests.harness.command_lines import Adapter, ClaudeCode, Codex
from tests.harness.fake_anthropic import FakeAnthropic
from tests.harness.fake_openai import FakeOpenAI
from tests.harness.installed_claude import InstalledClaudeCode
from tests.harness.network import loopback_only
from tests.harness.peer import Peer
from tests.harness.processes import end_daemons, wait_no_adapter


@pytest.fixture(scope="module", autouse=True)
def _network() -> Iterator[None]:
    with loopback_only() as isolated:
        print(f"network: {'loopback only' if isolated else 'not isolated here'}")
        yield


@pytest.fixture
def bus() -> Iterator[ThrowAwayBus]:
    """Folders and a configuration; what runs on them at the end is stopped."""
    bus = ThrowAwayBus()
    try:
        yield bus
        wait_no_adapter(bus)
    finally:
        end_daemons(bus)
        print(_logs(bus.data_directory))  # shown when the test failed
        bus.close()


@pytest.fixture
def claude(bus: ThrowAwayBus, short_folder: Path) -> Iterator[ClaudeCode]:
    """Claude Code as the agent Sam."""
    with FakeAnthropic() as model:
        claude = ClaudeCode(model, short_folder, Adapter(bus, "Sam"))
        yield claude
        claude.close()


@pytest.fixture
def installed_claude(bus: ThrowAwayBus, short_folder: Path) -> Iterator[InstalledClaudeCode]:
    """Claude Code as the installer leaves it, as the agent Sam."""
    with FakeAnthropic() as model:
        claude = InstalledClaudeCode(model, short_folder, Adapter(bus, "Sam"))
        yield claude
        claude.close()


@pytest.fixture
def codex(bus: ThrowAwayBus, short_folder: Path) -> Iterator[Codex]:
    """Codex as the agent Kim."""
    with FakeOpenAI() as model:
        codex = Codex(model, short_folder, Adapter(bus, "Kim"))
        yield codex
        codex.close()


@pytest.fixture
def lee(bus: ThrowAwayBus) -> Peer:
    """A peer of theirs; the daemon runs before anybody came."""
    bus.start()
    return Peer(bus, "Lee")


def _logs(folder: Path) -> str:
    files = sorted(folder.rglob("*.log*"))
    return "\n".join(f"{file}:\n{file.read_text(errors='replace')[-4000:]}" for file in files)
