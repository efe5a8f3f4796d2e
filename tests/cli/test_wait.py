"""`agentbus wait` and `agentbus hook` as processes, against a real daemon and without one."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentbus.cli.hook import HOOK_S, hook
from agentbus.cli.wait import (
    EXIT_ERROR,
    EXIT_HARNESS_GONE,
    EXIT_REPLACED,
    EXIT_TIMEOUT,
    EXIT_WAKE,
    EXIT_WOKEN,
)
from agentbus.encoding import decode_strict, encode
from tests.bus_fixture import ROOT, ThrowAwayBus
from tests.cli.command import agentbus
from tests.eventually import eventually
from tests.signals import freeze

ENDS_WITHIN_S = 30.0

_PATIENT = (
    "import sys; from agentbus.cli import bus, hook; hook.HOOK_S = hook.GIVE_UP_S = 20.0; "
    "sys.exit(bus.main(sys.argv[1:]))"
)
"""`agentbus` whose hooks give the daemon the time that a busy machine takes. That they do not wait
long is looked at by itself."""


@pytest.fixture(scope="module")
def bus() -> Iterator[ThrowAwayBus]:
    with ThrowAwayBus() as bus:
        yield bus


@contextmanager
def started(
    bus: ThrowAwayBus, *arguments: str, stdin: Any = None, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """`agentbus ARGUMENTS` in the background."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PATIENT, *arguments],
        env={**bus.environment, **(env or {})},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write("" if stdin is None else encode(stdin).decode())
        process.stdin.close()
        process.stdin = None
        yield process
    finally:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=ENDS_WITHIN_S)
    return process.returncode, out, err


def waits(bus: ThrowAwayBus) -> int:
    with bus.client() as client:
        return int(client.request("status", {}, 10.0)["waits"]["waiting"])


def run_hook(bus: ThrowAwayBus, event: str, document: Any, *options: str) -> tuple[int, str, str]:
    with started(bus, "hook", event, *options, stdin=document) as process:
        return end(process)


def test_wait_prints_a_line_per_channel_and_moves_no_cursor(bus: ThrowAwayBus) -> None:
    sam, kim = bus.attach("Sam", conversation="w-1"), bus.attach("Kim", conversation="w-2")
    with started(bus, "wait", "--session", "w-1") as process:
        eventually(lambda: waits(bus) == 1, what="the wait is known")
        kim.call("send", channel="general", content="hello")
        code, out, err = end(process)
    assert (code, err) == (EXIT_WOKEN, "")
    assert decode_strict(out) == {"channel": "general", "waiting": 1}
    (row,) = sam.call("whoami")["subscriptions"]
    assert row["lag"] == 1
    sam.close()
    kim.close()


def test_the_hook_form_wakes_with_exit_2_and_one_line_without_content(bus: ThrowAwayBus) -> None:
    sam, kim = bus.attach("Sam", conversation="h-1"), bus.attach("Kim", conversation="h-2")
    with started(bus, "wait", "--hook", stdin={"session_id": "h-1"}) as process:
        eventually(lambda: waits(bus) == 1, what="the wait is known")
        kim.call("send", channel="general", content="secret words")
        code, out, err = end(process)
    assert (code, out) == (EXIT_WAKE, "")
    assert err == "Agentbus: 1 message waits on general; call receive.\n"
    sam.close()
    kim.close()


@pytest.mark.parametrize(
    ("entrypoint", "options", "waits_on"),
    [
        ("sdk-cli", ["-p", "--", "hello"], False),
        ("sdk-cli", ["-p", "--", "what is --input-format stream-json?"], False),
        ("sdk-cli", ["-p", "--input-format", "stream-json"], True),
        ("sdk-cli", ["-p", "--input-format=stream-json"], True),
        ("cli", ["hello"], True),
    ],
)
def test_the_hook_form_keeps_nobody_who_was_given_a_single_prompt(
    bus: ThrowAwayBus, entrypoint: str, options: list[str], waits_on: bool
) -> None:
    sam = bus.attach("Sam", conversation="p-1")
    claude = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", *options])
    env = {"CLAUDE_CODE_ENTRYPOINT": entrypoint, "CLAUDE_PID": str(claude.pid)}
    with started(bus, "wait", "--hook", stdin={"session_id": "p-1"}, env=env) as process:
        if waits_on:
            eventually(lambda: waits(bus) == 1, what="the wait is known")
            sam.close()
        assert end(process) == (0, "", "")
    claude.kill()
    claude.wait()
    sam.close()


