"""Jobs over a daemon that is killed, and what people see of them at the command line."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from agentbus.encoding import decode_strict
from agentbus.errors import (
    ConflictError,
    JobClosedError,
    TooLargeError,
    UnavailableError,
    ValidationError,
)
from agentbus.failpoints import VARIABLE
from agentbus.jobs import Cancellation, Failed, JobEmitter, SinkError, decode_event, encode_event
from agentbus.jobs.brokers import local_bus, open_transport
from agentbus.jobs.brokers.local_bus import BusTransport
from agentbus.jobs.receiver import CallbackReceiver
from agentbus.jobs.settings import job_settings, open_sink
from agentbus.jobs.sinks.broker import BrokerSink
from tests.bus_fixture import ThrowAwayBus
from tests.cli.command import agentbus, agentbus_admin
from tests.eventually import eventually
from tests.jobs.emitting import Emitting
from tests.jobs.servers import Answer, ScriptedServer

WITHIN_S = 50.0


@pytest.fixture
def throw_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThrowAwayBus]:
    """Not started; this process and its children find it as tools do."""
    with closing(ThrowAwayBus()) as bus:
        monkeypatch.setenv("AGENTBUS_RUNTIME_DIR", str(bus.runtime.directory))
        yield bus


@pytest.fixture(scope="module")
def shared() -> Iterator[ThrowAwayBus]:
    with ThrowAwayBus() as bus, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTBUS_RUNTIME_DIR", str(bus.runtime.directory))
        yield bus


def url(bus: ThrowAwayBus) -> str:
    return f"agentbus:{bus.config_path}"


# --- killed between two steps ---


@pytest.mark.parametrize("point", ["before_callback", "after_callback"])
def test_a_callback_arrives_after_the_daemon_was_killed_before_it(
    throw_away: ThrowAwayBus, point: str
) -> None:
    """Once by its idempotency key: what had left before the end comes again, as the same event."""
    bus, secret = throw_away, "s3cret"
    bus.environment[VARIABLE] = f"{point}@2"
    bus.start()
    with CallbackReceiver(secret) as receiver:
        inbox = receiver.expect("cake")
        callback = {"url": receiver.url("cake"), "secret": secret}
        with Emitting(bus.runtime.socket, **callback) as job:
            job.emit(0, "accepted")
            eventually(lambda: inbox.next_seq == 1)
            with suppress(UnavailableError):  # the end may outrun the answer
                job.emit(1, "succeeded")
            assert bus.wait_ended() == -signal.SIGKILL
        assert (inbox.next_seq == 1) == (point == "before_callback")
        del bus.environment[VARIABLE]
        bus.start()
        assert inbox.wait_terminal(WITHIN_S) is not None
        client = bus.client()
        answer = eventually(lambda: _delivered(client))
        assert [job["outcome"] for job in answer["jobs"]] == ["succeeded"]
        arrived = [inbox.next(0), inbox.next(0), inbox.next(0)]
        assert [arrival and arrival.event.seq for arrival in arrived] == [0, 1, None]


def _delivered(client: Any) -> Any:
    answer = client.request("job_list", {}, WITHIN_S)
    return answer if answer["callbacks"] == {"pending": 0, "dead": 0} else None


def test_the_repeat_has_the_same_idempotency_key(throw_away: ThrowAwayBus) -> None:
    bus = throw_away
    bus.environment[VARIABLE] = "after_callback"
    bus.start()
    with ScriptedServer(Answer(200)) as server:
        with Emitting(bus.runtime.socket, url=server.url) as job:
            with suppress(UnavailableError):
                job.emit(0, "succeeded")
            assert bus.wait_ended() == -signal.SIGKILL
        del bus.environment[VARIABLE]
        bus.start()
        eventually(lambda: len(server.got) == 2)
        assert [got.headers["idempotency-key"] for got in server.got] == ["cake:0", "cake:0"]
        assert server.got[0].body == server.got[1].body


@pytest.mark.parametrize("ahead", ["", "?ahead=31"])
@pytest.mark.parametrize("point", ["before_commit@2", "after_commit@2"])
def test_an_emitter_goes_on_after_the_daemon_was_killed_around_a_commit(
    throw_away: ThrowAwayBus, point: str, ahead: str
) -> None:
    """It starts the next daemon itself, and repeats what nobody acknowledged."""
    bus = throw_away
    bus.environment[VARIABLE] = point
    bus.start()
    job: JobEmitter[Any, Any, Any]
    with JobEmitter(BrokerSink(open_transport(url(bus) + ahead), "cake"), "cake") as job:
        job.accepted("u")
        for number in range(60):  # more than one batch, however many are on their way
            job.progress("count", message=str(number))
        job.succeeded(1)
    assert bus.wait_ended() == -signal.SIGKILL
    with (
        closing(open_transport(url(bus))) as transport,
        closing(transport.follow("cake", 0, threading.Event())) as follower,
    ):
        assert [decode_event(next(follower)).seq for _ in range(62)] == list(range(62))
    agentbus(bus, "stop")


def test_a_callback_that_the_environment_names_is_the_buss_to_post(
    shared: ThrowAwayBus,
) -> None:
    with ScriptedServer() as server:
        settings = job_settings(
            {
                "X_TRANSPORT": "broker",
                "X_BROKER_URL": url(shared),
                "X_JOB_ID": "posted",
                "X_CALLBACK_URL": f"{server.url}/posted",
                "X_CALLBACK_SECRET": "s",
                "X_CALLBACK_ALLOWED_HOSTS": "127.0.0.1",
            },
            "X_",
        )
        job: JobEmitter[Any, Any, Any]
        with JobEmitter(open_sink(settings, Cancellation()), "posted") as job:
            job.accepted("u")
            job.succeeded(1)
        eventually(lambda: len(server.got) == 2)
        assert [got.headers["idempotency-key"] for got in server.got] == ["posted:0", "posted:1"]
        assert "x-signature" in server.got[0].headers


def test_a_callback_that_must_not_be_called_is_refused_before_any_work() -> None:
    settings = job_settings(
        {"X_TRANSPORT": "broker", "X_BROKER_URL": "agentbus:", "X_CALLBACK_URL": "ftp://h/"}, "X_"
    )
    with pytest.raises(ValidationError):
        open_sink(settings, Cancellation())


# --- the transport ---


def publish(transport: Any, job_id: str, seq: int, kind: str = "failed", **fields: Any) -> None:
    event = Failed(
        job_id=job_id, seq=seq, ts="2026-01-02T03:04:05.678Z", code="c", message=fields["message"]
    )
    transport.publish(job_id, seq, encode_event(event), is_terminal=True)


def test_what_the_bus_refuses_is_said_as_what_it_is(shared: ThrowAwayBus) -> None:
    with closing(open_transport(url(shared))) as transport:
        publish(transport, "refused", 0, message="m")
        publish(transport, "refused", 0, message="m")
        with pytest.raises(JobClosedError):
            publish(transport, "refused", 0, message="n")
        with pytest.raises(JobClosedError):
            publish(transport, "refused", 1, message="m")
    with closing(open_transport(url(shared))) as transport:
        for seq in (0, 1):
            event = {"job_id": "order", "seq": seq, "ts": "2026-01-02T03:04:05.678Z"}
            document = b'{"job_id":"order","seq":%d,"ts":"%s","type":"warning","message":"m"}'
            body = document % (seq, event["ts"].encode())  # type: ignore[attr-defined]
            transport.publish("order", seq, body, is_terminal=False)
        with pytest.raises(ConflictError):
            publish(transport, "order", 0, message="m")
        large = b'{"job_id":"order","seq":2,"ts":"2026-01-02T03:04:05.678Z",'
        large += b'"type":"succeeded","result":"' + b"x" * 70_000 + b'"}'
        with pytest.raises(TooLargeError):
            transport.publish("order", 2, large, is_terminal=True)


@pytest.mark.parametrize("ahead", ["", "?ahead=31"])
def test_a_result_that_does_not_fit_a_message_ends_the_job_with_a_failure(
    shared: ThrowAwayBus, ahead: str
) -> None:
    job_id = f"large{ahead[1:]}"
    sink = BrokerSink(open_transport(url(shared) + ahead), job_id)
    job: JobEmitter[str, str, str] = JobEmitter(sink, job_id)
    job.accepted("u")
    with pytest.raises(TooLargeError), job:
        job.succeeded("x" * 70_000)
    tail = agentbus(shared, "job", "tail", job_id)
    assert [decode_event(line).TYPE for line in tail.stdout.splitlines()] == ["accepted", "failed"]


def test_events_ahead_of_their_acknowledgement_keep_their_order(shared: ThrowAwayBus) -> None:
    """Beyond the rate of a session most of them are refused at first."""
    job: JobEmitter[Any, Any, Any]
    with JobEmitter(BrokerSink(open_transport(url(shared) + "?ahead=31"), "many"), "many") as job:
        job.accepted("u")
        for number in range(200):  # the rate is 100 a second
            job.progress("count", message=str(number))
        job.succeeded(1)
    with (
        closing(open_transport(url(shared))) as transport,
        closing(transport.follow("many", 0, threading.Event())) as follower,
    ):
        assert [decode_event(next(follower)).seq for _ in range(202)] == list(range(202))


def test_of_events_ahead_none_passes_one_that_is_refused(shared: ThrowAwayBus) -> None:
    good = b'{"job_id":"ahead","seq":%d,"ts":"2026-01-02T03:04:05.678Z","type":"warning"'
    good += b',"message":"m"}'
    with closing(open_transport(url(shared) + "?ahead=31")) as transport:
        transport.publish("ahead", 0, good % 0, is_terminal=False)
        transport.publish("ahead", 1, good[:-1] % 1 + b',"other":1}', is_terminal=False)
        transport.publish("ahead", 2, good % 2, is_terminal=False)
        with pytest.raises(ValidationError):
            publish(transport, "ahead", 3, message="m")
        transport.publish("ahead", 4, good % 4, is_terminal=False)
        publish(transport, "ahead", 5, message="m")
    client = shared.client()
    answer = client.request("job_events", {"job_id": "ahead"}, WITHIN_S)
    assert [event["seq"] for event in answer["events"]] == [0, 4, 5]
    assert answer["missing"] == [[1, 3]]


@pytest.mark.parametrize(
    "wrong",
    ["agentbus:x", "agentbus://h", "agentbus:relative/path", "agentbus:?ahead=32", "agentbus:?a=1"],
)
def test_a_url_that_is_none_of_the_bus_is_refused(wrong: str) -> None:
    with pytest.raises(ValidationError, match="local bus"):
        BusTransport(wrong)


def test_a_bus_that_does_not_start_is_said_in_bounded_time(
    throw_away: ThrowAwayBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_bus, "PUBLISH_S", 0.5)
    throw_away.config_path.write_text('{"data_directory": "/proc/nowhere"}')
    with (
        closing(open_transport(url(throw_away))) as transport,
        pytest.raises((SinkError, ValidationError)),
    ):
        publish(transport, "cake", 0, message="m")


# --- the command line ---


def test_a_tool_that_is_killed_is_lost_at_once_for_everybody(shared: ThrowAwayBus) -> None:
    puppet = [sys.executable, "-m", "tests.jobs.puppet", "accepted", "die"]
    ran = agentbus(shared, "job", "run", "--sink", url(shared), "--job", "killed", "--", *puppet)
    assert ran.returncode == 1, ran.stderr
    tail = agentbus(shared, "job", "tail", "killed", "--broker", url(shared))
    end = decode_event(tail.stdout.splitlines()[-1])
    assert isinstance(end, Failed)
    assert (end.code, end.synthetic, end.seq) == ("lost", True, 1)
    assert tail.returncode == 1


def test_jobs_are_listed_tailed_and_cancelled(shared: ThrowAwayBus) -> None:
    puppet = [sys.executable, "-m", "tests.jobs.puppet", "accepted", "await-cancel"]
    running = subprocess.Popen(
        [
            *(sys.executable, "-m", "agentbus", "job", "run", "--sink", url(shared)),
            *("--job", "waits", "--ndjson", "--", *puppet),
        ],
        env=shared.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert running.stdout is not None
    assert decode_event(running.stdout.readline()).TYPE == "accepted"
    listed = decode_strict(agentbus(shared, "job", "list", "--open", "--json").stdout)
    assert "waits" in [job["job_id"] for job in listed["jobs"]]
    assert agentbus(shared, "job", "cancel", "waits").returncode == 0
    assert decode_event(running.stdout.readline()).TYPE == "failed"
    running.stdout.close()
    assert running.wait(WITHIN_S) == 1
    tailed = agentbus(shared, "job", "tail", "waits", "--from", "1")
    assert [decode_event(line).seq for line in tailed.stdout.splitlines()] == [1]
    shown = agentbus(shared, "job", "list")
    assert "waits" in shown.stdout
    assert "cancelled" in shown.stdout


def test_dead_letters_are_listed_and_replayed(shared: ThrowAwayBus) -> None:
    with ScriptedServer(Answer(410, body=b"\x1b[31mgone"), Answer(200)) as server:
        with Emitting(shared.runtime.socket, "dead", url=server.url) as job:
            job.emit(0, "succeeded")
        client = shared.client()
        eventually(lambda: client.request("deadletters_list", {}, WITHIN_S)["dead_letters"])
        shown = agentbus_admin(shared, "deadletters", "list")
        assert "410" in shown.stdout
        assert "\x1b" not in shown.stdout
        listed = decode_strict(agentbus_admin(shared, "deadletters", "list", "--json").stdout)
        [letter] = listed["dead_letters"]
        assert "1 given up" in agentbus(shared, "job", "list").stdout
        replayed = agentbus_admin(shared, "deadletters", "replay", str(letter["id"]))
        assert replayed.stdout == "To be tried again: 1\n"
        eventually(lambda: len(server.got) == 2)
        assert agentbus_admin(shared, "deadletters", "replay", "999").returncode == 1
        assert agentbus_admin(shared, "deadletters", "replay", "--all").returncode == 0
