"""The benchmarks work; what they measure is nobody's assertion."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from agentbus.encoding import decode_trusted
from tests.benchmarks.__main__ import choose, main
from tests.benchmarks.figures import Figure, Sample
from tests.benchmarks.scale import Scale
from tests.benchmarks.scenarios import GOALS, MUST_NOT_BE, SCENARIOS
from tests.benchmarks.workloads import Workload, workloads


@pytest.mark.timeout(180)  # some thirty processes, on a machine that may be busy
def test_every_workload_measures_something() -> None:
    with workloads(print, searched_messages=1000) as found:
        samples = {workload.name: workload.measure(0.15) for workload in found}
    expected = {"floor-1", "accept-1", "accept-8x16", "deliver", "mcp-1", "redis-1"}
    expected.add("peer-roundtrip")
    assert expected | {"search-100k-sqlite"} <= samples.keys()
    for name, sample in samples.items():
        assert sample.per_second > 0, name
        assert 0 < sample.p50_us <= sample.p99_us, name


TINY = Scale(
    messages=300,
    channels=30,
    active_channels=3,
    sessions=4,
    subscribers=3,
    fanned_out=30,
    seconds=0.1,
)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_gives_its_readings(name: str) -> None:
    with closing(SCENARIOS[name](TINY)) as rounds:
        readings = next(rounds)
    goals = {reading for scenario, reading in GOALS if scenario == name}
    assert goals <= readings.keys()
    assert all(value >= 0 for value in readings.values())
    assert all(readings[key] == 0 for key in MUST_NOT_BE if key in readings)


def test_a_run_reports_figures_ratios_and_the_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    options = ["--quick", "--rounds", "1", "--only", "floor-1,accept-1", "--json", str(report)]
    assert main(options) == 0
    document = decode_trusted(report.read_bytes())
    assert document["machine"]["cores"] >= 1
    assert [figure["name"] for figure in document["figures"]] == ["floor-1", "accept-1"]
    assert document["ratios"]["accept-1 / floor-1, p50"] > 0
    assert "accept-1 / floor-1, p50" in capsys.readouterr().out


def test_a_run_of_scenarios_only_starts_no_workloads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert main(["--quick", "--rounds", "1", "--only", "fanout-32", "--json", str(report)]) == 0
    document = decode_trusted(report.read_bytes())
    assert (document["figures"], document["ratios"]) == ([], {})
    (fanout,) = document["scenarios"]
    assert fanout["readings"]["deliveries/s"] > 0
    assert "goal: at least 30,000" in capsys.readouterr().out


def test_a_quick_run_leaves_out_what_is_slow_to_start_unless_it_is_named() -> None:
    sample = Sample(1, 1, 1)
    fast, slow = Workload("a", lambda _: sample), Workload("s", lambda _: sample, True)
    assert choose([fast, slow], None, quick=False) == [fast, slow]
    assert choose([fast, slow], None, quick=True) == [fast]
    assert choose([fast, slow], "s,x", quick=True) == [slow]


def test_a_figure_is_the_median_of_its_rounds() -> None:
    figure = Figure.of("x", [Sample(3, 30, 100), Sample(1, 20, 300), Sample(2, 10, 200, lag_s=5)])
    assert (figure.per_second, figure.p50_us, figure.p99_us, figure.lag_s) == (2, 20, 200, 5)


def test_quantiles_are_taken_from_the_latencies_of_a_round() -> None:
    sample = Sample.of_latencies([at / 1e6 for at in range(100, 0, -1)], elapsed_s=2.0)
    assert (sample.per_second, sample.p50_us, sample.p99_us) == (50, 51, 100)
