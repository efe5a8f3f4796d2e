"""The example of directed work, run as its text says, on a bus that its agents start."""

from __future__ import annotations

from agentbus.cli.entry import EXIT_FAILURE, EXIT_OK
from tests.bus_fixture import ROOT, ThrowAwayBus, stop_daemon
from tests.cli.command import run


def test_one_answers_one_is_silent_and_what_came_is_collected() -> None:
    bus = ThrowAwayBus()
    example = str(ROOT / "examples" / "peer_request.py")
    try:
        shown = run([example, "--config", str(bus.config_path)], bus.environment)
        assert shown.returncode == EXIT_OK, shown.stderr
        assert sorted(shown.stdout.splitlines()) == [
            "Ada ends with a partial result: 1 of 2 expected answers; pending: Cleo",
            "Ada found Bob, Cleo",
            "Bob answered: test_parser: it does not know tabs.",
            "Bob claimed what Ada asks: Which tests fail on the main branch? One line each.",
            "Cleo has not answered: awaiting, unclaimed",
        ]
    finally:
        stop_daemon(bus.runtime)
        bus.close()


def test_a_refusal_ends_it_with_one_line() -> None:
    bus = ThrowAwayBus(peer_allow=[])
    example = str(ROOT / "examples" / "peer_request.py")
    try:
        shown = run([example, "--config", str(bus.config_path)], bus.environment)
        assert (shown.returncode, shown.stdout) == (EXIT_FAILURE, "Ada found Bob, Cleo\n")
        assert shown.stderr.startswith("peer send: peer_allow does not let")
        assert shown.stderr.count("\n") == 1
    finally:
        stop_daemon(bus.runtime)
        bus.close()
