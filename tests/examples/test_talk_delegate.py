"""The example of talk serves, asks, and is told why it gets no answer."""

from __future__ import annotations

from tests.bus_fixture import ROOT, ThrowAwayBus
from tests.cli.command import run

EXAMPLE = str(ROOT / "examples" / "talk_delegate.py")


def test_example_of_talk_runs_as_it_is() -> None:
    with ThrowAwayBus(talk_peers=["reviewer", "example-worker"]) as bus:
        shown = run([EXAMPLE, "--config", str(bus.config_path)], bus.environment)
        assert shown.returncode == 0, shown.stderr
        served, answered, refused = shown.stdout.splitlines()
        assert served.startswith("example-worker is served at http://127.0.0.1:")
        assert answered == "example-worker: 4 words, all of them fine."
        assert refused == (
            "budget_exhausted: 1000 characters are more than I can pay for "
            "(it would be the same again)"
        )
