"""Served instances on a whole bus: found, listed, taken over, proven, ended and killed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbus.encoding import decode_strict
from agentbus.talk import TalkError
from agentbus.talk.registry import ANSWER_S, DaemonRegistry
from agentbus.talk.serving import DESCRIPTORS
from tests.bus_fixture import ThrowAwayBus, stop_daemon
from tests.cli.command import agentbus, run
from tests.eventually import eventually
from tests.hooks import is_running
from tests.signals import freeze
from tests.talk.raw_http import post, question
from tests.talk.serving import Serving, client, pids_in, send, served


@pytest.fixture(scope="module")
def bus() -> Iterator[ThrowAwayBus]:
    with ThrowAwayBus(talk_peers="*") as bus:
        yield bus


@pytest.fixture(scope="module")
def worker(bus: ThrowAwayBus) -> Iterator[Serving]:
    with Serving(bus, "worker") as serving:
        yield serving


def test_question_is_answered_on_the_command_line(bus: ThrowAwayBus, worker: Serving) -> None:
    shown = send(bus, "worker", "--is this fine?")
    assert (shown.returncode, shown.stdout) == (0, "--is this fine?\n"), shown.stderr
    shown = send(bus, "worker", "", "--json")
    answer = decode_strict(shown.stdout)
    assert (answer["text"], answer["from"]) == ("", "worker")


def test_failure_is_told_with_its_code_and_whether_to_try_again(bus: ThrowAwayBus) -> None:
    deep = send(bus, "worker", "hello", "--depth", "3")
    assert (deep.returncode, deep.stdout) == (1, "")
    assert deep.stderr.startswith("agentbus: max_depth_exceeded: ")
    absent = send(bus, "nobody", "hello", "--json")
    assert absent.returncode == 75
    assert decode_strict(absent.stdout)["error"]["code"] == "instance_unavailable"


@pytest.mark.parametrize(
    ("options", "stdin", "complaint"),
    [
        (("-",), "é" * 131_073, "the prompt on stdin is over 262144 bytes"),
        (("--depth", "00000000003", "hello"), "", "--depth must be 0 to 1000"),
        (("--from", "", "hello"), "", "--from must be 1 to 128 bytes"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    options: tuple[str, ...], stdin: str, complaint: str, bus: ThrowAwayBus
) -> None:
    _refused(bus, options, complaint, typed=stdin)


def test_depth_of_the_environment_that_makes_no_sense_is_refused(bus: ThrowAwayBus) -> None:
    complaint = "AGENTBUS_TALK_DEPTH must be 0 to 1000, not 'deep'"
    _refused(bus, ("hello",), complaint, AGENTBUS_TALK_DEPTH="deep")


def _refused(
    bus: ThrowAwayBus, options: tuple[str, ...], complaint: str, typed: str = "", **variables: str
) -> None:
    sending = ["-m", "agentbus", "talk", "send", "--config", str(bus.config_path), "--to", "worker"]
    refused = run([*sending, *options], {**bus.environment, **variables}, typed=typed)
    assert refused.returncode == 2
    assert complaint in refused.stderr


def test_nobody_need_read_the_answer(bus: ThrowAwayBus, worker: Serving) -> None:
    sending = f"agentbus talk send --config {bus.config_path} --to worker --from reviewer hello"
    closed = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m {sending} >&-"],
        env=dict(bus.environment),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (closed.returncode, closed.stderr) == (0, "")


def test_as_many_descriptors_as_commands_need_are_asked_for(bus: ThrowAwayBus) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    tell = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # as it mostly is
    try:
        with Serving(bus, "frugal", sys.executable, "-c", tell):
            assert int(client(bus).ask("frugal", "how many?").text) == enough
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("result", "\udcff"), "MESSAGE_ID"),
        (("serve", "--instance", "x", "--kind", "\udcff", "--peer"), "--kind"),
    ],
    ids=("result", "kind"),
)
def test_argument_that_is_no_text_is_refused(
    arguments: tuple[str, ...], what: str, bus: ThrowAwayBus
) -> None:
    refused = agentbus(bus, "talk", *arguments)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"agentbus: {what} holds a lone surrogate")


def test_daemon_that_hangs_takes_no_more_than_the_time_of_the_question() -> None:
    with ThrowAwayBus(talk_peers="*") as own_bus:
        freeze(own_bus.daemon.pid)
        began_s = time.monotonic()
        with pytest.raises(TalkError) as caught:
            client(own_bus, timeout_s=0.5).ask("worker", "hello")
        assert caught.value.code == "instance_unavailable"
        assert time.monotonic() - began_s < ANSWER_S
        os.kill(own_bus.daemon.pid, signal.SIGCONT)


def test_list_shows_what_is_served(bus: ThrowAwayBus, worker: Serving) -> None:
    def shown() -> list[tuple[str, int, int]]:
        rows = decode_strict(agentbus(bus, "talk", "list", "--json").stdout)["instances"]
        return [(row["instance"], row["port"], row["pid"]) for row in rows]

    # It has 500 ms to show that it is there, and 10 s later another chance.
    eventually(lambda: shown() == [("worker", worker.port, worker.process.pid)])
    eventually(lambda: "worker" in agentbus(bus, "talk", "list").stdout)


def test_name_that_is_served_is_refused_to_a_second_process(
    bus: ThrowAwayBus, worker: Serving
) -> None:
    with pytest.raises(AssertionError, match="worker is served already, by process"):
        Serving(bus, "worker")
    assert client(bus).ask("worker", "still there").text == "still there"


def test_port_in_use_is_refused(bus: ThrowAwayBus, worker: Serving) -> None:
    with pytest.raises(AssertionError, match="choose another --port"):
        Serving(bus, "other", options=("--port", str(worker.port)))


def test_who_serves_while_talk_is_off_is_told(
    bus: ThrowAwayBus, worker: Serving, tmp_path: Path
) -> None:
    config_path = tmp_path / "empty.json"
    config_path.write_text("{}")
    port = ("--port", str(worker.port))  # in use, so that it ends
    muted = agentbus(
        bus,
        *("talk", "serve", "--instance", "muted", "--config", str(config_path), *port),
        "--peer",
    )
    assert f"talk_peers of {config_path}" in muted.stderr


def test_secret_of_one_instance_opens_no_other(bus: ThrowAwayBus, worker: Serving) -> None:
    with Serving(bus, "other") as other:
        found = DaemonRegistry(bus.runtime).find("other", "reviewer")
        assert found is not None
        assert client(bus).ask("other", "hello", secret=found.secret).text == "hello"
        with pytest.raises(TalkError) as caught:
            client(bus).ask("worker", "hello", secret=found.secret)
        assert caught.value.code == "auth_failed"
        for port in (worker.port, other.port):
            assert post(port, question()).code == "auth_failed"


def test_secret_in_a_file_is_known_to_nobody_else(bus: ThrowAwayBus) -> None:
    path = bus.directory / "secret"
    path.touch(0o600)
    path.write_text("only-for-friends\n")
    with Serving(bus, "private", options=("--secret-file", str(path), "--kind", "bridge")):
        with pytest.raises(TalkError) as caught:
            client(bus).ask("private", "hello")
        assert caught.value.code == "auth_failed"
        shown = send(bus, "private", "hello", "--secret-file", str(path))
        assert (shown.stdout, shown.stderr) == ("hello\n", "")


@pytest.mark.parametrize("content", ["", "\n", "two words", "é", "x" * 5000])
def test_file_without_a_usable_secret_is_refused(content: str, bus: ThrowAwayBus) -> None:
    path = bus.directory / "bad-secret"
    path.write_text(content)
    shown = send(bus, "worker", "hello", "--secret-file", str(path))
    assert shown.returncode == 2
    assert "must hold a secret" in shown.stderr


def test_url_reaches_a_server_without_the_registry(bus: ThrowAwayBus) -> None:
    path = bus.directory / "shared"
    path.touch(0o600)
    path.write_text("shared-secret")
    with Serving(bus, "apart", options=("--secret-file", str(path))) as apart:
        url = f"http://127.0.0.1:{apart.port}"
        shown = send(bus, "apart", "hello", "--url", url, "--secret-file", str(path))
        assert (shown.returncode, shown.stdout) == (0, "hello\n"), shown.stderr


class Asking:
    """A question that is under way, in a thread."""

    def __init__(self, bus: ThrowAwayBus, to: str) -> None:
        self._errors: list[TalkError] = []
        self._thread = threading.Thread(target=self._ask, args=(bus, to))
        self._thread.start()

    def _ask(self, bus: ThrowAwayBus, to: str) -> None:
        try:
            client(bus).ask(to, "wait")
        except TalkError as error:
            self._errors.append(error)

    def error(self) -> TalkError:
        """What came of it, which has to be an error."""
        self._thread.join()
        return self._errors[0]


# --- names ---


def test_served_name_cannot_be_used_by_others(bus: ThrowAwayBus, worker: Serving) -> None:
    with Serving(bus, "other"):
        with pytest.raises(TalkError) as caught:
            client(bus, "worker").ask("other", "I am worker")
        assert caught.value.code == "peer_not_allowed"


def test_conversation_of_an_agent_may_use_its_name(bus: ThrowAwayBus) -> None:
    with Serving(bus, "Robin"), Serving(bus, "other"), bus.attach("Robin"):
        # The attachment is one of this process, and the command line descends from it.
        assert client(bus, "Robin").ask("other", "in process").text == "in process"
        shown = send(bus, "other", "as a command", "--from", "Robin")
        assert shown.stdout == "as a command\n", shown.stderr


def test_command_asks_on_in_its_own_name_one_level_deeper(bus: ThrowAwayBus) -> None:
    ask_on = f"{sys.executable} -m agentbus talk send --config {bus.config_path} --to"
    tell = 'echo "at depth $AGENTBUS_TALK_DEPTH"'
    with (
        Serving(bus, "last", "sh", "-c", tell),
        Serving(bus, "middle", "sh", "-c", f"{ask_on} last x"),
        Serving(bus, "first", "sh", "-c", f"{ask_on} middle x"),
    ):
        assert client(bus).ask("middle", "go").text == "at depth 2\n"
        with pytest.raises(TalkError, match="max_depth_exceeded: depth 3 is not below"):
            client(bus).ask("first", "go")


# --- ends ---


def test_killed_server_is_not_found_and_leaves_no_command(
    bus: ThrowAwayBus, tmp_path: Path
) -> None:
    pids_path = tmp_path / "pids"
    slow = f"sleep 60 & echo $$ $! > {pids_path}.new; mv {pids_path}.new {pids_path}; wait"
    with Serving(bus, "doomed", "sh", "-c", slow) as doomed:
        asking = Asking(bus, "doomed")
        pids = pids_in(pids_path, 2)
        assert all(map(is_running, pids))
        doomed.end(signal.SIGKILL)
        assert asking.error().code == "instance_unavailable"
        eventually(lambda: not any(map(is_running, pids)))
    eventually(lambda: "doomed" not in served(bus))
    with pytest.raises(TalkError) as caught:
        client(bus).ask("doomed", "hello")
    assert caught.value.code == "instance_unavailable"


def test_server_that_is_stopped_answers_what_is_under_way_and_ends(
    bus: ThrowAwayBus, tmp_path: Path
) -> None:
    pids_path = tmp_path / "pids"
    slow = f"echo $$ > {pids_path}.new; mv {pids_path}.new {pids_path}; sleep 60"
    with Serving(bus, "ending", "sh", "-c", slow) as ending:
        asking = Asking(bus, "ending")
        (pid,) = pids_in(pids_path, 1)
        assert ending.end() == 0
        error = asking.error()
    assert (error.code, error.message) == (
        "instance_unavailable",
        "the server was stopped meanwhile",
    )
    eventually(lambda: not is_running(pid))


def test_server_that_hangs_loses_its_name_to_the_next(bus: ThrowAwayBus) -> None:
    with Serving(bus, "hanging") as hanging:
        freeze(hanging.process.pid)
        with Serving(bus, "hanging") as second:
            assert served(bus)["hanging"] == second.process.pid
            assert client(bus).ask("hanging", "hello").text == "hello"
        hanging.end(signal.SIGKILL)


def test_list_forgets_what_does_not_answer(bus: ThrowAwayBus) -> None:
    with Serving(bus, "silent") as silent:
        freeze(silent.process.pid)
        shown = decode_strict(agentbus(bus, "talk", "list", "--json").stdout)["instances"]
        assert "silent" not in [row["instance"] for row in shown]
        assert "silent" not in served(bus)
        silent.end(signal.SIGKILL)


def test_without_a_daemon_there_is_nothing_to_list_and_nobody_to_ask() -> None:
    bus = ThrowAwayBus(talk_peers="*")
    try:
        assert agentbus(bus, "talk", "list").returncode == 3
        shown = send(bus, "worker", "hello")
        assert (shown.returncode, shown.stdout) == (75, "")
        assert "instance_unavailable: " in shown.stderr
        assert bus.state() is None, "a question starts no daemon"
    finally:
        bus.close()


def test_next_daemon_hears_what_is_served() -> None:
    with ThrowAwayBus(talk_peers="*") as own_bus, Serving(own_bus, "worker"):
        own_bus.kill()
        try:
            eventually(lambda: own_bus.state() == "ready", what="a daemon that the server started")
            eventually(lambda: "worker" in served(own_bus))
            assert client(own_bus).ask("worker", "hello").text == "hello"
        finally:
            stop_daemon(own_bus.runtime)
        with pytest.raises(TalkError) as caught:
            client(own_bus).ask("worker", "hello")
        assert caught.value.code == "instance_unavailable"
        assert own_bus.state() is None, "a daemon that was stopped on purpose is not started again"
        own_bus.start()
        eventually(lambda: "worker" in served(own_bus))
