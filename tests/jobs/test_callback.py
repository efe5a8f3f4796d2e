"""Callbacks as they leave: destination, headers, signatures, repeats, addresses, time."""

from __future__ import annotations

import hashlib
import hmac
import os
import random
import socket
import threading
import time
from email.utils import formatdate
from ipaddress import ip_address
from typing import Any

import pytest

from agentbus.errors import ForbiddenError, TooLargeError, ValidationError
from agentbus.jobs import DeliveryRefusedError, JobEmitter, SinkError
from agentbus.jobs.delivery import (
    BACKOFF_MAX_MS,
    RETRY_AFTER_MAX_MS,
    Delivered,
    NotNow,
    Refused,
    attempt,
    backoff_ms,
    destination,
)
from agentbus.jobs.events import Accepted, Failed, Warned, encode_event
from agentbus.jobs.http import refuse_metadata
from agentbus.jobs.signing import TOLERANCE_S, sign, verify
from agentbus.jobs.sinks.callback import TERMINAL_FACTOR, CallbackSink
from agentbus.protocol.jobs import JobCallback
from tests.clock import FakeClock
from tests.jobs.servers import Answer, ScriptedServer

SECRET = "grüße"
COMMON: dict[str, Any] = {"job_id": "j", "seq": 4, "ts": "2026-01-02T03:04:05.678Z"}
EVENT = Warned(**COMMON, message="Grüße, 世界 😀")
TERMINAL = Failed(**COMMON, code="general", message="no")


class Sleeper:
    """Waits without waiting."""

    def __init__(self) -> None:
        self.waited_s: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.waited_s.append(seconds)


def sink(url: str, attempts: int = 3, secret: str | None = None, **kind: Any) -> CallbackSink:
    to = destination(url, ("127.0.0.1",), secret)
    return CallbackSink(to, attempts, **{"sleep": Sleeper(), **kind})


# --- the destination


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("http://example.com/", ()),
        ("https://Example.COM/jobs/1?x=%20", ("example.com",)),
        ("http://example.com:8080/", ("Example.COM",)),
        ("http://[::1]:80/", ("::1",)),
        ("http://[0:0::1]/", ("[::1]",)),
        ("http://10.0.0.1/", ("a.example", "10.0.0.1")),
    ],
)
def test_a_url_whose_host_is_on_the_list_is_taken(url: str, hosts: tuple[str, ...]) -> None:
    destination(url, hosts)


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("http://example.com./", ("example.com",)),
        ("http://example.com.evil/", ("example.com",)),
        ("http://evil.example.com/", ("example.com",)),
        ("http://example.comevil/", ("example.com",)),
        ("http://example.com@evil/", ("example.com",)),
        ("http://user:pw@example.com/", ("example.com",)),
        ("http://@example.com/", ("example.com",)),
        ("http://evil\\@example.com/", ("example.com",)),
        ("http://[::2]/", ("::1",)),
        ("http://[fe80::1%25eth0]/", ()),
        ("ftp://example.com/", ()),
        ("file:///etc/passwd", ()),
        ("example.com", ()),
        ("http://", ()),
        ("http:///path", ()),
        ("http://exa mple.com/", ()),
        ("http://example.com/\r\nx: y", ()),
        ("http://example.com:99999/", ()),
        ("http://exämple.com/", ()),
        ("", ()),
    ],
)
def test_any_other_url_is_refused_before_work_starts(url: str, hosts: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        destination(url, hosts)


@pytest.mark.parametrize("host", ["http://a", "a:80", "*", "*.example.com", "a b", "é", " "])
def test_a_list_with_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ValidationError):
        destination("http://a/", ("a", host))


def test_an_empty_secret_is_refused_rather_than_used() -> None:
    with pytest.raises(ValidationError):
        destination("http://a/", (), "")


def test_a_secret_is_in_no_representation() -> None:
    assert "hunter2" not in repr(destination("http://a/", (), "hunter2"))
    assert "s3cret" not in repr(JobCallback("http://h/", secret="s3cret"))


# --- the request


