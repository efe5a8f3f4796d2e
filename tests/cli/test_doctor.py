"""`agentbus-admin doctor` as a process: a healthy bus, and one that is broken in each way."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbus.cli.doctoring.canary import NAME
from agentbus.cli.entry import EXIT_FAILURE, EXIT_OK
from agentbus.encoding import decode_strict
from agentbus.transport.singleton import DaemonLock
from tests.bus_fixture import ThrowAwayBus, stop_daemon
from tests.cli.command import agentbus_admin
from tests.signals import freeze

HOPS = [
    "adapter starts",
    "attach",
    "subscribe",
    "send (SQLite)",
    "receive (Redis)",
    "search",
]
LONG_S = 30.0
"""More than all time limits that a hung daemon runs into."""


def harness(bus: ThrowAwayBus, name: str, body: str) -> None:
    """A program of that name on this bus's PATH."""
    folder = bus.directory / "programs"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def with_programs(bus: ThrowAwayBus) -> ThrowAwayBus:
    """Only what a test puts there is on PATH, and what every Unix has."""
    bus.environment["PATH"] = f"{bus.directory / 'programs'}{os.pathsep}/usr/bin{os.pathsep}/bin"
    return bus


@pytest.fixture(scope="module")
def healthy() -> Iterator[ThrowAwayBus]:
    """Two harnesses, installed and trusted, whose hooks speak."""
    with ThrowAwayBus() as bus:
        with_programs(bus)
        for name, program in (("claude-code", "claude"), ("codex", "codex")):
            harness(bus, program, f"echo '{program} 1.2.3 \x1b[31m'")
            installed = agentbus_admin(
                bus, "install", name, "--agent", "Sam", "--config", str(bus.config_path)
            )
            assert installed.returncode == EXIT_OK, installed.stderr
            with bus.client() as client:
                told = {"application": name, "event": "SessionStart", "conversation": "c1"}
                client.request("hook", told, 10.0)
        folder = Path(bus.environment["HOME"], ".codex")
        with (folder / "config.toml").open("a") as file:
            for event in ("session_start", "session_end", "user_prompt_submit", "stop"):
                file.write(f'\n[hooks.state."{folder}/hooks.json:{event}:0:0"]\n')
                file.write('trusted_hash = "sha256:00"\n')
        yield bus


@pytest.fixture
def bus(stopped_bus: ThrowAwayBus) -> Iterator[ThrowAwayBus]:
    """No harness, and no daemon yet; one that is started by the canary ends here."""
    (stopped_bus.directory / "programs").mkdir()
    yield with_programs(stopped_bus)
    if stopped_bus.daemon is None:
        stop_daemon(stopped_bus.runtime)


