"""What the doctor makes of what it sees: each fault once, from real files, locks and programs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentbus import __version__
from agentbus.cli.doctoring import harnesses, processes
from agentbus.cli.doctoring.canary import send_canary
from agentbus.cli.doctoring.faults import FAULTS, Finding
from agentbus.cli.doctoring.harnesses import PROGRAMS, Surroundings, examine_harnesses
from agentbus.cli.doctoring.processes import Process, parse, stale
from agentbus.cli.doctoring.service import (
    Daemon,
    examine_daemon,
    examine_in_use,
    examine_redis,
    examine_runtime,
)
from agentbus.cli.program import own_program
from agentbus.config import load_config
from agentbus.encoding import encode
from agentbus.errors import NotFoundError, UnavailableError
from agentbus.harnesses.installing import installation
from agentbus.harnesses.installing.entries import entries_of
from agentbus.harnesses.installing.installation import carry_out, plan_install
from agentbus.limits import PROTOCOL_VERSION
from agentbus.transport.singleton import RuntimePaths
from tests.eventually import eventually

UID = os.getuid()


def faults(findings: list[Finding]) -> list[str]:
    return [one.fault for one in findings if one.fault is not None]


def test_the_program_is_looked_for_beside_this_one_and_then_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "agentbus-admin")])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    with pytest.raises(NotFoundError):
        own_program()
    for folder in ("path", "bin"):  # each is preferred to the one before
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "agentbus").touch(0o755)
        assert own_program() == tmp_path / folder / "agentbus"


# --- the daemon -----------------------------------------------------------------------------------


def status(**changes: Any) -> dict[str, Any]:
    return {
        "state": "ready",
        "pid": 42,
        "versions": {"package": __version__, "protocol": PROTOCOL_VERSION, "schema": 1},
        "redis": {"healthy": True, "search_engine": "redis"},
        "config": {"values": {"search_engine": "auto"}},
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"state": "recovering", "work": "filling Redis"}, ["daemon-not-ready"]),
        ({"state": "unknown", "versions": None}, ["daemon-not-ready", "daemon-version"]),
        ({"versions": {"package": "9.9", "protocol": PROTOCOL_VERSION}}, ["daemon-version"]),
        ({"versions": {"package": __version__, "protocol": 99}}, ["daemon-version"]),
    ],
)
def test_a_daemon_is_judged_by_its_state_and_version(
    changes: dict[str, Any], found: list[str], short_folder: Path
) -> None:
    daemon = Daemon(status(**changes))
    assert faults(examine_daemon(daemon, RuntimePaths(short_folder))) == found


@pytest.mark.parametrize(
    ("redis", "wanted", "found"),
    [
        ({"healthy": True, "search_engine": "redis"}, "auto", []),
        ({"healthy": True, "search_engine": "sqlite"}, "sqlite", []),
        ({"healthy": True, "search_engine": "sqlite"}, "auto", ["search-missing"]),
        ({"healthy": False, "search_engine": "redis"}, "auto", ["redis-unhealthy"]),
        (None, "auto", ["redis-unhealthy"]),
    ],
)
def test_redis_is_judged_by_its_health_and_by_what_searches(
    redis: Any, wanted: str, found: list[str]
) -> None:
    told = status(redis=redis, config={"values": {"search_engine": wanted}})
    assert faults(examine_redis(told)) == found


def test_what_the_daemon_runs_with_is_compared_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = load_config(path)
    used = {"path": str(path), "values": config.effective()}
    assert faults([examine_in_use(status(config=used), config)]) == []
    other = {**used, "path": str(tmp_path / "other.json")}
    assert faults([examine_in_use(status(config=other), config)]) == ["daemon-configuration"]


def test_what_is_in_the_sockets_place_must_be_a_socket_of_ours(short_folder: Path) -> None:
    paths = RuntimePaths(short_folder / "run")
    assert faults(examine_runtime(paths, UID)) == []
    paths.directory.mkdir(mode=0o700)
    assert faults(examine_runtime(paths, UID)) == []
    paths.socket.write_text("")
    assert faults(examine_runtime(paths, UID)) == ["socket-unsafe"]
    paths.socket.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(paths.socket))
        paths.socket.chmod(0o666)
        assert faults(examine_runtime(paths, UID)) == ["socket-unsafe"]
        paths.socket.chmod(0o600)
        assert faults(examine_runtime(paths, UID)) == []
    paths.directory.chmod(0o755)
    assert faults(examine_runtime(paths, UID)) == ["runtime-folder-unsafe"]


# --- harnesses ------------------------------------------------------------------------------------


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    """A home with all harnesses on PATH, and an `agentbus` to start."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("agentbus", *PROGRAMS.values()):
        (programs / name).write_text("#!/bin/sh\necho 1.2.3\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin")
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    heard = [{"application": name, "event": "Stop", "at": "now"} for name in PROGRAMS]
    told = {"started_at": "then", "hooks": heard}
    return Surroundings(tmp_path / "home", tmp_path / "project", programs / "agentbus", told)


