"""The parent's end of callbacks, over real requests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpcore2
import pytest

from agentbus.errors import UnavailableError
from agentbus.jobs.delivery import Delivered, Refused, attempt, destination
from agentbus.jobs.events import (
    EVENT_BYTES,
    RESULT_BYTES,
    Accepted,
    Failed,
    Progress,
    Succeeded,
    encode_event,
)
from agentbus.jobs.inbox import JobInbox
from agentbus.jobs.receiver import CallbackReceiver
from agentbus.jobs.signing import sign
from agentbus.jobs.sinks.callback import CallbackSink
from agentbus.rules.jobs import Missing
from tests.clock import FakeClock
from tests.eventually import eventually

SECRET = "s3cret"
TS = "2026-01-02T03:04:05.678Z"
ACCEPTED = encode_event(Accepted(job_id="j", seq=0, ts=TS, url="u"))
SUCCEEDED = encode_event(Succeeded(job_id="j", seq=1, ts=TS, result=1))


@pytest.fixture
def receiver(clock: FakeClock) -> Iterator[CallbackReceiver]:
    with CallbackReceiver(SECRET, clock=clock) as running:
        running.expect("j")
        yield running


def post(
    receiver: CallbackReceiver,
    body: bytes,
    job_id: str = "j",
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    signed: bytes | None = None,
) -> httpcore2.Response:
    if headers is None:
        headers = sign(
            SECRET, body if signed is None else signed, receiver._clock.wall_us() // 10**6
        )
    return httpcore2.request(method, receiver.url(job_id), headers=[*headers.items()], content=body)


def test_a_signed_event_is_accepted_and_read(receiver: CallbackReceiver) -> None:
    assert post(receiver, ACCEPTED).status == 202
    arrival = receiver.expect("j").next(5)
    assert arrival is not None
    assert arrival.event == Accepted(job_id="j", seq=0, ts=TS, url="u")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_post_is_taken(receiver: CallbackReceiver, method: str) -> None:
    answer = post(receiver, ACCEPTED, method=method)
    assert answer.status == 405
    assert (b"allow", b"POST") in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-signature": ""},
        {"x-signature": "sha256=" + "0" * 64},
        {"x-signature": "0" * 64},
        {"x-signature": sign("other", ACCEPTED, 0)["x-signature"]},
        {"X-Signature-Timed": sign(SECRET, ACCEPTED, 0)["x-signature-timed"]},
    ],
)
def test_a_missing_or_wrong_signature_is_401_and_nothing_is_taken(
    receiver: CallbackReceiver, headers: dict[str, str]
) -> None:
    assert post(receiver, ACCEPTED, headers=headers).status == 401
    assert receiver.expect("j").next(0) is None


@pytest.mark.parametrize("altered", [ACCEPTED + b"\n", ACCEPTED.replace(b",", b", ")])
def test_altered_whitespace_is_another_body(receiver: CallbackReceiver, altered: bytes) -> None:
    assert post(receiver, altered, signed=ACCEPTED).status == 401
    assert post(receiver, altered).status == 202


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        ACCEPTED[:-1],
        ACCEPTED.replace(b'"url"', b'"uri"'),
        ACCEPTED.replace(b'"seq":0', b'"seq":-1'),
    ],
)
def test_a_signed_body_that_is_no_event_is_401(receiver: CallbackReceiver, body: bytes) -> None:
    assert post(receiver, body).status == 401


def test_the_job_is_what_the_path_says(receiver: CallbackReceiver) -> None:
    body = encode_event(Accepted(job_id="made-up", seq=0, ts=TS, url="u"))
    assert post(receiver, body).status == 202
    arrival = receiver.expect("j").next(5)
    assert arrival is not None
    assert (arrival.event.job_id, arrival.event.source_job_id) == ("j", "made-up")


def test_an_odd_job_id_survives_the_path(receiver: CallbackReceiver) -> None:
    inbox = receiver.expect("u%2F:?#.&~")
    body = encode_event(Accepted(job_id="u%2F:?#.&~", seq=0, ts=TS, url="u"))
    assert post(receiver, body, "u%2F:?#.&~").status == 202
    arrival = inbox.next(5)
    assert arrival is not None
    assert arrival.event.source_job_id is None


def test_a_job_that_nobody_expects_is_unknown(receiver: CallbackReceiver) -> None:
    assert post(receiver, ACCEPTED, "other").status == 404
    receiver.forget("j")
    assert post(receiver, ACCEPTED).status == 404


def test_a_job_with_a_secret_of_its_own_cannot_speak_for_another(
    receiver: CallbackReceiver,
) -> None:
    receiver.expect("mine", "own")
    assert post(receiver, ACCEPTED, "mine").status == 401
    assert post(receiver, ACCEPTED, "mine", headers=sign("own", ACCEPTED, 0) | {}).status == 401
    now_s = receiver._clock.wall_us() // 10**6
    assert post(receiver, ACCEPTED, "mine", headers=sign("own", ACCEPTED, now_s)).status == 202
    assert post(receiver, ACCEPTED, "j", headers=sign("own", ACCEPTED, now_s)).status == 401
    receiver.expect("mine")
    assert post(receiver, ACCEPTED, "mine").status == 401


def test_an_old_recording_is_refused(receiver: CallbackReceiver, clock: FakeClock) -> None:
    headers = sign(SECRET, ACCEPTED, clock.wall_us() // 10**6)
    clock.advance(301)
    assert post(receiver, ACCEPTED, headers=headers).status == 401


def test_a_repeat_is_accepted_and_read_once(receiver: CallbackReceiver) -> None:
    for _ in range(3):
        assert post(receiver, ACCEPTED).status == 202
    assert post(receiver, SUCCEEDED).status == 202
    assert post(receiver, SUCCEEDED).status == 202
    inbox = receiver.expect("j")
    assert [inbox.next(5) is not None for _ in range(2)] == [True, True]
    assert inbox.next(0) is None


def test_a_sequence_with_other_content_and_an_event_after_the_end_are_409(
    receiver: CallbackReceiver,
) -> None:
    assert post(receiver, SUCCEEDED).status == 202
    other = post(receiver, encode_event(Succeeded(job_id="j", seq=1, ts=TS, result=2)))
    assert other.status == 409
    assert b"conflict" in other.content
    for late in (
        Progress(job_id="j", seq=2, ts=TS, stage="s"),
        Failed(job_id="j", seq=2, ts=TS, code="general", message="no"),
    ):
        answer = post(receiver, encode_event(late))
        assert answer.status == 409
        assert b"job_closed" in answer.content


def test_of_two_ends_at_once_one_is_taken(receiver: CallbackReceiver) -> None:
    ends = [encode_event(Succeeded(job_id="j", seq=seq, ts=TS, result=seq)) for seq in range(8)]
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda end=end: statuses.append(post(receiver, end).status))
        for end in ends
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [202] + [409] * 7


def test_whoever_waits_for_the_end_gets_it(receiver: CallbackReceiver) -> None:
    inbox = receiver.expect("j")
    ends: list[Any] = []
    waiting = threading.Thread(target=lambda: ends.append(inbox.wait_terminal(30)))
    waiting.start()
    assert post(receiver, ACCEPTED).status == 202
    assert inbox.wait_terminal(0) is None
    assert post(receiver, SUCCEEDED).status == 202
    waiting.join()
    assert ends == [Succeeded(job_id="j", seq=1, ts=TS, result=1)]


def test_what_was_passed_over_is_said() -> None:
    inbox = JobInbox("j")
    for seq in (0, 3, 1, 4, 7):
        inbox.put(Progress(job_id="j", seq=seq, ts=TS, stage="s"))
    arrivals = [inbox.next(0) for _ in range(5)]
    assert [arrival.missing for arrival in arrivals if arrival] == [
        None,
        Missing(1, 2),
        None,
        None,
        Missing(5, 6),
    ]


def test_the_largest_result_passes_and_a_larger_body_does_not(receiver: CallbackReceiver) -> None:
    largest = Succeeded(job_id="j", seq=1, ts=TS, result="x" * (RESULT_BYTES - 2))
    assert post(receiver, encode_event(largest)).status == 202
    assert post(receiver, b" " * (EVENT_BYTES + 1)).status == 413


def test_a_client_that_leaves_in_the_middle_disturbs_nobody(receiver: CallbackReceiver) -> None:
    with socket.create_connection(("127.0.0.1", receiver.port)) as rude:
        rude.sendall(b"POST /jobs/j HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    assert post(receiver, ACCEPTED).status == 202


def test_our_own_sink_and_receiver_understand_each_other(receiver: CallbackReceiver) -> None:
    to = destination(receiver.url("j"), ("127.0.0.1",), SECRET)
    sink = CallbackSink(to, clock=receiver._clock)
    sink.emit(Accepted(job_id="j", seq=0, ts=TS, url="ü 世界"))
    assert attempt(to, "j", 0, b"{}", 0) != Delivered()
    assert isinstance(attempt(to, "j", 0, b"{}", 0), Refused)
    assert receiver.expect("j").next(5) is not None


def test_without_a_secret_unsigned_callbacks_are_taken_for_any_job_that_is_welcome() -> None:
    welcomed: list[JobInbox] = []
    with CallbackReceiver(None, welcome=welcomed.append) as receiver:
        assert post(receiver, ACCEPTED, "one", headers={}).status == 202
        assert post(receiver, ACCEPTED, "two", headers={}).status == 202
        assert post(receiver, ACCEPTED, "one", headers={}).status == 202
        assert post(receiver, ACCEPTED, "x" * 125, headers={}).status == 401
    assert [inbox.job_id for inbox in welcomed] == ["one", "two"]


def test_a_port_that_is_taken_is_said(receiver: CallbackReceiver) -> None:
    with pytest.raises(UnavailableError, match=str(receiver.port)):
        CallbackReceiver(None, port=receiver.port)


def test_after_close_nobody_listens() -> None:
    receiver = CallbackReceiver(None)
    receiver.start()
    receiver.close()
    with pytest.raises(httpcore2.ConnectError):
        post(receiver, ACCEPTED, headers={})
    names = {thread.name for thread in threading.enumerate()}
    assert eventually(lambda: "callbacks" not in names)