def examined(bus: ThrowAwayBus, *arguments: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Exit code, document, and the level of each fault. Strays of other tests do not count."""
    done = agentbus_admin(bus, "doctor", "--json", "--config", str(bus.config_path), *arguments)
    assert done.stderr == ""
    document = decode_strict(done.stdout)
    faults = {
        one["fault"]: one["level"]
        for one in document["findings"]
        if one["fault"] is not None and one["check"] != "processes"
    }
    return done.returncode, document, faults


def channels(bus: ThrowAwayBus) -> dict[str, int]:
    with bus.client() as client:
        rows = client.request("channels", {}, 10.0)["channels"]
    return {row["channel"]: row["newest"] for row in rows}


def test_everything_is_found_in_order_and_no_other_channel_is_touched(
    healthy: ThrowAwayBus,
) -> None:
    sam = healthy.attach("Sam")
    sam.call("send", channel="general", content="before")
    before = channels(healthy)
    code, document, faults = examined(healthy)
    assert (code, document["ok"], faults) == (EXIT_OK, True, {})
    assert [hop["name"] for hop in document["hops"]] == HOPS
    assert all(hop["took_ms"] > 0 for hop in document["hops"])
    after = channels(healthy)
    assert after.pop(NAME) > before["general"]
    assert after == {name: newest for name, newest in before.items() if name != NAME}
    (row,) = sam.call("whoami")["subscriptions"]
    assert row["channel"] == "general"
    sam.close()


def test_a_person_gets_a_line_for_each_check_and_nothing_that_moves_the_cursor(
    healthy: ThrowAwayBus,
) -> None:
    done = agentbus_admin(healthy, "doctor", "--config", str(healthy.config_path))
    assert done.returncode == EXIT_OK, done.stdout
    lines = done.stdout.splitlines()
    assert "ok       codex hook trust: all are accepted" in done.stdout
    assert r"codex 1.2.3 \x1b[31m" in done.stdout
    assert lines[-1].endswith("warnings.") or lines[-1].endswith("warning.")
    assert ": 0 failures, " in lines[-1]


def test_without_a_daemon_the_canary_starts_one_as_an_adapter_does(bus: ThrowAwayBus) -> None:
    code, document, faults = examined(bus)
    assert (code, faults) == (EXIT_OK, {})
    seen = {one["check"]: one["seen"] for one in document["findings"]}
    assert seen["daemon"].startswith("none runs")
    assert seen["harnesses"].startswith("none is on PATH")
    assert "Redis" in seen
    assert bus.state() == "ready"


def test_a_hung_daemon_is_a_failure_within_the_time_limits(bus: ThrowAwayBus) -> None:
    bus.start()
    assert bus.daemon is not None
    freeze(bus.daemon.pid)
    try:
        began_s = time.monotonic()
        code, document, faults = examined(bus)
        assert time.monotonic() - began_s < LONG_S
    finally:
        bus.daemon.send_signal(signal.SIGCONT)
    assert code == EXIT_FAILURE
    assert faults == {"daemon-silent": "failure", "canary-not-sent": "warning"}
    (silent,) = [one for one in document["findings"] if one["fault"] == "daemon-silent"]
    assert f"kill -9 {bus.daemon.pid}" in silent["advice"]


def test_a_broken_configuration_is_a_failure_and_all_else_is_still_looked_at(
    bus: ThrowAwayBus,
) -> None:
    bus.start()
    bus.config_path.write_text('{"data_directroy": "/x"}')
    code, document, faults = examined(bus)
    assert code == EXIT_FAILURE
    assert faults == {"configuration-refused": "failure", "canary-not-sent": "warning"}
    assert any(one["check"] == "Redis" for one in document["findings"])


def test_a_changed_configuration_and_a_long_wait_are_found(bus: ThrowAwayBus) -> None:
    bus.start()
    bus.configure(recv_max_wait_seconds=241)
    code, document, faults = examined(bus)
    assert code == EXIT_FAILURE
    assert faults == {
        "receive-wait-long": "warning",
        "canary-failed": "failure",
        "daemon-configuration": "failure",
    }
    failed = next(one for one in document["findings"] if one["fault"] == "canary-failed")
    assert "agentbus stop" in failed["seen"]


def test_a_runtime_folder_that_others_can_enter_is_a_failure(bus: ThrowAwayBus) -> None:
    bus.runtime.directory.mkdir(mode=0o755)
    bus.runtime.directory.chmod(0o755)
    code, document, faults = examined(bus)
    bus.runtime.directory.chmod(0o700)
    assert code == EXIT_FAILURE
    assert faults == {"runtime-folder-unsafe": "failure", "canary-not-sent": "warning"}
    assert any("chmod 700" in one["seen"] for one in document["findings"])


def test_a_second_doctor_says_that_the_first_one_is_at_work(healthy: ThrowAwayBus) -> None:
    other = DaemonLock(healthy.runtime.directory / "doctor.lock")
    assert other.acquire()
    code, _, faults = examined(healthy)
    other.release()
    assert (code, faults) == (EXIT_OK, {"canary-busy": "warning"})


def test_a_harness_that_hangs_ends_with_the_time_and_so_does_what_it_started(
    bus: ThrowAwayBus,
) -> None:
    bus.start()
    harness(bus, "gemini", f"sleep 600 & echo $! > {bus.directory}/pid; wait")
    harness(bus, "opencode", "exit 3")
    code, _, faults = examined(bus)
    assert (code, faults) == (
        EXIT_OK,
        {"harness-broken": "warning", "entry-missing": "warning"},
    )
    pid = (bus.directory / "pid").read_text().strip()
    listed = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True)
    assert listed.stdout.strip() in ("", "Z")
