"""The demonstration and the example, run as a stranger would run them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentbus.cli.admin import demo as command
from agentbus.cli.entry import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_OK
from agentbus.demo.story import Story
from agentbus.demo.transcript import Transcript
from agentbus.errors import InternalError
from tests.bus_fixture import ROOT, ThrowAwayBus
from tests.cli.command import agentbus, agentbus_admin, run
from tests.eventually import eventually

KEPT = re.compile(r"kept: (\S+)")


def test_demo_proves_everything_and_leaves_nothing(
    stopped_bus: ThrowAwayBus, tmp_path: Path
) -> None:
    stopped_bus.environment["TMPDIR"] = str(tmp_path)
    shown = agentbus_admin(stopped_bus, "demo")
    assert shown.returncode == EXIT_OK, shown.stdout + shown.stderr
    assert shown.stderr == ""
    assert "NOT PROVEN" not in shown.stdout
    assert shown.stdout.count("[proven]") == 8
    for text in ("Ada sends #1", "Bob receives #1", "is killed", "REDELIVERED", "search engine: "):
        assert text in shown.stdout
    assert list(tmp_path.iterdir()) == []
    assert stopped_bus.state() is None


def test_kept_demo_can_be_looked_at_afterwards(stopped_bus: ThrowAwayBus, tmp_path: Path) -> None:
    stopped_bus.environment["TMPDIR"] = str(tmp_path)
    shown = agentbus_admin(stopped_bus, "demo", "--keep")
    assert shown.returncode == EXIT_OK, shown.stdout + shown.stderr
    found = KEPT.search(shown.stdout)
    assert found is not None
    assert (Path(found[1]) / "data" / "agentbus.sqlite3").is_file()


def _processes_of(folder: Path) -> list[str]:
    """Daemon, Redis, agents and adapters of a demo: each has a path of its folder in its argv."""
    listed = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(folder) in line]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_that_is_ended_from_outside_leaves_nothing(
    number: signal.Signals, stopped_bus: ThrowAwayBus
) -> None:
    temporary = stopped_bus.directory / "tmp"
    temporary.mkdir()
    code = "import sys; from agentbus.cli.admin import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", code, "demo"],
        env=stopped_bus.environment | {"TMPDIR": str(temporary)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert any("Bob waits" in line for line in process.stdout)
        assert _processes_of(temporary)
        process.send_signal(number)
        _, errors = process.communicate(timeout=40)
    assert (process.returncode, errors) == (EXIT_INTERRUPTED, "agentbus: interrupted\n")
    assert list(temporary.iterdir()) == []
    eventually(lambda: not _processes_of(temporary), what="end of the demo's processes")


@pytest.mark.parametrize("fault", ["unproven", "broken"])
def test_demo_that_does_not_prove_everything_fails(
    fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(story: Story) -> None:
        if fault == "broken":
            raise InternalError("Bob ended")
        story._transcript.check("Something holds", False, "it does not")

    monkeypatch.setattr(Story, "run", play)
    assert command.demo({"--keep": False}) == EXIT_FAILURE
    out, err = capsys.readouterr()
    assert "[NOT PROVEN]" in out
    assert err.startswith("agentbus: ")


def test_nothing_checked_is_not_everything_proven() -> None:
    assert Transcript(lambda line: None).summary() is False


def test_example_of_two_agents_runs_on_a_bus_that_it_starts_itself(
    stopped_bus: ThrowAwayBus,
) -> None:
    example = str(ROOT / "examples" / "two_agents.py")
    try:
        shown = run([example, "--config", str(stopped_bus.config_path)], stopped_bus.environment)
    finally:
        stopped = agentbus(stopped_bus, "stop")
    assert shown.returncode == EXIT_OK, shown.stderr
    assert "Bob received from Ada: Which port do you test on?" in shown.stdout
    assert "Ada received from Bob: On 8080." in shown.stdout
    assert "has stopped" in stopped.stdout
