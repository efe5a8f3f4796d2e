"""`agentbus job run` and `job receive`: every way a job ends, over every transport."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentbus.encoding import decode_strict
from agentbus.jobs import Accepted, Event, Failed, Succeeded, Warned, decode_event, encode_event
from agentbus.jobs import inbox as inbox_module
from agentbus.jobs.brokers import open_transport
from agentbus.jobs.delivery import destination
from agentbus.jobs.events import EVENT_BYTES
from agentbus.jobs.feeds import open_feed, settle
from agentbus.jobs.inbox import JobInbox
from agentbus.jobs.running import JobEnd, exit_code, run_job
from agentbus.jobs.sinks.callback import CallbackSink
from tests.bus_fixture import ROOT
from tests.eventually import eventually
from tests.jobs.servers import Server, free_port

PUPPET = [sys.executable, "-m", "tests.jobs.puppet"]
COMMAND_S = 50
TS = "2026-01-02T03:04:05.678Z"
END = b'{"job_id":"j","seq":0,"ts":"%s","type":"succeeded","result":1}\n' % TS.encode()


@pytest.fixture(params=["events", "file", "file:PATH", "callback", "nats", "redis", "bus"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each transport."""
    if request.param in ("nats", "redis", "bus"):
        return str(request.getfixturevalue(request.param).url)
    return str(request.param).replace("PATH", str(tmp_path / "shared.ndjson"))


def command(*arguments: str, sink: str = "events", ndjson: bool = True) -> list[str]:
    flags = ["--ndjson"] if ndjson else []
    run = [sys.executable, "-m", "agentbus", "job", "run", "--sink", sink, *flags, "--"]
    return [*run, *PUPPET, *arguments]


def run(*arguments: str, **kind: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments, **kind), cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_S
    )


def types(shown: str) -> list[str]:
    events = [decode_event(line) for line in shown.splitlines()]
    assert [event.seq for event in events] == list(range(len(events)))
    assert len({event.job_id for event in events}) <= 1
    return [event.TYPE for event in events]


ALL_OF_IT = ["accepted", "progress:classify", "progress:extract", "warning", "progress:format"]
BRANCHES = {
    "blocked": (["accepted", "blocked_url"], 3),
    "no extraction": (["accepted", "progress:classify", "progress:extract", "extraction"], 4),
    "no formatting": ([*ALL_OF_IT, "formatting"], 5),
    "success": ([*ALL_OF_IT, "succeeded"], 0),
    "usage": (["usage"], 2),
    "general": (["accepted", "general"], 1),
}


@pytest.mark.parametrize("branch", BRANCHES)
def test_each_branch_has_the_same_events_and_exit_code_over_each_transport(
    branch: str, sink: str
) -> None:
    words, code = BRANCHES[branch]
    events, end = followed(*words, sink=sink)
    assert end.exit_code == code
    kinds = ("accepted", "progress", "warning", "succeeded")
    expected = [word.split(":")[0] for word in words]
    assert [event.TYPE for event in events] == [
        word if word in kinds else "failed" for word in expected
    ]
    assert [event.seq for event in events] == list(range(len(words)))


def followed(*words: str, sink: str) -> tuple[list[Event], JobEnd]:
    """The same as the command does, in this process."""
    events: list[Event] = []
    end = run_job(
        [*PUPPET, *words],
        f"job-{uuid.uuid4()}",
        sink,
        show=lambda arrival: events.append(arrival.event),
        log=lambda line: None,
    )
    return events, end


def test_the_command_does_the_same_over_each_transport(sink: str) -> None:
    ran = run("accepted", "progress", "succeeded", sink=sink)
    assert ran.returncode == 0, ran.stderr
    assert types(ran.stdout) == ["accepted", "progress", "succeeded"]


def test_the_result_alone_is_on_stdout_and_the_rest_is_for_people() -> None:
    ran = run("accepted", "progress", "noise", "warning", "succeeded", ndjson=False)
    assert decode_strict(ran.stdout) == {"title": "Plum cake"}
    assert set(ran.stderr.splitlines()) == {
        "accepted https://example.com/plum-cake",
        "extract 50%: half",
        "\x1b[31mnoise\x1b[0m",  # the tool's own stderr is its own
        "warning: no yield is given",
        "succeeded",
    }


