"""daemon, status, stop, channels and sessions against a real daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from agentbus.cli.entry import EXIT_FAILURE, EXIT_NOT_RUNNING, EXIT_OK, EXIT_USAGE
from agentbus.encoding import decode_strict
from agentbus.errors import UnavailableError
from agentbus.projection.finding import find_redis
from agentbus.transport.singleton import (
    EXIT_ALREADY_RUNNING,
    EXIT_DATABASE,
    DaemonLock,
    holder_pid,
    prepare_directory,
)
from tests.bus_fixture import ROOT, ThrowAwayBus
from tests.cli.command import agentbus, agentbus_admin
from tests.eventually import eventually
from tests.redis_fixture import executable_script
from tests.signals import freeze, kill


def test_status_without_a_daemon_says_so_and_exits_3(stopped_bus: ThrowAwayBus) -> None:
    shown = agentbus(stopped_bus, "status")
    assert shown.returncode == EXIT_NOT_RUNNING
    assert "No daemon is running" in shown.stdout


def test_status_as_json_without_a_daemon_is_one_document(stopped_bus: ThrowAwayBus) -> None:
    shown = agentbus(stopped_bus, "status", "--json")
    assert shown.returncode == EXIT_NOT_RUNNING
    assert decode_strict(shown.stdout)["running"] is False


def test_status_without_a_daemon_leaves_no_trace(stopped_bus: ThrowAwayBus) -> None:
    agentbus(stopped_bus, "status")
    agentbus(stopped_bus, "stop")
    assert not stopped_bus.runtime.directory.exists()


def test_stop_without_a_daemon_is_what_was_wanted(stopped_bus: ThrowAwayBus) -> None:
    shown = agentbus(stopped_bus, "stop")
    assert shown.returncode == EXIT_OK
    assert "No daemon was running" in shown.stdout
    document = decode_strict(agentbus(stopped_bus, "stop", "--json").stdout)
    assert document == {"was_running": False, "pid": None}


def test_channels_and_sessions_need_a_daemon(stopped_bus: ThrowAwayBus) -> None:
    for command in ("channels", "sessions"):
        shown = agentbus_admin(stopped_bus, command)
        assert shown.returncode == EXIT_NOT_RUNNING
        assert shown.stderr == (
            "agentbus: no daemon is running; start one: agentbus daemon --detach\n"
        )


def test_daemon_runs_in_the_background_until_it_is_stopped(stopped_bus: ThrowAwayBus) -> None:
    config = str(stopped_bus.config_path)
    started = agentbus(stopped_bus, "daemon", "--config", config, "--detach")
    assert started.returncode == EXIT_OK, started.stderr
    pid = holder_pid(stopped_bus.runtime.lock)
    assert f"process {pid}" in started.stdout
    again = agentbus(stopped_bus, "daemon", "--config", config, "--detach")
    assert f"process {pid}" in again.stdout
    assert "started with" not in again.stdout
    other = str(stopped_bus.directory / "other.json")
    elsewhere = agentbus(stopped_bus, "daemon", "--config", other, "--detach")
    assert f"It was started with {config}, not with {other}" in elsewhere.stdout
    stopped = agentbus(stopped_bus, "stop", "--json")
    assert decode_strict(stopped.stdout) == {"was_running": True, "pid": pid}
    assert not DaemonLock(stopped_bus.runtime.lock).held_by_another()


def test_daemon_in_the_foreground_logs_to_stderr_and_ends_in_order(
    stopped_bus: ThrowAwayBus,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "agentbus", "daemon", "--config", str(stopped_bus.config_path)],
        env=stopped_bus.environment,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        eventually(lambda: stopped_bus.state() == "ready", within_s=30)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == EXIT_OK
    assert "serves" in errors
    assert not (stopped_bus.data_directory / "logs").exists()


def test_daemon_refuses_a_broken_configuration_with_one_line(stopped_bus: ThrowAwayBus) -> None:
    stopped_bus.config_path.write_text('{"colour": "red"}')
    for detach in ([], ["--detach"]):
        shown = agentbus(stopped_bus, "daemon", "--config", str(stopped_bus.config_path), *detach)
        assert shown.returncode == EXIT_USAGE
        assert "colour" in shown.stderr
        assert shown.stderr.count("\n") == 1
        assert shown.stderr.count("agentbus: ") == 1


def test_status_tells_why_the_last_start_was_refused_until_another_one_begins(
    stopped_bus: ThrowAwayBus,
) -> None:
    config = ("--config", str(stopped_bus.config_path))
    database = stopped_bus.data_directory / "agentbus.sqlite3"
    database.parent.mkdir(mode=0o700)
    database.touch()
    assert agentbus(stopped_bus, "daemon", *config).returncode == EXIT_DATABASE
    for_people = agentbus(stopped_bus, "status", *config)
    assert for_people.returncode == EXIT_NOT_RUNNING
    assert "The last start was refused at 20" in for_people.stdout
    assert f"Z: {database}: damaged (" in for_people.stdout
    document = decode_strict(agentbus(stopped_bus, "status", "--json", *config).stdout)
    assert document["refusal"]["message"].startswith(f"{database}: damaged (")
    assert document["notes"] == []
    database.unlink()
    stopped_bus.start()
    assert agentbus(stopped_bus, "daemon", *config).returncode == EXIT_ALREADY_RUNNING
    stopped_bus.kill()
    document = decode_strict(agentbus(stopped_bus, "status", "--json", *config).stdout)
    assert (document["running"], document["refusal"]) == (False, None)


def test_status_without_a_daemon_tells_of_a_broken_configuration(stopped_bus: ThrowAwayBus) -> None:
    config = ("--config", str(stopped_bus.config_path))
    stopped_bus.config_path.write_text('{"colour": "red"}')
    shown = agentbus(stopped_bus, "status", *config)
    assert shown.returncode == EXIT_NOT_RUNNING
    assert "Note: the configuration file cannot be used" in shown.stdout
    assert "colour" in shown.stdout


def test_second_daemon_in_the_foreground_exits_75(running_bus: ThrowAwayBus) -> None:
    shown = agentbus(running_bus, "daemon", "--config", str(running_bus.config_path))
    assert shown.returncode == EXIT_ALREADY_RUNNING


def test_status_shows_the_bus_to_a_person(running_bus: ThrowAwayBus) -> None:
    running_bus.attach("Sam")
    shown = agentbus(running_bus, "status")
    assert shown.returncode == EXIT_OK, shown.stderr
    for text in ("ready", "Redis", "search engine", "Budgets", "binds", "Sam", "general (0)"):
        assert text in shown.stdout


def test_status_as_json_is_what_the_daemon_says(running_bus: ThrowAwayBus) -> None:
    running_bus.attach("Sam")
    status = decode_strict(agentbus(running_bus, "status", "--json").stdout)
    assert status["running"] is True
    assert status["state"] == "ready"
    assert status["pid"] == holder_pid(running_bus.runtime.lock)
    assert status["config"]["path"] == str(running_bus.config_path)
    assert [row["display_name"] for row in status["sessions"]] == ["Sam"]
    assert status["notes"] == []


def test_status_tells_when_the_file_has_changed_or_broken(running_bus: ThrowAwayBus) -> None:
    running_bus.configure(recv_max_count=500)
    status = decode_strict(agentbus(running_bus, "status", "--json").stdout)
    assert "recv_max_count" in status["notes"][0]
    running_bus.config_path.write_text("{")
    shown = agentbus(running_bus, "status")
    assert shown.returncode == EXIT_OK
    assert "cannot be used" in shown.stdout


def test_status_and_stop_work_while_the_bus_recovers(
    stopped_bus: ThrowAwayBus, tmp_path: Path
) -> None:
    redis = executable_script(tmp_path, f'exec {find_redis("redis-server")[0].executable} "$@"')
    stopped_bus.configure(redis_executable=str(redis), search_engine="sqlite")
    stopped_bus.start()
    sam = stopped_bus.attach("Sam")
    redis.unlink()
    pid = stopped_bus.redis_pid()
    assert pid is not None
    kill(pid)
    with suppress(UnavailableError):  # the loss may have been noticed before
        sam.call("send", channel="general", content="its projection fails at once")
    eventually(lambda: stopped_bus.state() == "recovering", within_s=20)
    shown = agentbus(stopped_bus, "status", "--json")
    assert shown.returncode == EXIT_OK, shown.stderr
    status = decode_strict(shown.stdout)
    assert (status["state"], status["redis"]["healthy"]) == ("recovering", False)
    assert any("projection lost" in error["what"] for error in status["errors"])
    person = agentbus(stopped_bus, "status")
    assert person.returncode == EXIT_OK, person.stderr
    assert "recovering (recovery epoch " in person.stdout  # each attempt begins another
    assert agentbus(stopped_bus, "stop").returncode == EXIT_OK
    assert stopped_bus.wait_ended() == 0


def test_status_tells_when_another_file_is_meant(running_bus: ThrowAwayBus) -> None:
    other = running_bus.directory / "other.json"
    status = decode_strict(agentbus(running_bus, "status", "--json", "--config", str(other)).stdout)
    assert str(other) in status["notes"][0]


def test_hanging_daemon_is_named_with_the_way_to_end_it(running_bus: ThrowAwayBus) -> None:
    pid = holder_pid(running_bus.runtime.lock)
    assert pid is not None
    freeze(pid)
    try:
        shown = agentbus(running_bus, "status")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert shown.returncode == EXIT_FAILURE
    assert f"kill -9 {pid}" in shown.stderr


def test_daemon_that_does_not_listen_is_named_and_may_still_be_starting(
    stopped_bus: ThrowAwayBus,
) -> None:
    prepare_directory(stopped_bus.runtime, os.getuid())
    lock = DaemonLock(stopped_bus.runtime.lock)
    assert lock.acquire()
    try:
        shown = agentbus(stopped_bus, "status", "--json")
    finally:
        lock.release()
    assert (shown.returncode, shown.stdout) == (EXIT_FAILURE, "")
    assert "may still be starting" in shown.stderr
    assert f"process {os.getpid()}" in shown.stderr
    assert shown.stderr.count("\n") == 1


def test_channels_and_sessions_are_listed(running_bus: ThrowAwayBus) -> None:
    sam = running_bus.attach("Sam")
    sam.call("create_channel", name="plans \u202e")
    shown = agentbus_admin(running_bus, "channels")
    assert "general" in shown.stdout
    assert r"plans \u202e" in shown.stdout
    names = decode_strict(agentbus_admin(running_bus, "channels", "--json").stdout)["channels"]
    assert {row["channel"] for row in names} == {"general", "plans \u202e"}
    assert "Sam" in agentbus_admin(running_bus, "sessions").stdout
    sessions = decode_strict(agentbus_admin(running_bus, "sessions", "--json").stdout)["sessions"]
    assert [row["agent"] for row in sessions] == ["Sam"]
