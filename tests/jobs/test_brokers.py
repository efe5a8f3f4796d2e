"""Jobs over NATS and Redis, both as real servers: durable, in order, at least once, with cancel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import redis as redis_package

from agentbus.errors import ConflictError, TooLargeError, ValidationError
from agentbus.jobs import Cancellation, Event, JobCancelledError, JobEmitter, SinkError
from agentbus.jobs.brokers import nats_jetstream, open_transport, redis_streams
from agentbus.jobs.brokers.base import (
    RETENTION_S,
    JobTransport,
    cancel_reason,
    encode_cancel,
    events_name,
)
from agentbus.jobs.events import (
    Accepted,
    Succeeded,
    Warned,
    decode_event,
    encode_event,
    is_terminal,
)
from agentbus.jobs.inbox import JobInbox
from agentbus.jobs.sinks.broker import BrokerSink
from agentbus.limits import MIB
from tests.eventually import eventually
from tests.jobs.many import TOOL, measure
from tests.jobs.servers import Server, free_port

TS = "2026-01-02T03:04:05.678Z"
WITHIN_S = 50.0


@pytest.fixture
def job_id(request: pytest.FixtureRequest) -> str:
    """One that no other test has used."""
    return f"job-{abs(hash(request.node.nodeid))}-{os.getpid()}"


@contextmanager
def connected(server: Server) -> Iterator[JobTransport]:
    transport = open_transport(server.url)
    try:
        yield transport
    finally:
        transport.close()


def read_to_end(server: Server, job_id: str, from_seq: int = 0) -> list[Event]:
    """Every event up to the terminal one, each once."""
    inbox = JobInbox(job_id)
    events = []
    with connected(server) as transport, timed_out() as stop:
        for document in transport.follow(job_id, from_seq, stop):
            event = decode_event(document)
            if inbox.put(event):
                events.append(event)
            if is_terminal(event):
                return events
    raise AssertionError(f"no terminal event, only {len(events)} events")


@contextmanager
def timed_out() -> Iterator[threading.Event]:
    """Set when the time of a test is nearly over."""
    stop = threading.Event()
    timer = threading.Timer(WITHIN_S, stop.set)
    timer.start()
    yield stop
    timer.cancel()


def emitted(server: Server, job_id: str, count: int) -> None:
    job: JobEmitter[Any, Any, Any]
    with JobEmitter(BrokerSink(open_transport(server.url), job_id), job_id) as job:
        job.accepted("https://example.com/é")
        for number in range(count):
            job.progress("count", message=str(number))
        job.succeeded(count)


def test_a_reader_that_comes_after_the_end_reads_everything(broker: Server, job_id: str) -> None:
    emitted(broker, job_id, 20)
    events = read_to_end(broker, job_id)
    assert [event.seq for event in events] == list(range(22))
    assert isinstance(events[0], Accepted)
    assert events[0].url == "https://example.com/é"


def test_a_reader_may_begin_at_any_event(broker: Server, job_id: str) -> None:
    emitted(broker, job_id, 5)
    assert [event.seq for event in read_to_end(broker, job_id, 4)] == [4, 5, 6]
    assert [event.seq for event in read_to_end(broker, job_id, 6)] == [6]


def test_readers_that_come_early_late_and_in_between_read_the_same(
    broker: Server, job_id: str
) -> None:
    seen: dict[str, list[int]] = {}

    def read(name: str) -> None:
        seen[name] = [event.seq for event in read_to_end(broker, job_id)]

    early = threading.Thread(target=read, args=("early",))
    early.start()
    tool = subprocess.Popen([sys.executable, "-c", TOOL, broker.url, job_id, "500"])
    between = threading.Thread(target=read, args=("between",))
    between.start()
    assert tool.wait(WITHIN_S) == 0
    read("late")
    early.join()
    between.join()
    assert seen == {name: list(range(502)) for name in ("early", "between", "late")}


def test_a_parent_that_is_killed_in_the_middle_takes_nothing_with_it(broker: Server) -> None:
    figures = measure(broker.url, 1000, WITHIN_S)
    assert figures.seqs == list(range(1002))


def test_a_broker_that_is_killed_and_comes_back_has_lost_nothing(
    broker: Server, job_id: str
) -> None:
    seen: list[int] = []
    reading = threading.Thread(
        target=lambda: seen.extend(event.seq for event in read_to_end(broker, job_id))
    )
    job: JobEmitter[Any, Any, Any]
    with JobEmitter(BrokerSink(open_transport(broker.url), job_id), job_id) as job:
        job.accepted("u")
        reading.start()
        for number in range(50):
            if number == 25:
                broker.kill()
                threading.Timer(0.3, broker.start).start()
            job.progress("count", message=str(number))
        job.succeeded(1)
    assert [event.seq for event in read_to_end(broker, job_id)] == list(range(52))
    reading.join()
    assert sorted(set(seen)) == list(range(52))


def test_the_same_event_again_is_one_event(broker: Server, job_id: str) -> None:
    event = encode_event(Accepted(job_id=job_id, seq=0, ts=TS, url="u"))
    for _ in range(2):
        with connected(broker) as transport:
            for _ in range(2):
                transport.publish(job_id, 0, event, is_terminal=False)
    with connected(broker) as one:
        end = encode_event(Warned(job_id=job_id, seq=1, ts=TS, message="m"))
        one.publish(job_id, 1, end, is_terminal=True)
        stop = threading.Event()
        follower = one.follow(job_id, 0, stop)
        assert [next(follower), next(follower)] == [event, end]
        stop.set()
        assert list(follower) == []


def test_nats_says_at_once_that_an_event_is_too_large_for_it(nats: Server, job_id: str) -> None:
    large = Succeeded(job_id=job_id, seq=0, ts=TS, result="x" * (MIB - 100))
    with connected(nats) as transport, pytest.raises(TooLargeError):
        transport.publish(job_id, 0, encode_event(large), is_terminal=True)


@pytest.mark.parametrize("name", ["nats", "redis"])
def test_another_event_under_a_known_sequence_is_refused(
    name: str, request: pytest.FixtureRequest, job_id: str
) -> None:
    """NATS itself would drop it as a repeat, and the emitter would never know."""
    with connected(request.getfixturevalue(name)) as transport:
        for seq in (0, 1):
            event = encode_event(Warned(job_id=job_id, seq=seq, ts=TS, message="m"))
            transport.publish(job_id, seq, event, is_terminal=False)
        other = encode_event(Warned(job_id=job_id, seq=0, ts=TS, message="n"))
        with pytest.raises(ConflictError):
            transport.publish(job_id, 0, other, is_terminal=False)


def test_redis_forgets_a_job_that_never_ended_too(redis: Server, job_id: str) -> None:
    warned = encode_event(Warned(job_id=job_id, seq=0, ts=TS, message="m"))
    with connected(redis) as transport, closing(redis_package.Redis.from_url(redis.url)) as client:
        transport.publish(job_id, 0, warned, is_terminal=False)
        left_s = client.ttl(events_name(job_id))
        assert RETENTION_S - WITHIN_S < left_s <= RETENTION_S


@pytest.mark.parametrize("when", ["before it listens", "while it works"])
def test_a_cancel_reaches_the_job(broker: Server, job_id: str, when: str) -> None:
    cancellation = Cancellation()
    if when == "before it listens":
        with connected(broker) as parent:
            parent.cancel(job_id, "no longer needed")
    sink = BrokerSink(open_transport(broker.url), job_id, cancellation)
    job: JobEmitter[Any, Any, Any] = JobEmitter(sink, job_id, cancellation=cancellation)
    job.accepted("u")
    if when == "while it works":
        assert not cancellation.is_requested
        with connected(broker) as parent:
            parent.cancel(job_id, "no longer needed")
    assert cancellation.wait(WITHIN_S)
    with pytest.raises(JobCancelledError, match="no longer needed"), job:
        cancellation.check()
    *_, end = read_to_end(broker, job_id)
    assert (end.TYPE, end.code) == ("failed", "cancelled")  # type: ignore[union-attr]


def test_a_cancel_is_for_one_job_only(broker: Server, job_id: str) -> None:
    mine, others = Cancellation(), Cancellation()
    with connected(broker) as one, connected(broker) as two:
        one.listen(job_id, mine.request)
        two.listen(job_id + "-other", others.request)
        one.cancel(job_id, "r")
        assert mine.wait(WITHIN_S)
        assert not others.is_requested


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"{}", b'{"type":"other"}', b"\xff", b'{"type":"cancel"}']
)
def test_only_a_cancel_is_a_cancel(document: bytes) -> None:
    reason = cancel_reason(document)
    assert reason == ("cancelled" if b'"cancel"' in document else None)
    assert cancel_reason(encode_cancel("j", "r" * 1000)) == "r" * 200


@pytest.mark.parametrize("scheme", ["redis", "nats"])
def test_a_broker_that_is_not_there_is_said_in_bounded_time(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_jetstream, "PATIENCE_S", 0.5)
    monkeypatch.setattr(nats_jetstream, "CONNECT_S", 0.5)
    monkeypatch.setattr(redis_streams, "PATIENCE_S", 0.5)
    monkeypatch.setattr(redis_streams, "RETRIES", 2)
    transport = open_transport(f"{scheme}://127.0.0.1:{free_port()}")
    with pytest.raises(SinkError, match="keep event 0"):
        transport.publish("j", 0, b"{}", is_terminal=False)
    with pytest.raises(SinkError, match="did not show"):
        list(transport.follow("j", 0, threading.Event()))
    transport.close()


@pytest.mark.parametrize(
    "url", ["", "nothing", "http://a/", "redis+x://a", "redis://a:port", "nats://[a"]
)
def test_a_url_that_names_no_broker_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        open_transport(url)


@pytest.mark.parametrize("unfit", ["a.b", "a*", ">"])
def test_a_job_id_that_is_no_subject_is_refused_by_nats(nats: Server, unfit: str) -> None:
    with connected(nats) as transport, pytest.raises(ValidationError, match="NATS subject"):
        transport.publish(unfit, 0, b"{}", is_terminal=False)


def test_a_tool_that_ignores_cancels_can_still_be_ended(broker: Server, job_id: str) -> None:
    tool = subprocess.Popen([sys.executable, "-c", TOOL, broker.url, job_id, "1000000"])
    with connected(broker) as transport, timed_out() as stop:
        assert next(transport.follow(job_id, 0, stop))
    tool.send_signal(signal.SIGKILL)
    assert eventually(lambda: tool.poll() is not None)