def test_the_terminal_event_outranks_the_exit_code() -> None:
    assert run("accepted", "succeeded", "exit:7").returncode == 0
    assert run("accepted", "extraction", "exit:0").returncode == 4
    assert run("accepted", "extraction", "exit:2").returncode == 4


@pytest.mark.parametrize(
    ("code", "status", "exit_with"),
    [
        ("blocked_url", 0, 3),
        ("formatting", 1, 5),
        ("of its own", 42, 42),
        ("of its own", 0, 1),
        ("of its own", -9, 1),
        ("lost", 3, 3),
    ],
)
def test_a_failure_exits_by_the_table_and_else_as_the_tool_did(
    code: str, status: int, exit_with: int
) -> None:
    end = Failed(job_id="j", seq=1, ts=TS, code=code, message="m")
    assert exit_code(end, status) == exit_with
    assert exit_code(Succeeded(job_id="j", seq=1, ts=TS, result=1), status) == 0


@pytest.mark.parametrize(
    ("words", "code", "how"),
    [
        (["accepted", "die"], 1, "signal 9"),
        (["accepted", "exit:0"], 1, "exit code 0"),
        (["accepted", "exit:6"], 6, "exit code 6"),
        (["exit:0"], 1, "exit code 0"),
    ],
)
def test_a_tool_that_ends_without_a_word_is_lost(words: list[str], code: int, how: str) -> None:
    ran = run(*words)
    assert ran.returncode == code
    end = decode_event(ran.stdout.splitlines()[-1])
    assert isinstance(end, Failed)
    assert (end.code, end.synthetic) == ("lost", True)
    assert how in end.message


def test_a_tool_that_is_killed_is_lost_over_each_transport(sink: str) -> None:
    events, end = followed("accepted", "progress", "die", sink=sink)
    assert end.exit_code == 1
    assert [event.TYPE for event in events] == ["accepted", "progress", "failed"]
    assert events[-1] == end.terminal
    assert isinstance(end.terminal, Failed)
    assert (end.terminal.code, end.terminal.synthetic) == ("lost", True)


def test_a_gap_in_the_sequence_is_shown() -> None:
    ran = run("accepted", "gap", "succeeded")
    assert "missing: events 1 to 2" in ran.stderr
    assert ran.returncode == 0


@pytest.mark.parametrize("sink", ["events", "file", "callback"])
def test_a_tool_that_cannot_be_started_is_said(sink: str) -> None:
    ran = agentbus_job("run", "--sink", sink, "--", "no-such-tool")
    assert ran.returncode == 1
    assert "no-such-tool" in ran.stderr


@pytest.mark.parametrize("sink", ["agentbus", "http://a/", "events:1", "callback:x", ""])
def test_an_unknown_sink_is_refused(sink: str) -> None:
    ran = run("accepted", sink=sink)
    assert ran.returncode == 2
    assert "known are events, file" in ran.stderr


