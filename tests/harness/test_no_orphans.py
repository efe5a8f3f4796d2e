"""However often a harness starts and ends, and whichever way, nothing of it stays but the daemon.

`AGENTBUS_HARNESS_CYCLES=100` for as many of each as a release is shown with; otherwise each way
once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bus_fixture import ThrowAwayBus
from tests.harness.command_lines import Adapter, CommandLine, Running
from tests.harness.fake_anthropic import FakeAnthropicOfOpencode
from tests.harness.fake_gemini import FakeGemini
from tests.harness.fake_model import Call, FakeModel
from tests.harness.fake_openai import FakeOpenAI
from tests.harness.installed_codex import InstalledCodex
from tests.harness.installed_others import Gemini, Opencode
from tests.harness.processes import ADAPTER_GONE_WITHIN_S, wait_nothing_left

CYCLES = int(os.environ.get("AGENTBUS_HARNESS_CYCLES", "0"))

pytestmark = [pytest.mark.harness, pytest.mark.timeout(120 + 30 * CYCLES)]


def _let_it_end(running: Running) -> None:
    running.finish()


def _terminate(running: Running) -> None:
    running.process.send_signal(signal.SIGTERM)


WAYS: tuple[Callable[[Running], None], ...] = (_let_it_end, _terminate, Running.kill)


@pytest.mark.parametrize(
    ("make", "make_model"),
    [
        pytest.param(InstalledCodex, FakeOpenAI, id="codex"),
        pytest.param(Opencode, FakeAnthropicOfOpencode, id="opencode"),
        pytest.param(Gemini, FakeGemini, id="gemini"),
    ],
)
def test_no_process_is_left_of_a_harness_that_was_started_and_ended_often(
    bus: ThrowAwayBus,
    short_folder: Path,
    make: type[CommandLine],
    make_model: Callable[[], FakeModel],
) -> None:
    with make_model() as model:
        line = make(model, short_folder, Adapter(bus, "Sam"))
        for cycle in range(CYCLES or len(WAYS)):
            end = WAYS[cycle % len(WAYS)]
            steps = ("done",) if end is _let_it_end else (Call("receive", wait_seconds=60), "done")
            script = model.script(Call("whoami"), *steps)
            running = line.start(script)
            script.result(0)
            end(running)
            running.process.wait(ADAPTER_GONE_WITHIN_S)
            wait_nothing_left(bus)
            line.close()
        assert bus.state() == "ready"
