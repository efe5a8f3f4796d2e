"""The doctor sees whether a real Codex has accepted the hooks that were installed."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbus.cli.doctoring.harnesses import Surroundings, examine_harnesses
from tests.bus_fixture import ThrowAwayBus
from tests.eventually import eventually
from tests.harness.command_lines import Adapter, codex_executable
from tests.harness.fake_openai import FakeOpenAI
from tests.harness.installed_codex import InstalledCodex, trust_hooks
from tests.harness.processes import wait_no_adapter
from tests.harness.terminal import Terminal

pytestmark = [pytest.mark.harness, pytest.mark.timeout(180)]


@pytest.fixture
def codex(bus: ThrowAwayBus, short_folder: Path) -> Iterator[InstalledCodex]:
    with FakeOpenAI() as model:
        codex = InstalledCodex(model, short_folder, Adapter(bus, "Kim"))
        codex.prepare()
        yield codex
        codex.close()


def test_hooks_count_as_trusted_as_soon_as_they_are_accepted(
    codex: InstalledCodex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(codex_executable().parent), prepend=os.pathsep)
    program = Path(sysconfig.get_path("scripts"), "agentbus")
    around = Surroundings(codex.home, codex.work, program)

    def faults() -> list[str]:
        found = [one for one in examine_harnesses(around) if one.check.startswith("codex")]
        return [one.fault for one in found if one.fault is not None]

    assert faults() == ["hooks-untrusted"]
    terminal = Terminal([str(codex_executable()), "--no-daemon"], codex.work, codex.environment)
    try:
        trust_hooks(terminal)
        eventually(lambda: faults() == [], what="the hooks are trusted")
    finally:
        terminal.close()
        wait_no_adapter(codex.adapter.bus, within_s=20.0)  # it was just about to start