def test_a_ctrl_c_cancels_the_job_which_says_so(sink: str) -> None:
    with subprocess.Popen(
        command("accepted", "await-cancel", sink=sink),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert decode_event(running.stdout.readline()).TYPE == "accepted"
        running.send_signal(signal.SIGINT)
        rest, complaints = running.communicate(timeout=COMMAND_S)
    end = decode_event(rest.splitlines()[-1])
    assert isinstance(end, Failed), complaints
    assert (end.code, end.message, end.synthetic) == ("cancelled", "as you wish", False)
    assert running.returncode == 1


def test_a_second_ctrl_c_kills_what_does_not_listen() -> None:
    with subprocess.Popen(
        command("accepted", "progress", "hang"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as running:
        assert running.stdout is not None
        for _ in range(2):
            running.stdout.readline()
        while running.poll() is None:
            running.send_signal(signal.SIGINT)
            try:
                running.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        end = decode_event(running.stdout.read().splitlines()[-1])
    assert isinstance(end, Failed)
    assert (end.code, end.synthetic) == ("cancelled", True)


@pytest.mark.parametrize("name", ["nats", "redis"])
def test_a_second_ctrl_c_kills_also_when_the_broker_has_gone(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Neither the cancel, nor the last look, nor the end that nobody else wrote is waited for."""
    server: Server = request.getfixturevalue(name)
    with subprocess.Popen(
        command("accepted", "hang", sink=server.url),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        server.kill()
        try:
            running.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                running.wait(1)  # two signals at once are one
            running.send_signal(signal.SIGINT)
            rest, complaints = running.communicate(timeout=35)
        finally:
            server.start()
    end = decode_event(rest.splitlines()[-1])
    assert isinstance(end, Failed)
    assert (end.code, end.synthetic) == ("cancelled", True)
    assert "Traceback" not in complaints


def test_a_terminal_shows_a_bar_and_what_a_tool_says_moves_no_cursor() -> None:
    ours, theirs = pty.openpty()
    words = ("accepted", "progress:\x1b[31mred", "warning", "succeeded")
    with subprocess.Popen(
        command(*words, ndjson=False),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    ) as running:
        os.close(theirs)
        shown = bytearray()
        while True:
            try:
                shown += os.read(ours, 65536)
            except OSError:
                break  # the other side is closed
            if not shown:
                break
        assert running.stdout is not None
        assert decode_strict(running.stdout.read()) == {"title": "Plum cake"}
    os.close(ours)
    text = shown.decode()
    assert "warning: no yield is given" in text
    assert "\\x1b[31mred" in text
    assert "\x1b[31mred" not in text
    assert "100%" in text


@contextmanager
def receiving(*arguments: str, secret: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`agentbus job receive`, and the URL that it says."""
    with subprocess.Popen(
        [sys.executable, "-m", "agentbus", "job", "receive", "--port", "0", *arguments],
        cwd=ROOT,
        env={**os.environ, "AGENTBUS_CALLBACK_SECRET": secret},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        try:
            line = running.stderr.readline()
            while "listening on " not in line:
                assert line, "ended without listening"
                line = running.stderr.readline()
            yield running, line.split("listening on ")[1].strip()
        finally:
            running.kill()


def test_receive_prints_the_events_of_one_job_and_exits_as_it_ended() -> None:
    with receiving("--job", "cake", secret="s3cret") as (running, url):
        assert url.endswith("/jobs/cake")
        sink = CallbackSink(destination(url, (), "s3cret"))
        sink.emit(Accepted(job_id="cake", seq=0, ts=TS, url="u"))
        sink.emit(Failed(job_id="cake", seq=1, ts=TS, code="extraction", message="no"))
        assert running.wait(COMMAND_S) == 4
        assert running.stdout is not None
        assert types(running.stdout.read()) == ["accepted", "failed"]


def test_receive_without_a_job_takes_all_until_it_is_interrupted() -> None:
    with receiving() as (running, url):
        for job_id in ("one", "two"):
            sink = CallbackSink(destination(url.replace("JOB_ID", job_id)))
            sink.emit(Accepted(job_id=job_id, seq=0, ts=TS, url="u"))
        assert running.stdout is not None
        jobs = {decode_event(running.stdout.readline()).job_id for _ in range(2)}
        assert jobs == {"one", "two"}
        running.send_signal(signal.SIGINT)
        assert running.wait(COMMAND_S) == 0


def test_receive_ends_when_nobody_reads_what_it_prints() -> None:
    """It would go on taking events that nobody gets."""
    with receiving() as (running, url):
        assert running.stdout is not None
        running.stdout.close()
        sink = CallbackSink(destination(url.replace("JOB_ID", "one")))
        sink.emit(Accepted(job_id="one", seq=0, ts=TS, url="u"))
        assert running.wait(COMMAND_S) == 1
        assert running.stderr is not None
        assert running.stderr.read() == ""


def test_tail_and_cancel_reach_a_job_on_a_broker(broker: Server) -> None:
    job_id = f"job-{uuid.uuid4()}"
    at = [job_id, "--broker", broker.url]
    environment = {
        **os.environ,
        "AGENTBUS_TRANSPORT": "broker",
        "AGENTBUS_BROKER_URL": broker.url,
        "AGENTBUS_JOB_ID": job_id,
    }
    tool = subprocess.Popen(
        [*PUPPET, "accepted", "progress", "await-cancel"], cwd=ROOT, env=environment
    )
    assert agentbus_job("cancel", *at).returncode == 0
    assert tool.wait(COMMAND_S) == 0
    shown = agentbus_job("tail", *at)
    assert types(shown.stdout) == ["accepted", "progress", "failed"]
    assert shown.returncode == 1
    later = agentbus_job("tail", *at, "--from", "2")
    assert [decode_event(line).seq for line in later.stdout.splitlines()] == [2]
    assert later.stderr == ""


def test_tail_says_what_was_passed_over(broker: Server) -> None:
    job_id = f"job-{uuid.uuid4()}"
    with closing(open_transport(broker.url)) as transport:
        warned = Warned(job_id=job_id, seq=1, ts=TS, message="m")
        transport.publish(job_id, 1, encode_event(warned), is_terminal=False)
        failed = Failed(job_id=job_id, seq=4, ts=TS, code="general", message="m")
        transport.publish(job_id, 4, encode_event(failed), is_terminal=True)
    shown = agentbus_job("tail", job_id, "--broker", broker.url)
    assert [decode_event(line).seq for line in shown.stdout.splitlines()] == [1, 4]
    missing = ["agentbus: missing: events 0 to 0", "agentbus: missing: events 2 to 3"]
    assert shown.stderr.splitlines() == missing
    assert agentbus_job("tail", job_id, "--broker", broker.url, "--from", "4").stderr == ""


def test_an_id_that_has_events_already_is_refused_before_its_tool_starts(
    broker: Server, tmp_path: Path
) -> None:
    """Else the end of the first run would be shown as that of the second."""
    job_id, words = f"job-{uuid.uuid4()}", ("accepted", "succeeded")
    at = ("--sink", broker.url, "--job", job_id, "--")
    assert agentbus_job("run", *at, *PUPPET, *words).returncode == 0
    again = agentbus_job("run", *at, *PUPPET, f"pid:{tmp_path / 'pid'}", *words)
    assert (again.returncode, again.stdout) == (1, "")
    assert f"events of a job {job_id} on this broker already" in again.stderr
    assert not (tmp_path / "pid").exists()


@pytest.mark.parametrize("scheme", ["redis", "nats"])
def test_a_broker_that_is_not_there_is_said_before_the_tool_starts(
    scheme: str, tmp_path: Path
) -> None:
    began_s = time.monotonic()
    url = f"{scheme}://127.0.0.1:{free_port()}"
    ran = agentbus_job("run", "--sink", url, "--", *PUPPET, f"pid:{tmp_path / 'pid'}")
    assert ran.returncode == 1
    assert "did not show the job" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert not (tmp_path / "pid").exists()
    assert time.monotonic() - began_s < COMMAND_S / 2


def test_a_tool_that_says_nothing_at_all_is_asked_for_its_prefix() -> None:
    ran = run("exit:0", ndjson=False)
    assert "without any event, with exit code 0" in ran.stderr
    assert "AGENTBUS_ (--prefix)" in ran.stderr


def test_who_follows_or_cancels_a_job_that_has_not_begun_is_told(broker: Server) -> None:
    job_id = f"job-{uuid.uuid4()}"
    cancelled = agentbus_job("cancel", job_id, "--broker", broker.url)
    assert cancelled.returncode == 0
    assert f"job {job_id} has not begun" in cancelled.stderr
    with subprocess.Popen(
        [sys.executable, "-m", "agentbus", "job", "tail", job_id, "--broker", broker.url],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    ) as tail:
        assert tail.stderr is not None
        line = tail.stderr.readline()
        tail.kill()
    assert f"waiting for event 0 of job {job_id}" in line


@pytest.mark.parametrize("name", ["nats", "redis"])
def test_what_is_no_event_on_a_broker_is_said_and_passed_over(
    name: str, request: pytest.FixtureRequest
) -> None:
    job_id, url = f"job-{uuid.uuid4()}", request.getfixturevalue(name).url
    end = Failed(job_id=job_id, seq=1, ts=TS, code="extraction", message="m")
    with closing(open_transport(url)) as transport:
        transport.publish(job_id, 0, b"garbage", is_terminal=False)
        transport.publish(job_id, 1, encode_event(end), is_terminal=True)
    for first in ("0", "1"):
        shown = agentbus_job("tail", job_id, "--broker", url, "--from", first)
        assert [decode_event(line) for line in shown.stdout.splitlines()] == [end]
        assert shown.returncode == 4
    logged: list[str] = []
    feed = open_feed(url, inbox := JobInbox("other" + job_id), logged.append)
    feed.start()
    with closing(open_transport(url)) as transport:
        transport.publish(inbox.job_id, 0, b"garbage", is_terminal=False)
        transport.publish(inbox.job_id, 1, encode_event(end), is_terminal=True)
    feed.finish()
    assert inbox.terminal is not None
    assert logged == ["garbage"]


def agentbus_job(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentbus", "job", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("tail", "j", "--broker", "http://a/"),
        ("tail", "j", "--broker", "nats://127.0.0.1:1", "--from", "-1"),
        ("cancel", "a/b", "--broker", "nats://127.0.0.1:1"),
        ("receive", "--port", "65536"),
        ("receive", "--job", "a/b"),
        ("run",),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[str, ...]) -> None:
    refused = agentbus_job(*arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("agentbus: ")


def test_a_shared_file_that_ends_within_a_line_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(b'{"an":"earlier line"}\n{"torn' + b"x" * 200_000)
    events, _ = followed("accepted", "progress", "succeeded", sink=f"file:{path}")
    assert [event.TYPE for event in events] == ["accepted", "progress", "succeeded"]


@pytest.mark.parametrize(
    ("sink", "path"), [("events", "'/dev/stdout'"), ("file", "os.environ['AGENTBUS_EVENTS_PATH']")]
)
def test_a_tool_with_an_id_of_its_own_is_heard_where_nobody_else_writes(
    sink: str, path: str
) -> None:
    writes = f"import os; os.write(os.open({path}, os.O_WRONLY | os.O_CREAT), {END!r})"
    tool = [sys.executable, "-c", writes]
    end = run_job(tool, "ours", sink, show=lambda _: None, log=lambda _: None)
    assert isinstance(end.terminal, Succeeded)
    assert (end.terminal.job_id, end.terminal.source_job_id) == ("ours", "j")


def test_a_line_too_long_to_be_an_event_does_not_hide_what_comes_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    writes = f"open({str(path)!r}, 'ab').write(b'x' * {2 * EVENT_BYTES} + b'\\n' + {END!r})"
    logged: list[str] = []
    tool = [sys.executable, "-c", writes]
    end = run_job(tool, "j", f"file:{path}", show=lambda _: None, log=logged.append)
    assert isinstance(end.terminal, Succeeded)
    assert all(set(line) == {"x"} for line in logged)


def test_the_last_events_of_a_tool_are_waited_for_as_long_as_they_come() -> None:
    inbox = JobInbox("j")
    lasts = [Warned(job_id="j", seq=seq, ts=TS, message="m") for seq in range(3)]

    def is_over(_: float) -> bool:
        if lasts:
            inbox.put(lasts.pop(0))
        return False

    settle(inbox, is_over)
    assert inbox.next_seq == 3


def test_a_slow_reader_makes_those_wait_who_bring_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "UNREAD_MAX", 3)
    inbox = JobInbox("j")

    def bring() -> None:
        for seq in range(7):
            inbox.wait_room()
            inbox.put(Warned(job_id="j", seq=seq, ts=TS, message="m"))

    bringing = threading.Thread(target=bring)
    bringing.start()
    for read in range(3):
        eventually(lambda: inbox.next_seq == 3 + read)  # noqa: B023
        assert inbox.next(0) is not None
    inbox.lift_bound()
    bringing.join(COMMAND_S)
    assert inbox.next_seq == 7


def test_a_parent_that_is_killed_leaves_a_tool_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    with subprocess.Popen(
        command(f"pid:{tmp_path / 'pid'}", "accepted", "await-cancel", sink=f"file:{path}"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        running.kill()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
    assert eventually(lambda: path.read_bytes().count(b"\n") == 2, COMMAND_S)
    assert decode_event(path.read_bytes().splitlines()[-1]).TYPE == "failed"