def test_a_callback_has_the_exact_body_and_headers() -> None:
    clock = FakeClock()
    with ScriptedServer(Answer(204)) as server:
        sink(server.url + "/jobs/j?x=1", secret=SECRET, clock=clock).emit(EVENT)
    (got,) = server.got
    body = encode_event(EVENT)
    assert (got.method, got.path, got.body) == ("POST", "/jobs/j?x=1", body)
    assert "世界 😀".encode() in body
    assert got.headers["content-type"] == "application/json"
    assert got.headers["idempotency-key"] == "j:4"
    assert got.headers["content-length"] == str(len(body))
    assert got.headers["host"] == f"127.0.0.1:{server.port}"
    key = SECRET.encode()
    right = hmac.new(key, body, hashlib.sha256).hexdigest()
    assert got.headers["x-signature"] == f"sha256={right}"
    stamp = got.headers["x-signature-timestamp"]
    assert stamp == str(clock.wall_us() // 1_000_000)
    timed = hmac.new(key, stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    assert got.headers["x-signature-timed"] == f"sha256={timed}"


def test_without_a_secret_nothing_is_signed() -> None:
    with ScriptedServer(Answer(200)) as server:
        sink(server.url).emit(EVENT)
    assert not any(name.startswith("x-signature") for name in server.got[0].headers)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_a_success(status: int) -> None:
    with ScriptedServer(Answer(status)) as server:
        sink(server.url).emit(EVENT)
    assert len(server.got) == 1


# --- repeats


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 599, None])
def test_what_a_repeat_may_change_is_repeated_with_the_same_key(status: int | None) -> None:
    with ScriptedServer(Answer(status), Answer(status), Answer(202)) as server:
        sink(server.url, secret=SECRET).emit(EVENT)
    assert len(server.got) == 3
    assert {got.headers["idempotency-key"] for got in server.got} == {"j:4"}
    assert len({got.body for got in server.got}) == 1
    assert len({got.headers["x-signature"] for got in server.got}) == 1


@pytest.mark.parametrize("status", [301, 302, 304, 307, 308, 400, 401, 403, 404, 405, 409, 422])
def test_anything_else_fails_at_once(status: int) -> None:
    answer = Answer(status, {"location": "/elsewhere"}, b"because")
    with ScriptedServer(answer) as server, pytest.raises(DeliveryRefusedError) as caught:
        sink(server.url).emit(TERMINAL)
    assert len(server.got) == 1
    assert str(status) in caught.value.message
    assert not caught.value.retryable


def test_a_job_whose_result_its_receiver_finds_too_large_can_still_fail() -> None:
    with ScriptedServer(Answer(200), Answer(413), Answer(200)) as server:
        job: JobEmitter[str, str, str] = JobEmitter(sink(server.url), "j")
        job.accepted("u")
        with pytest.raises(TooLargeError, match="413"), job:
            job.succeeded("x" * 1000)
        assert [got.headers["idempotency-key"] for got in server.got] == ["j:0", "j:1", "j:1"]
        assert b'"failed"' in server.got[2].body


def test_a_refusal_stays_one_when_its_body_never_comes() -> None:
    with ScriptedServer(Answer(400, {"content-length": "10"})) as server:
        with pytest.raises(DeliveryRefusedError, match="400"):
            sink(server.url).emit(EVENT)
        assert len(server.got) == 1


def test_a_redirect_to_a_metadata_address_is_not_followed() -> None:
    answer = Answer(302, {"location": "http://169.254.169.254/latest/meta-data/"})
    with ScriptedServer(answer) as server, pytest.raises(DeliveryRefusedError, match="302"):
        sink(server.url).emit(EVENT)
    assert len(server.got) == 1


def test_attempts_are_counted_and_the_end_is_tried_longer() -> None:
    with ScriptedServer(Answer(503)) as server:
        with pytest.raises(SinkError, match="2 attempts"):
            sink(server.url, attempts=2).emit(EVENT)
        assert len(server.got) == 2
        with pytest.raises(SinkError):
            sink(server.url, attempts=2).emit(TERMINAL)
        assert len(server.got) == 2 + 2 * TERMINAL_FACTOR
    with pytest.raises(ValidationError):
        sink(server.url, attempts=0)


def test_a_parent_that_does_not_listen_is_a_failure_that_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
    with pytest.raises(SinkError, match="3 attempts"):
        sink(url).emit(EVENT)


def test_waits_have_full_jitter_below_a_doubling_ceiling() -> None:
    draw = random.Random(7)
    for made, ceiling_ms in ((1, 200), (2, 400), (3, 800), (8, 25600), (9, BACKOFF_MAX_MS)):
        waits = [backoff_ms(made, None, draw) for _ in range(300)]
        assert 0 <= min(waits) < ceiling_ms * 0.1
        assert ceiling_ms * 0.9 < max(waits) <= ceiling_ms
    assert backoff_ms(10**6, None, draw) <= BACKOFF_MAX_MS


