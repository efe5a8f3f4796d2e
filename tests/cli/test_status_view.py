"""The human status bears whatever a daemon in trouble can still tell."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.cli.admin.status_view import print_status

ERROR = {"error": {"code": "unavailable", "message": "the database is busy", "retryable": True}}


def _shown(status: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    print_status(status)
    return capsys.readouterr().out


def test_empty_status_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown" in _shown({}, capsys)


def test_parts_that_could_not_be_had_do_not_hide_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = {
        "state": "recovering",
        "epoch": 3,
        "work": "filling Redis",
        "progress": {"done": 10, "total": 50},
        "redis": None,
        "store": ERROR,
        "budgets": {"sqlite": {"used_bytes": None, "limit_bytes": 1 << 30}, "binding": None},
        "sessions": [{"display_name": "Sam", "subscriptions": ERROR}],
        "errors": [{"at": "2026-01-31T12:00:00.000Z", "what": "projection lost: \x1b[2J"}],
        "notes": ["the configuration file cannot be used"],
    }
    shown = _shown(status, capsys)
    assert "recovering (recovery epoch 3)" in shown
    assert "filling Redis, 10 of 50" in shown
    assert "unknown of 1024.0 MiB" in shown
    assert "Sam" in shown
    assert r"projection lost: \x1b[2J" in shown
    assert "cannot be used" in shown


def test_markup_in_a_name_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _shown({"sessions": [{"display_name": "[red]Sam[/red] :smile:"}]}, capsys)
    assert "[red]Sam[/red] :smile:" in shown


def test_relaxed_durability_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _shown({"config": {"values": {"sqlite_synchronous": "normal"}}}, capsys)
    assert "power loss" in shown


def test_a_log_that_cannot_be_emptied_is_told_with_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ledger = {"log_bytes": 80 << 20, "log_obstacle": "process 7 (sqlite3) keeps reading"}
    assert "80.0 MiB, because process 7 (sqlite3) keeps reading" in _shown(
        {"ledger": ledger}, capsys
    )
    assert "write-ahead" not in _shown({"ledger": {"log_obstacle": None}}, capsys)


def test_a_budget_that_binds_and_one_that_is_exhausted_are_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    full = {"used_bytes": 64 << 20, "limit_bytes": 64 << 20, "exhausted": True}
    roomy = {"used_bytes": 1 << 20, "limit_bytes": 512 << 20, "exhausted": False}
    shown = _shown({"budgets": {"sqlite": full, "redis": roomy, "binding": "sqlite"}}, capsys)
    (line,) = [line for line in shown.splitlines() if "EXHAUSTED" in line]
    assert "sqlite" in line
    assert "64.0 MiB of 64.0 MiB  (this one binds)" in line
