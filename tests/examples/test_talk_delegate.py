"""The example of talk serves, asks an agent and a command, and is told why it gets no answer."""

from __future__ import annotations

from tests.bus_fixture import ROOT, ThrowAwayBus
from tests.cli.command import run

EXAMPLE = str(ROOT / "examples" / "talk_delegate.py")


def test_example_of_talk_runs_as_it_is() -> None:
    with ThrowAwayBus(talk_peers=["reviewer", "example-agent", "example-script"]) as bus:
        shown = run([EXAMPLE, "--config", str(bus.config_path)], bus.environment)
        assert shown.returncode == 0, shown.stderr
        script, agent, *rest = shown.stdout.splitlines()
        assert script.startswith("example-script is served at http://127.0.0.1:")
        assert agent.startswith("example-agent is served at http://127.0.0.1:")
        assert rest == [
            "example-script: 4 words, all of them fine.",
            "budget_exhausted: 1000 characters are more than I can pay for "
            "(it would be the same again)",
            "example-agent claimed what talk:reviewer asks: Is 42 right?",
            "example-agent: I have checked it twice.",
        ]