def install(harness: str, around: Surroundings, **options: Any) -> None:
    target = replace(around.target(options.pop("project", None)), **options)
    carry_out(plan_install(entries_of(harness, target)), installing=True)


ACCEPTED = ("session_start:0:0", "session_end:0:0", "user_prompt_submit:0:0")
"""As Codex notes its hooks but the last; Stop may have others before it."""


def trust(folder: Path, *places: str) -> None:
    with (folder / "config.toml").open("a") as file:
        for place in places:
            file.write(f'\n[hooks.state."{folder}/hooks.json:{place}"]\ntrusted_hash = "x"\n')


def of(harness: str, around: Surroundings) -> list[Finding]:
    return [one for one in examine_harnesses(around) if one.check.split()[0] == harness]


@pytest.mark.parametrize("harness", ["claude-code", "opencode", "gemini"])
@pytest.mark.parametrize("for_project", [False, True])
def test_an_installation_is_current_with_whatever_options_it_was_made(
    around: Surroundings, harness: str, for_project: bool
) -> None:
    install(
        harness,
        around,
        project=around.folder if for_project else None,
        agent="Sam",
        config_path=around.home / "my config.json",
    )
    assert faults(of(harness, around)) == []


@pytest.mark.parametrize("harness", PROGRAMS)
def test_a_harness_that_does_not_know_the_bus_is_told_how_to_install_it(
    around: Surroundings, harness: str
) -> None:
    found = of(harness, around)
    assert faults(found) == ["entry-missing"]
    (advice,) = [one.advice for one in found if one.advice is not None]
    assert advice == f"run: agentbus-admin install {harness}"


@pytest.mark.parametrize("harness", PROGRAMS)
def test_an_entry_of_another_installation_is_outdated_and_a_dead_one_is_broken(
    around: Surroundings, harness: str
) -> None:
    other = around.program.with_name("other") / "agentbus"
    other.parent.mkdir()
    other.write_bytes(around.program.read_bytes())
    other.chmod(0o755)
    install(harness, Surroundings(around.home, around.folder, other), agent="Sam")
    found = of(harness, around)
    assert faults(found)[0] == "entry-outdated"
    assert f"run: agentbus-admin install {harness} --agent Sam" in [one.advice for one in found]
    assert ("hooks-outdated" in faults(found)) == (harness != "opencode")
    other.unlink()
    assert faults(of(harness, around))[0] == "entry-broken"


def test_an_entry_of_somebody_else_is_never_advised_to_be_overwritten(
    around: Surroundings,
) -> None:
    path = around.home / ".claude.json"
    path.write_bytes(encode({"mcpServers": {"agentbus": {"command": "omnibus"}}}))
    found = of("claude-code", around)
    assert faults(found) == ["entry-foreign", "hooks-missing"]
    assert any(str(path) in (one.advice or "") for one in found)