def test_wait_ends_by_time_by_replacement_and_with_its_harness(bus: ThrowAwayBus) -> None:
    bus.attach("Sam", conversation="e-1").close()
    with started(bus, "wait", "--session", "e-1", "--timeout", "0.2") as process:
        assert end(process)[0] == EXIT_TIMEOUT
    with started(bus, "wait", "--session", "e-1") as older:
        eventually(lambda: waits(bus) == 1, what="the wait is known")
        harness = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with started(
            bus, "wait", "--session", "e-1", env={"CLAUDE_PID": str(harness.pid)}
        ) as newer:
            assert end(older)[0] == EXIT_REPLACED
            harness.kill()
            harness.wait()
            assert end(newer)[0] == EXIT_HARNESS_GONE
    eventually(lambda: waits(bus) == 0, what="nobody waits")


def test_a_shell_in_between_is_not_what_a_wait_belongs_to() -> None:
    """One that put it into the background is gone while the harness lives."""
    tell = f"{sys.executable} -c 'from agentbus.cli.wait import starter; print(starter())'"
    command = ["sh", "-c", 'bash -c "$1"; true', "sh", f"{tell}; true"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert int(told.stdout) == os.getpid()


def test_without_any_time_wait_tells_what_waits_now(bus: ThrowAwayBus) -> None:
    look = ("wait", "--session", "z-1", "--timeout", "0")
    bus.attach("Zoe", conversation="z-1").close()
    assert agentbus(bus, *look).returncode == EXIT_TIMEOUT
    kim = bus.attach("Kim")
    kim.call("send", channel="general", content="hello")
    kim.close()
    found = agentbus(bus, *look)
    assert found.returncode == EXIT_WOKEN
    assert decode_strict(found.stdout) == {"channel": "general", "waiting": 1}


def test_an_unknown_session_is_an_error_for_people_and_silence_for_hooks(
    bus: ThrowAwayBus,
) -> None:
    refused = agentbus(bus, "wait", "--session", "nobody")
    assert refused.returncode == EXIT_ERROR
    assert "first agentbus tool call" in refused.stderr
    assert agentbus(bus, "wait", "--timeout", "soon").returncode == EXIT_ERROR
    bus.attach("Una", conversation="u-1").close()
    refused = agentbus(bus, "wait", "--session", "u-1", "--channel", "genral")
    assert refused.returncode == EXIT_ERROR
    assert "not subscribed to genral: correct the name" in refused.stderr
    with started(bus, "wait", "--hook", stdin={"session_id": "nobody"}) as process:
        assert end(process) == (0, "", "")


def test_a_wait_outlives_its_daemon_but_not_a_stop_on_purpose() -> None:
    with ThrowAwayBus() as bus:
        bus.attach("Sam", conversation="o-1").close()
        with started(bus, "wait", "--session", "o-1") as process:
            eventually(lambda: waits(bus) == 1, what="the wait is known")
            bus.kill()
            bus.start()
            eventually(lambda: waits(bus) == 1, what="the wait is known to the next daemon")
            bus.attach("Kim").call("send", channel="general", content="hello")
            assert end(process)[0] == EXIT_WOKEN
        bus.attach("Lee", conversation="o-2").close()
        with started(bus, "wait", "--session", "o-2", "--channel", "general") as process:
            eventually(lambda: waits(bus) == 1, what="the wait is known")
            assert agentbus(bus, "stop").returncode == 0
            code, _, err = end(process)
            assert (code, err) == (EXIT_ERROR, "agentbus: the bus was stopped\n")


def test_hook_session_start_introduces_the_bus_and_names_what_waits(bus: ThrowAwayBus) -> None:
    code, out, err = run_hook(bus, "SessionStart", {"session_id": "fresh", "source": "startup"})
    assert (code, err) == (0, "")
    answer = decode_strict(out)["hookSpecificOutput"]
    assert answer["hookEventName"] == "SessionStart"
    assert "call receive" not in answer["additionalContext"]
    bus.attach("Sam", conversation="s-1", application="claude-code").close()
    bus.attach("Kim").call("send", channel="general", content="secret words")
    _, out, _ = run_hook(bus, "SessionStart", {"session_id": "s-1", "source": "resume"})
    text = decode_strict(out)["hookSpecificOutput"]["additionalContext"]
    assert "You are Sam" in text
    assert "1 message waits on general; call receive" in text
    assert "secret" not in text


def test_hook_stop_continues_once(bus: ThrowAwayBus) -> None:
    bus.attach("Rob", conversation="c-1", application="codex").close()
    stop = {"session_id": "c-1", "stop_hook_active": False}
    assert run_hook(bus, "Stop", stop, "--harness", "codex") == (0, "", "")
    bus.attach("Kim").call("send", channel="general", content="hello")
    code, out, _ = run_hook(bus, "Stop", stop, "--harness", "codex")
    assert code == 0
    assert decode_strict(out)["decision"] == "block"
    again = {**stop, "stop_hook_active": True}
    assert run_hook(bus, "Stop", again, "--harness", "codex") == (0, "", "")


def test_hook_session_end_releases_the_conversation(bus: ThrowAwayBus) -> None:
    bus.attach("Sam", conversation="x-1", application="claude-code")
    assert run_hook(bus, "SessionEnd", {"session_id": "x-1", "reason": "clear"}) == (0, "", "")
    with bus.client() as client:
        live = client.request("sessions", {}, 10.0)["sessions"]
    assert "x-1" not in [one["conversation"] for one in live]


@pytest.mark.parametrize("document", [{}, [], "text", {"session_id": 7}, {"session_id": "x" * 999}])
def test_a_hook_that_makes_no_sense_is_silent(bus: ThrowAwayBus, document: Any) -> None:
    assert run_hook(bus, "Stop", document) == (0, "", "")


def test_a_hook_without_a_daemon_is_silent_and_starts_none(stopped_bus: ThrowAwayBus) -> None:
    document = {"session_id": "s"}
    assert run_hook(stopped_bus, "SessionStart", document) == (0, "", "")
    assert not stopped_bus.runtime.directory.exists()


def test_a_hook_does_not_wait_for_a_daemon_that_hangs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThrowAwayBus() as bus:
        assert bus.daemon is not None
        # In this process: what an interpreter takes to start is not what is promised.
        monkeypatch.setenv("AGENTBUS_RUNTIME_DIR", str(bus.runtime.directory))
        took_s = []
        for hangs in (False, True):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"session_id": "s"}')))
            if hangs:
                freeze(bus.daemon.pid)
            began_s = time.monotonic()
            try:
                assert hook({"EVENT": "Stop", "--harness": "codex"}) == 0
            finally:
                os.kill(bus.daemon.pid, signal.SIGCONT)
            took_s.append(time.monotonic() - began_s)
        assert took_s[1] < HOOK_S + took_s[0] + 5.0
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize("text", ["[" * 99999, "\\0", '{"session_id": "\\ud800"}'])
def test_the_hook_form_of_wait_is_silent_about_input_without_sense(
    bus: ThrowAwayBus, text: str
) -> None:
    command = [sys.executable, "-m", "agentbus", "wait", "--hook"]
    ended = subprocess.run(
        command, input=text.encode(), env=bus.environment, cwd=ROOT, capture_output=True, timeout=30
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


@pytest.mark.parametrize("words", ["hook Stop --harness codex", "wait --hook"])
def test_a_hook_that_is_started_with_everything_closed_ends_well(
    bus: ThrowAwayBus, words: str
) -> None:
    command = f"exec {sys.executable} -m agentbus {words} <&- >&- 2>&-"
    ended = subprocess.run(["sh", "-c", command], env=bus.environment, cwd=ROOT, timeout=30)
    assert ended.returncode == 0


def test_a_hook_whose_harness_never_ends_the_input_ends_by_itself(bus: ThrowAwayBus) -> None:
    program = (
        "from agentbus.cli import hook; hook.GIVE_UP_S = 0.2; "
        "hook.hook({'EVENT': 'Stop', '--harness': 'codex'}); raise SystemExit('came back')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, env=bus.environment, cwd=ROOT
    ) as process:
        assert process.wait(30) == 0