@pytest.mark.parametrize(
    ("given", "waited_s"),
    [
        ("7", 7),
        ("0", 0),
        ("999999999999", RETRY_AFTER_MAX_MS / 1000),
        (formatdate(1_800_000_005, usegmt=True), 5),
        (formatdate(1_900_000_000, usegmt=True), RETRY_AFTER_MAX_MS / 1000),
        (formatdate(1_700_000_000, usegmt=True), 0),
        ("soon", 0),
        ("-3", 0),
        ("1.5", 0),
        ("Mon, 01 Jan 99999 00:00:00 GMT", 0),
        ("Mon, 01 Jan 2020 00:00:99999999999999999999 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 -2359", RETRY_AFTER_MAX_MS / 1000),
        ("Wed, 21 Oct 2015 07:28:00 +999999999", 0),
    ],
)
def test_the_receiver_says_when_to_come_back_up_to_a_minute(given: str, waited_s: float) -> None:
    sleeper = Sleeper()
    answers = Answer(429, {"retry-after": given}), Answer(202)
    with ScriptedServer(*answers) as server:
        sink(server.url, sleep=sleeper, clock=FakeClock()).emit(EVENT)
    (slept,) = sleeper.waited_s
    assert waited_s <= slept <= max(waited_s, 0.2)


def test_an_answer_that_comes_too_late_is_a_second_delivery_with_the_same_key() -> None:
    second = threading.Event()
    script = Answer(200, before=lambda: second.wait(30)), Answer(200, before=second.set)
    with ScriptedServer(*script) as server:
        to = destination(server.url, total_s=0.5)
        CallbackSink(to, 20, sleep=Sleeper()).emit(EVENT)
    assert len(server.got) > 1  # more where the machine was busy for longer than that, too
    assert {got.headers["idempotency-key"] for got in server.got} == {"j:4"}
    assert len({got.body for got in server.got}) == 1


# --- time and addresses


def test_an_answer_that_drips_ends_with_the_total_time() -> None:
    stop = threading.Event()

    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            try:
                while not stop.wait(0.05):
                    connection.sendall(b"x-drop: 1\r\n")
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=drip, args=(listening,), daemon=True).start()
        to = destination(f"http://127.0.0.1:{listening.getsockname()[1]}/", total_s=0.5)
        began_s = time.monotonic()
        outcome = attempt(to, "j", 0, b"{}", 0)
        took_s = time.monotonic() - began_s
        stop.set()
    assert isinstance(outcome, NotNow)
    assert 0.4 < took_s < 20


def test_a_host_that_takes_no_connection_is_given_up_after_the_connect_time() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        address = listening.getsockname()
        held = []
        for _ in range(8):  # until the backlog is full, and then some
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(address)
            held.append(waiting)
        to = destination(f"http://127.0.0.1:{address[1]}/", connect_s=0.3, total_s=60)
        began_s = time.monotonic()
        outcome = attempt(to, "j", 0, b"{}", 0)
        assert isinstance(outcome, NotNow)
        assert time.monotonic() - began_s < 30
        for waiting in held:
            waiting.close()


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "fd00:ec2::254",
        "100.100.100.200",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
    ],
)
def test_a_name_that_leads_where_no_parent_lives_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    lead_to(monkeypatch, [address])
    outcome = attempt(destination("http://parent.test/", ("parent.test",)), "j", 0, b"{}", 0)
    assert isinstance(outcome, Refused)
    assert "link-local, metadata or group" in outcome.why


def test_one_bad_address_among_good_ones_is_enough_to_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lead_to(monkeypatch, ["127.0.0.1", "169.254.169.254"])
    with ScriptedServer() as server:
        outcome = attempt(destination(f"http://parent.test:{server.port}/"), "j", 0, b"{}", 0)
        assert isinstance(outcome, Refused)
        assert server.got == []


@pytest.mark.parametrize("spelling", ["169.254.169.254", "[fe80::1]", "2852039166", "0xa9fea9fe"])
def test_a_bad_address_is_seen_through_its_spelling(spelling: str) -> None:
    outcome = attempt(destination(f"http://{spelling}/"), "j", 0, b"{}", 0)
    assert isinstance(outcome, Refused)


def test_an_address_that_is_on_the_list_itself_is_not_refused() -> None:
    judge = refuse_metadata(destination("http://a/", ("a", "169.254.13.37")).allowed_hosts)
    judge("a", ip_address("169.254.13.37"))
    with pytest.raises(DeliveryRefusedError):
        judge("a", ip_address("169.254.13.38"))