@pytest.mark.parametrize("text", ["{", "[]", b"\xff"])
def test_a_file_that_cannot_be_read_is_a_finding(around: Surroundings, text: str | bytes) -> None:
    (around.home / ".claude.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert faults(of("claude-code", around)) == ["file-unreadable"]


def test_a_file_in_a_folders_place_is_a_finding(around: Surroundings) -> None:
    (around.home / ".claude").write_text("")
    assert faults(of("claude-code", around)) == ["file-unreadable"]


def test_hooks_that_were_taken_out_are_missed(around: Surroundings) -> None:
    install("claude-code", around)
    settings = around.home / ".claude" / "settings.json"
    settings.write_text(settings.read_text().replace('"Stop"', '"Stopped"'))
    found = of("claude-code", around)
    assert faults(found) == ["hooks-missing"]
    assert any(one.seen.endswith("has none for Stop") for one in found)


@pytest.mark.parametrize("for_project", [False, True])
def test_what_is_advised_keeps_the_place_and_the_options_of_the_installation(
    around: Surroundings, for_project: bool
) -> None:
    project = around.folder if for_project else None
    install("gemini", around, project=project, agent="Sam", config_path=Path("/my own/c.json"))
    settings = (project or around.home) / ".gemini" / "settings.json"
    settings.write_text(settings.read_text().replace('"SessionEnd"', '"Other"'))
    (advice,) = [one.advice for one in of("gemini", around) if one.fault == "hooks-missing"]
    options = "--project " if for_project else ""
    assert advice == (
        f"run: agentbus-admin install gemini {options}--agent Sam --config '/my own/c.json'"
    )


def test_codex_hooks_count_when_each_was_accepted_in_its_place(around: Surroundings) -> None:
    hooks = around.home / ".codex" / "hooks.json"
    hooks.parent.mkdir()
    mine = {"hooks": [{"type": "command", "command": "say done"}]}
    hooks.write_bytes(encode({"hooks": {"Stop": [mine]}}))
    install("codex", around)
    assert faults(of("codex", around)) == ["hooks-untrusted"]
    trust(
        hooks.parent, "session_start:0:0", "session_end:0:0", "user_prompt_submit:0:0", "stop:0:0"
    )
    (untrusted,) = [one for one in of("codex", around) if one.fault == "hooks-untrusted"]
    assert untrusted.seen == "not accepted yet: Stop"
    trust(hooks.parent, "stop:1:0")
    assert faults(of("codex", around)) == []


@pytest.mark.parametrize(
    ("harness", "variable"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR"),
        ("codex", "CODEX_HOME"),
        ("opencode", "XDG_CONFIG_HOME"),
    ],
)
def test_a_harness_is_looked_at_where_its_folder_was_moved(
    around: Surroundings, harness: str, variable: str
) -> None:
    elsewhere = around.home / "elsewhere"
    moved = replace(around, moved={variable: elsewhere})
    install(harness, moved)
    if harness == "codex":
        assert faults(of(harness, moved)) == ["hooks-untrusted"]
        trust(elsewhere, *ACCEPTED, "stop:0:0")
    assert faults(of(harness, moved)) == []
    assert faults(of(harness, around)) == ["entry-missing"]


def test_hooks_that_do_not_speak_are_found_and_without_a_daemon_nobody_knows(
    around: Surroundings,
) -> None:
    install("gemini", around)
    deaf = {"started_at": "then", "hooks": [{"application": "codex", "event": "Stop", "at": ""}]}
    silent = Surroundings(around.home, around.folder, around.program, deaf)
    assert faults(of("gemini", silent)) == ["hooks-silent"]
    assert faults(of("gemini", Surroundings(around.home, around.folder, around.program))) == []


def test_without_the_libraries_the_doctor_says_what_to_install(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: object) -> None:
        raise UnavailableError("tree-sitter is missing")

    monkeypatch.setattr(installation, "JsonText", lacking)
    assert faults(of("gemini", around)) == ["install-extra-missing"]


@pytest.mark.parametrize("body", ["#!/bin/sh\nexit 1", "#!/nowhere/sh", "no program", "sleeps"])
def test_a_harness_that_does_not_tell_its_version_is_broken(
    around: Surroundings, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if body == "sleeps":
        body = "#!/bin/sh\nsleep 60"
        monkeypatch.setattr(harnesses, "VERSION_S", 0.1)
    around.program.with_name("gemini").write_text(body)
    assert "harness-broken" in faults(of("gemini", around))


# --- processes ------------------------------------------------------------------------------------

PYTHON = "/usr/bin/python3.11"


@pytest.mark.parametrize(
    ("command", "parent", "found"),
    [
        (f"{PYTHON} -m agentbus mcp --agent Sam", "/sbin/init", True),
        ("/opt/bus/bin/agentbus mcp", "/lib/systemd/systemd --user", True),
        (f"{PYTHON} -I /opt/bus/bin/agentbus mcp --session 1", None, True),
        (f"{PYTHON} /opt/bus/bin/agentbus mcp", "claude", False),
        (f"{PYTHON} -m agentbus wait --session 1", "/sbin/init", False),
        (f"{PYTHON} -m pytest agentbus mcp", "/sbin/init", False),
        ("/bin/sh -c agentbus mcp", "/sbin/init", False),
        ("grep agentbus mcp", "/sbin/init", False),
        (f"{PYTHON} -m", "/sbin/init", False),
    ],
)
def test_an_adapter_without_a_harness_is_told_by_its_command_line(
    command: str, parent: str | None, found: bool, short_folder: Path
) -> None:
    listed = [Process(UID, 50, 40, command), Process(UID + 1, 51, 40, command)]
    if parent is not None:
        listed.append(Process(0, 40, 1, parent))
    left = [one.process.pid for one in stale(listed, RuntimePaths(short_folder), UID)]
    assert left == ([50] if found else [])


def test_a_harness_that_is_the_first_process_is_a_harness(short_folder: Path) -> None:
    adapter = Process(UID, 50, 1, "agentbus mcp")
    for first, found in (("claude", []), ("node /x/gemini", []), ("/sbin/tini -- x", [50])):
        listed = [adapter, Process(UID, 1, 0, first)]
        left = [one.process.pid for one in stale(listed, RuntimePaths(short_folder), UID)]
        assert left == found


@pytest.fixture
def held(short_folder: Path) -> Iterator[Path]:
    """The runtime folder of a daemon: another process has its lock, under our number."""
    path = short_folder / "lock"
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
        "file.write('50'); file.flush(); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield short_folder


def test_a_daemon_that_holds_neither_our_lock_nor_one_of_its_own_is_a_stray(held: Path) -> None:
    command = f"{PYTHON} -m actors --config "
    config = held / "config.json"
    config.write_bytes(encode({"data_directory": str(held)}))
    other = RuntimePaths(held / "other")
    listed = [
        Process(UID, 50, 1, f"{command}{config}"),
        Process(UID, 51, 1, f"{command}{config} --foreground"),
        Process(UID, 52, 1, f"{command}{held}/gone/config.json"),
    ]
    assert [one.process.pid for one in stale(listed, other, UID)] == [51, 52]
    assert [one.process.pid for one in stale(listed[:1], RuntimePaths(held), UID)] == []


def test_a_daemon_of_another_home_is_known_by_the_lock_that_it_has_open(short_folder: Path) -> None:
    code = (
        "import fcntl, os, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
        "file.write(str(os.getpid())); file.flush(); print('held', flush=True); sys.stdin.read()"
    )
    daemon = subprocess.Popen(
        [sys.executable, "-c", code, str(short_folder / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    listed = [Process(UID, daemon.pid, 1, f"{PYTHON} -m actors --config {short_folder}/none.json")]
    with daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"held\n"
        strays = list(stale(listed, RuntimePaths(short_folder / "other"), UID))
        assert strays == [] or not Path("/proc/self/fd").exists()
        (short_folder / "lock").unlink()
        assert list(stale(listed, RuntimePaths(short_folder / "other"), UID)) != []


def test_a_redis_of_the_bus_without_a_daemon_is_a_stray_and_others_are_left_alone(
    held: Path,
) -> None:
    empty, foreign = held / "empty", held / "foreign"
    for folder in (empty, foreign):
        folder.mkdir()
    for folder in (held, empty):
        (folder / "redis.json").write_text("{}")
    listed = [
        Process(UID, number, 1, f"/x/valkey-server unixsocket:{folder}/redis.sock")
        for number, folder in enumerate((held, empty, foreign, held / "gone"), 60)
    ]
    assert [one.process.pid for one in stale(listed, RuntimePaths(held), UID)] == [61, 63]


def test_lines_that_are_no_processes_are_passed_over() -> None:
    text = "  0     1     0 /sbin/init splash\n\nnonsense\n 5 6\n-1 2 3 x\n 1000 7 1 a  b\n"
    assert parse(text) == [Process(0, 1, 0, "/sbin/init splash"), Process(1000, 7, 1, "a  b")]


def test_a_process_that_stays_is_found_in_the_list_of_the_system(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = short_folder / "agentbus"
    program.write_text("import sys; sys.stdin.read()")
    monkeypatch.setattr(processes, "SECOND_LOOK_S", 0.1)
    monkeypatch.setattr(processes, "_PAUSE_S", 0.05)
    adapter = subprocess.Popen([sys.executable, str(program), "mcp"], stdin=subprocess.PIPE)
    parent = next(one.command for one in processes.list_processes() if one.pid == os.getpid())
    monkeypatch.setattr(processes, "_INITS", {Path(parent.split()[0]).name})

    def found() -> list[str | None]:
        findings = processes.examine_processes(RuntimePaths(short_folder), UID)
        return [one.fault for one in findings if f"process {adapter.pid} " in one.seen]

    with adapter:
        eventually(lambda: found() == ["adapter-orphaned"], 40.0, what="the adapter is listed")
        assert adapter.stdin is not None
        adapter.stdin.close()
        adapter.wait()
    assert found() == []


def test_without_ps_the_doctor_says_so(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(short_folder))
    found = processes.examine_processes(RuntimePaths(short_folder), UID)
    assert faults(found) == ["processes-unknown"]


# --- the canary -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo agentbus: no such key >&2; exit 2", "the adapter ended (2): no such key"),
        ("exit 0", "the adapter ended (0): without a word"),
        ("echo '{'; cat", "not a JSON document"),
        ('echo \'{"id": 1, "error": "no"}\'; cat', "the adapter answered no"),
        ("cat", "does not answer in time"),
        (None, "cannot be run"),
    ],
)
def test_an_adapter_that_fails_is_what_stopped_the_canary(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch, body: str | None, words: str
) -> None:
    monkeypatch.setattr("agentbus.cli.doctoring.canary.ANSWER_S", 2.0)
    program = short_folder / "agentbus"
    if body is not None:
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    flight = send_canary(program, None, RuntimePaths(short_folder / "run"), 5.0)
    assert flight.hops == []
    (failed,) = flight.findings(Path("/logs"))
    assert failed.fault == "canary-failed"
    assert words in failed.seen
    assert failed.advice == "do what the line says; the daemon's log is in /logs"


# --- the list -------------------------------------------------------------------------------------


def test_every_fault_has_a_name_of_its_own_and_says_what_to_do() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) > 20
    assert all(fault.meaning.endswith(".") and fault.advice for fault in FAULTS)
    assert {fault.level for fault in FAULTS} == {"warning", "failure"}
