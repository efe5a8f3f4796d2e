"""The soak works, and its verdict tells a leak from noise."""

from __future__ import annotations

import random
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.soak.__main__ import main
from tests.soak.flatness import judge
from tests.soak.plot import svg

TIMES_S = [5.0 * number for number in range(1, 361)]


def test_a_run_writes_its_samples_and_draws_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, plot = tmp_path / "samples.csv", tmp_path / "plot.svg"
    short = ["--minutes", "0.05", "--every", "0.5", "--retained", "200"]
    main([*short, "--csv", str(table), "--svg", str(plot)])
    header, *rows = table.read_text().splitlines()
    assert header.startswith("seconds,daemon fds,daemon threads,daemon RSS MiB,daemon CPU %,Redis")
    assert len(rows) == 5  # six looks, of which the first has nothing to compare with
    ElementTree.fromstring(plot.read_text())
    shown = capsys.readouterr().out
    assert "searcher" in shown
    assert "daemon RSS MiB" in shown


def test_a_steady_series_is_flat_however_noisy() -> None:
    chance = random.Random(3)
    noisy = [100 + chance.uniform(-30, 30) for _ in TIMES_S]
    assert judge("daemon RSS MiB", TIMES_S, noisy).flat
    assert judge("daemon fds", TIMES_S, [50 + chance.choice((0, 0, 0, 4)) for _ in TIMES_S]).flat


def test_what_rises_in_the_warm_up_only_is_flat() -> None:
    assert judge("daemon RSS MiB", TIMES_S, [min(at, 400.0) for at in TIMES_S]).flat


@pytest.mark.parametrize(("name", "per_minute"), [("daemon fds", 0.5), ("daemon RSS MiB", 0.5)])
def test_a_slow_leak_is_not_flat(name: str, per_minute: float) -> None:
    chance = random.Random(4)
    leaking = [40 + per_minute * at / 60 + chance.uniform(-2, 2) for at in TIMES_S]
    verdict = judge(name, TIMES_S, leaking)
    assert not verdict.flat
    assert verdict.rise == pytest.approx(per_minute * 22.5, rel=0.15)


def test_a_fall_is_flat() -> None:
    assert judge("adapter threads", TIMES_S, [900 - at / 2 for at in TIMES_S]).flat


def test_a_plot_bears_odd_names_and_series_of_nothing() -> None:
    drawn = ElementTree.fromstring(svg("a < b & c", [0.0], {"<zero>": [0.0], "one": [1.0]}))
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polyline")) == 2