def test_a_name_that_changes_its_address_is_looked_at_again_each_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedServer(Answer(503)) as server:
        asked = lead_to(monkeypatch, ["127.0.0.1"], ["169.254.169.254"])
        to = destination(f"http://parent.test:{server.port}/", ("parent.test",))
        with pytest.raises(DeliveryRefusedError, match=r"169\.254"):
            CallbackSink(to, sleep=Sleeper()).emit(EVENT)
        assert asked == ["parent.test", "parent.test"]
        assert len(server.got) == 1
        assert server.got[0].headers["host"] == f"parent.test:{server.port}"


def test_the_next_address_is_tried_when_one_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedServer() as server:
        lead_to(monkeypatch, ["127.0.0.2", "127.0.0.1"])
        to = destination(f"http://parent.test:{server.port}/")
        assert attempt(to, "j", 0, b"{}", 0) == Delivered()


def test_a_name_that_is_unknown_may_be_known_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert isinstance(attempt(destination("http://parent.test/"), "j", 0, b"{}", 0), NotNow)


def lead_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """The resolver's answers in order, then the last one again; what it was asked."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        addresses = answers[min(len(asked), len(answers)) - 1]
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses
        ]

    real = socket.getaddrinfo

    def only_test(host: str, port: int, *more: Any, **kinds: Any) -> Any:
        look_up = getaddrinfo if host == "parent.test" else real
        return look_up(host, port, *more, **kinds)

    monkeypatch.setattr(socket, "getaddrinfo", only_test)
    return asked


# --- signatures


def test_a_signature_is_over_the_raw_bytes() -> None:
    body = encode_event(EVENT)
    headers = sign(SECRET, body, 1000)
    verify(SECRET, body, headers, 1000)
    for other in (body + b" ", body.replace(b",", b", "), encode_event(TERMINAL), b""):
        with pytest.raises(Exception, match="does not fit"):
            verify(SECRET, other, headers, 1000)


@pytest.mark.parametrize(
    "change",
    [
        {"x-signature": "sha256="},
        {"x-signature": ""},
        {"x-signature": "é"},
        {"x-signature-timestamp": "1001"},
        {"x-signature-timestamp": ""},
        {"x-signature-timestamp": "😀"},
        {"x-signature-timed": "sha256=00"},
    ],
)
def test_a_changed_header_is_found_out(change: dict[str, str]) -> None:
    headers = sign(SECRET, b"{}", 1000) | change
    with pytest.raises(Exception, match="x-signature"):
        verify(SECRET, b"{}", headers, 1000)


def test_an_old_recording_is_refused_at_the_exact_second() -> None:
    headers = sign(SECRET, b"{}", 1000)
    for now_s in (1000 - TOLERANCE_S, 1000 + TOLERANCE_S):
        verify(SECRET, b"{}", headers, now_s)
    for now_s in (1000 - TOLERANCE_S - 1, 1000 + TOLERANCE_S + 1):
        with pytest.raises(Exception, match="300 s away"):
            verify(SECRET, b"{}", headers, now_s)


def test_a_secret_is_the_bytes_of_its_variable_whatever_they_are() -> None:
    headers = sign(os.fsdecode(b"gr\xfc\xdfe"), b"{}", 1000)
    right = hmac.new(b"gr\xfc\xdfe", b"{}", hashlib.sha256).hexdigest()
    assert headers["x-signature"] == f"sha256={right}"


@pytest.mark.parametrize("timestamp", ["", "soon", "1e3", "-1", " 1", "1\n", "١", "9" * 5000])
def test_a_signed_timestamp_that_is_no_time_is_refused(timestamp: str) -> None:
    """Whoever has the secret may sign anything."""
    headers = {
        "x-signature": hmac_of(b"{}"),
        "x-signature-timestamp": timestamp,
        "x-signature-timed": hmac_of(timestamp.encode() + b".{}"),
    }
    with pytest.raises(ForbiddenError, match="x-signature-timestamp"):
        verify(SECRET, b"{}", headers, 1000)


def hmac_of(signed: bytes) -> str:
    return "sha256=" + hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()


def test_a_sender_that_knows_only_the_first_signature_is_taken_unless_time_is_demanded() -> None:
    headers = {"x-signature": sign(SECRET, b"{}", 1)["x-signature"]}
    verify(SECRET, b"{}", headers, 10**9)
    with pytest.raises(Exception, match="no x-signature-timestamp"):
        verify(SECRET, b"{}", headers, 10**9, needs_timestamp=True)


def test_any_event_of_a_tool_can_be_delivered() -> None:
    with ScriptedServer() as server:
        sink(server.url).emit(Accepted(**COMMON, url="u"))
    assert len(server.got) == 1
