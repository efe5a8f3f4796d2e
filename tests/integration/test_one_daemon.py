"""Who may run, who meets whom: environments, data directories, configurations."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agentbus import __version__
from agentbus.errors import ConfigMismatchError
from agentbus.launch import ensure_daemon
from agentbus.limits import PROTOCOL_VERSION
from agentbus.processes import ancestors
from agentbus.transport.singleton import (
    EXIT_ALREADY_RUNNING,
    EXIT_CONFIGURATION,
    holder_pid,
    runtime_directory,
)
from tests.bus_fixture import ROOT, ThrowAwayBus, stop_daemon
from tests.eventually import PATIENCE_S


def run_daemon(bus: ThrowAwayBus, **environment: str) -> subprocess.CompletedProcess[str]:
    """Another daemon with the same configuration; it is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "actors", "--config", bus.config_path, "--foreground"],
        env=bus.environment | environment,
        cwd=bus.directory,
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_a_second_daemon_in_the_same_runtime_folder_ends_at_once(bus: ThrowAwayBus) -> None:
    ended = run_daemon(bus)
    assert ended.returncode == EXIT_ALREADY_RUNNING
    assert len(ended.stderr.strip().splitlines()) == 1
    assert bus.state() == "ready"


def test_a_second_daemon_on_the_same_data_directory_is_refused(bus: ThrowAwayBus) -> None:
    ended = run_daemon(bus, AGENTBUS_RUNTIME_DIR=str(bus.directory / "other"))
    assert ended.returncode == EXIT_CONFIGURATION
    assert str(bus.data_directory) in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert bus.state() == "ready"


def test_a_daemon_does_not_descend_from_what_started_it() -> None:
    """Some harnesses end everything that descends from their MCP servers, whenever they end."""
    bus = ThrowAwayBus()
    try:
        ensure_daemon(bus.runtime, bus.config_path, deadline_s=20.0, env=bus.environment).close()
        pid = holder_pid(bus.runtime.lock)
        assert pid is not None
        assert os.getpid() not in ancestors(pid)  # at once, not some time later
        assert os.getsid(pid) == pid
        stop_daemon(bus.runtime)
    finally:
        bus.close()


def test_a_data_directory_that_cannot_be_made_is_refused_in_one_line() -> None:
    bus = ThrowAwayBus()
    try:
        in_the_way = bus.directory / "a-file"
        in_the_way.touch()
        bus.configure(data_directory=str(in_the_way / "data"))
        ended = run_daemon(bus)
    finally:
        bus.close()
    assert ended.returncode == EXIT_CONFIGURATION
    (line,) = ended.stderr.strip().splitlines()
    assert str(in_the_way) in line
    assert "data_directory" in line


def test_a_config_mismatch_is_told_at_attach_with_what_to_do(bus: ThrowAwayBus) -> None:
    client = bus.client()
    hello = {
        "protocol": PROTOCOL_VERSION,
        "version": __version__,
        "pid": os.getpid(),
        "config_path": "/elsewhere/config.json",
        "config_fingerprint": "f" * 64,
    }
    assert client.request("hello", hello, PATIENCE_S)["config_path"] == str(bus.config_path)
    attach = {
        "agent": "Sam",
        "application": "test",
        "conversation": "c",
        "identity_source": "argument",
        "window_messages": 1,
        "window_bytes": 1,
    }
    with pytest.raises(ConfigMismatchError, match="agentbus stop") as refused:
        client.request("attach", attach, PATIENCE_S)
    assert str(bus.config_path) in refused.value.message
    assert "/elsewhere/config.json" in refused.value.message
    matching = {
        "config_path": str(bus.config_path),
        "config_fingerprint": bus.config.fingerprint(),
    }
    client.request("hello", hello | matching, PATIENCE_S)
    assert client.request("attach", attach, PATIENCE_S)["agent"] == "Sam"


_ENSURE = """
import os, sys
from pathlib import Path
from agentbus.launch import ensure_daemon
from agentbus.limits import PROTOCOL_VERSION
from agentbus.processes import ancestors
from agentbus.transport.singleton import runtime_directory

paths = runtime_directory(os.environ, os.getuid())
client = ensure_daemon(paths, Path(sys.argv[1]), deadline_s=30.0)
hello = {"protocol": PROTOCOL_VERSION, "version": "x", "pid": os.getpid()}
print(client.request("hello", hello, 20.0)["pid"])
client.close()
"""


def _ensure(environment: dict[str, str], config: Path) -> str:
    """Have a daemon, as a process with this environment would; its process id."""
    found = subprocess.run(
        [sys.executable, "-c", _ENSURE, str(config)],
        env=environment,
        cwd=config.parent,
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_two_environments_of_one_user_meet_on_one_daemon(short_folder: Path) -> None:
    home = short_folder / "home"
    home.mkdir()
    config = home / "config.json"
    config.write_text('{"data_directory": "data"}')
    bare = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    rich = bare | {
        "XDG_RUNTIME_DIR": str(short_folder / "xdg"),
        "XDG_STATE_HOME": str(short_folder / "state"),
        "XDG_CONFIG_HOME": str(short_folder / "cfg"),
        "TMPDIR": str(short_folder),
        "LANG": "C",
    }
    try:
        assert _ensure(rich, config) == _ensure(bare, config)
    finally:
        stop_daemon(runtime_directory(bare, os.getuid()))


def test_a_home_whose_path_is_too_long_for_a_socket_has_one_daemon_too(short_folder: Path) -> None:
    home = short_folder / ("h" * 100) / "home"
    home.mkdir(parents=True)
    config = home / "config.json"
    config.write_text('{"data_directory": "data"}')
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    paths = runtime_directory(environment, os.getuid())
    assert paths.directory.parent == Path("/tmp")
    try:
        assert _ensure(environment, config) == _ensure(environment, config)
        assert paths.socket.exists()
        assert stat.S_IMODE(paths.directory.stat().st_mode) == 0o700
    finally:
        stop_daemon(paths)
        shutil.rmtree(paths.directory)
