"""However an idle Claude Code ends, whose hook waits for messages, nothing of it stays.

`AGENTBUS_HARNESS_CYCLES=100` for as many as a release is shown with, all ways together; otherwise
each way once. Ends in the middle of a call: test_no_orphans.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.bus_fixture import ThrowAwayBus
from tests.eventually import eventually
from tests.harness.fake_model import Call
from tests.harness.installed_claude import InstalledClaudeCode, Streamed
from tests.harness.processes import wait_nothing_left

CYCLES = int(os.environ.get("AGENTBUS_HARNESS_CYCLES", "0"))
WITHIN_S = 20.0

pytestmark = [pytest.mark.harness, pytest.mark.timeout(120 + 30 * CYCLES)]


def _closed(streamed: Streamed) -> None:
    assert streamed.end() == 0


def _signalled(number: signal.Signals, *, group: bool = False) -> Callable[[Streamed], None]:
    def end(streamed: Streamed) -> None:
        send = os.killpg if group else os.kill
        send(streamed.process.pid, number)
        streamed.process.wait(WITHIN_S)

    return end


WAYS = {
    "no further prompt": _closed,
    "asked to end": _signalled(signal.SIGTERM),
    "terminal gone": _signalled(signal.SIGHUP, group=True),
    "interrupted": _signalled(signal.SIGINT, group=True),
    "killed": _signalled(signal.SIGKILL),
}


def _nothing_left(bus: ThrowAwayBus) -> None:
    wait_nothing_left(bus, WITHIN_S)
    with bus.client() as client:
        status = client.request("status", {}, WITHIN_S)
        live = client.request("sessions", {}, WITHIN_S)["sessions"]
    assert status["waits"]["waiting"] == 0
    assert [one["display_name"] for one in live] == []


@pytest.fixture(autouse=True)
def _daemon(bus: ThrowAwayBus) -> None:
    """It is nobody's child, so it may stay."""
    bus.start()


@pytest.mark.parametrize("way", WAYS)
def test_an_idle_conversation_leaves_nothing(
    bus: ThrowAwayBus, installed_claude: InstalledClaudeCode, way: str
) -> None:
    def waiting() -> bool:
        with bus.client() as client:
            return bool(client.request("status", {}, WITHIN_S)["waits"]["waiting"])

    for _ in range(-(-CYCLES // len(WAYS)) or 1):
        streamed = installed_claude.converse()
        script = installed_claude.model.script(Call("whoami"), "idle")
        streamed.turn(script.prompt)
        eventually(waiting, WITHIN_S, what="the hook waits")
        WAYS[way](streamed)
        _nothing_left(bus)
        streamed.close()
