"""A few random schedules on every run, from a seed that is new each time and printed on failure.

More of them: `python -m tests.crash --minutes 60`. That the judge finds what is wrong is in
test_judge.py.
"""

from __future__ import annotations

import secrets

import pytest

from tests.crash.__main__ import main
from tests.crash.faults import FAULTS
from tests.crash.schedule import plan

SCHEDULES = 4


@pytest.mark.timeout(400)
def test_random_schedules_of_faults_are_clean(capfd: pytest.CaptureFixture[str]) -> None:
    seed = secrets.token_hex(4)
    count = str(SCHEDULES)
    code = main(["--seed", seed, "--schedules", count, "--parallel", count])
    output = capfd.readouterr().out
    assert code == 0, output
    assert output.count(": clean in ") == SCHEDULES


def test_a_seed_draws_the_same_schedule_and_another_one_another() -> None:
    assert plan("7", 20.0) == plan("7", 20.0) != plan("8", 20.0)


def test_a_schedule_of_one_kind_has_only_that_kind() -> None:
    assert {fault.kind for fault in plan("7", 60.0, ["cut"])} == {"cut"}


def test_every_kind_of_fault_is_drawn() -> None:
    assert {fault.kind for fault in plan("7", 600.0)} == {*FAULTS}


def test_an_unknown_kind_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--faults", "cut,earthquake"]) == 2
    assert "no fault earthquake; known: " in capsys.readouterr().err
