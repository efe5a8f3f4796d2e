"""The client: the order of its checks, what each answer means, old peers, and other programs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from agentbus.encoding import encode
from agentbus.errors import UnavailableError, ValidationError
from agentbus.processes import start_mark
from agentbus.talk import TalkClient, TalkError, http_guard
from agentbus.talk.client import loopback_target
from agentbus.talk.exchange import Target
from agentbus.talk.handler import Delegation, NotAnswered
from agentbus.talk.registry import Served
from agentbus.talk.schema import RESPONSE_BYTES
from tests.talk.legacy_server import LegacyServer, legacy_server
from tests.talk.raw_http import SECRET
from tests.talk.served import RunningServer, ScriptedHandler, running_server


@dataclass
class Book:
    """A registry of the test's own; remembers what it was asked and what it was told to forget."""

    entries: dict[str, Served] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    trouble: Exception | None = None

    def find(self, instance: str, caller: str, within_s: float) -> Served | None:
        assert within_s > 0
        self.asked.append(instance)
        if self.trouble is not None:
            raise self.trouble
        return self.entries.get(instance)

    def forget(self, served: Served) -> None:
        self.forgotten.append(served.instance)


def _here(instance: str, port: int, **changes: Any) -> Served:
    mark = start_mark(os.getpid())
    assert mark is not None
    return replace(Served(instance, port, os.getpid(), mark, "agentbus", secret=SECRET), **changes)


@dataclass
class Caller:
    """A client named `reviewer`, its configuration and its registry."""

    config_path: Path
    book: Book = field(default_factory=Book)

    def configure(self, **settings: Any) -> None:
        self.config_path.write_bytes(encode({"talk_peers": "*", **settings}))

    def client(self, timeout_s: float = 30.0) -> TalkClient:
        return TalkClient(
            "reviewer", config_path=self.config_path, registry=self.book, timeout_s=timeout_s
        )

    def refusal(self, target: str = "worker", timeout_s: float = 30.0, **how: Any) -> TalkError:
        with pytest.raises(TalkError) as caught:
            self.client(timeout_s).ask(target, "hello", **how)
        return caught.value


@pytest.fixture
def caller(tmp_path: Path) -> Caller:
    caller = Caller(tmp_path / "caller.json")
    caller.configure()
    return caller


# --- the way of a question ---


def test_question_is_answered(caller: Caller, server: RunningServer) -> None:
    caller.book.entries["worker"] = _here("worker", server.port)
    reply = caller.client().ask("worker", "¿cómo?")
    assert (reply.text, reply.from_instance) == ("heard: ¿cómo?", "worker")
    assert reply.duration_ms is not None


def test_depth_is_one_more_on_the_wire(caller: Caller, tmp_path: Path) -> None:
    async def tell_depth(delegation: Delegation) -> NotAnswered:
        return NotAnswered("budget_exhausted", str(delegation.depth))

    with running_server(tmp_path, ScriptedHandler(tell_depth)) as server:
        caller.book.entries["worker"] = _here("worker", server.port)
        assert [caller.refusal(depth=depth).message for depth in (0, 1)] == ["1", "2"]
        assert caller.refusal(depth=2).code == "max_depth_exceeded"


def test_checks_come_in_order(caller: Caller) -> None:
    caller.configure(talk_peers=[])
    assert caller.refusal(depth=9).code == "bus_disabled"
    caller.configure(talk_peers=["other"])
    assert caller.refusal(depth=9).code == "peer_not_allowed"
    caller.configure()
    assert caller.refusal(depth=3).code == "max_depth_exceeded"
    assert caller.book.asked == []
    unavailable = caller.refusal(depth=2)
    assert (unavailable.code, unavailable.retryable) == ("instance_unavailable", True)
    assert caller.book.asked == ["worker"]


def test_peers_are_read_again_for_every_question(caller: Caller, server: RunningServer) -> None:
    caller.book.entries["worker"] = _here("worker", server.port)
    client = caller.client()
    client.ask("worker", "one")
    caller.configure(talk_peers=[])
    with pytest.raises(TalkError, match="switched off"):
        client.ask("worker", "two")


def test_failure_of_the_target_is_told_as_it_is(caller: Caller, tmp_path: Path) -> None:
    async def refuse(_: Delegation) -> NotAnswered:
        return NotAnswered("auth", "log in first")

    with running_server(tmp_path, ScriptedHandler(refuse)) as server:
        caller.book.entries["worker"] = _here("worker", server.port)
        error = caller.refusal()
    assert (error.code, error.message, error.retryable) == ("auth", "log in first", False)


def test_wrong_secret_is_told(caller: Caller, server: RunningServer) -> None:
    caller.book.entries["worker"] = _here("worker", server.port, secret="x")
    assert caller.refusal().code == "auth_failed"
    assert caller.client().ask("worker", "hello", secret=SECRET).text == "heard: hello"


def test_registry_that_cannot_be_asked_is_an_absence(caller: Caller) -> None:
    caller.book.trouble = UnavailableError("no daemon answers")
    error = caller.refusal()
    assert (error.code, error.message) == ("instance_unavailable", "no daemon answers")


# --- who is no longer there ---


@contextmanager
def _process() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield child
    finally:
        child.communicate()


def _refused_without_a_word(caller: Caller, served: Served, server: RunningServer) -> None:
    """Nothing of the question reaches the server at that port."""
    handled = server.http.server_state.total_requests
    caller.book.entries["worker"] = served
    assert caller.refusal().code == "instance_unavailable"
    assert caller.book.forgotten == ["worker"]
    assert server.http.server_state.total_requests - handled <= 1, "at most a look at its health"


def test_entry_of_a_dead_process_is_forgotten(caller: Caller, server: RunningServer) -> None:
    with _process() as child:
        mark = start_mark(child.pid)
    assert mark is not None
    _refused_without_a_word(
        caller, _here("worker", server.port, pid=child.pid, started=mark), server
    )


def test_entry_whose_pid_is_another_programs_now_is_forgotten(
    caller: Caller, server: RunningServer
) -> None:
    with _process() as child:
        served = _here("worker", server.port, pid=child.pid, started="of a process before")
        _refused_without_a_word(caller, served, server)


@pytest.mark.parametrize(("instance", "kind"), [("another", "agentbus"), ("worker", "other")])
def test_entry_whose_port_answers_for_somebody_else_is_forgotten(
    instance: str, kind: str, caller: Caller, tmp_path: Path
) -> None:
    with running_server(tmp_path, instance=instance, kind=kind) as server:
        _refused_without_a_word(caller, _here("worker", server.port), server)


def test_entry_whose_port_nobody_listens_at_is_forgotten(caller: Caller) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        caller.book.entries["worker"] = _here("worker", unused.getsockname()[1])
        assert caller.refusal().code == "instance_unavailable"
    assert caller.book.forgotten == ["worker"]


@pytest.mark.parametrize(("instance", "is_there"), [("worker", True), ("another", False)])
def test_server_that_is_full_is_there_and_says_so(
    instance: str,
    is_there: bool,
    caller: Caller,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_guard, "CONNECTIONS", 0)
    with running_server(tmp_path, instance=instance) as server:
        caller.book.entries["worker"] = _here("worker", server.port)
        error = caller.refusal()
    assert (error.code, error.retryable) == ("instance_unavailable", True)
    assert ("too many connections" in error.message) is is_there
    assert caller.book.forgotten == ([] if is_there else ["worker"])


# --- arguments ---


@pytest.mark.parametrize("secret", ["", "a\r\nHost: b", "two words", "é", "\ud800"], ids=ascii)
def test_secret_that_no_header_carries_is_refused(secret: str, caller: Caller) -> None:
    with pytest.raises(ValidationError, match="visible ASCII"):
        caller.client().ask("old", "hello", url="http://127.0.0.1:1", secret=secret)


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800", "x" * 129], ids=ascii)
def test_name_that_nobody_can_have_is_refused(name: str, caller: Caller) -> None:
    with pytest.raises(ValidationError, match=r"^the target (must|holds)"):
        caller.client().ask(name, "hello")
    with pytest.raises(ValidationError, match=r"^the instance (must|holds)"):
        TalkClient(name, config_path=caller.config_path, registry=caller.book)
    assert not caller.book.asked


# --- strange answers ---


@contextmanager
def _scripted(say: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that takes one connection, reads a question and then does what it is told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connected, _ = listener.accept()
            with connected:
                connected.recv(65536)
                with suppress(OSError):  # it has read enough, or has given up
                    say(connected)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join()


def _response(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


@pytest.mark.parametrize(
    "answer",
    [
        _response(b'{"error":"Not found"}', "404 Not Found"),
        _response(b"<html>", "502 Bad Gateway"),
        _response(b""),
        _response(b'{"success":true,"success":false}'),
        _response(b'{"success":true,"text":"\xff"}'),
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{",
        _response(b'"' + b"x" * RESPONSE_BYTES + b'"'),
    ],
    ids=range(9),
)
def test_what_is_no_answer_is_an_invalid_response(answer: bytes, caller: Caller) -> None:
    with _scripted(lambda connected: connected.sendall(answer)) as url:
        error = caller.refusal(url=url)
    assert (error.code, error.retryable) == ("invalid_response", True)


def test_status_counts_for_nothing(caller: Caller) -> None:
    answer = _response(encode({"success": True, "text": "fine"}), "500 Oops")
    with _scripted(lambda connected: connected.sendall(answer)) as url:
        assert caller.client().ask("old", "hello", url=url).text == "fine"


def test_answer_may_come_before_the_question_was_taken(caller: Caller) -> None:
    answer = _response(encode({"success": False, "error": "too large"}), "413 Too Large")
    with (
        _scripted(lambda connected: connected.sendall(answer)) as url,
        pytest.raises(TalkError) as caught,
    ):
        caller.client().ask("old", "x" * 200_000, url=url)
    assert caught.value.code in ("unknown", "instance_unavailable")


def test_connection_that_ends_without_an_answer_is_an_absence(caller: Caller) -> None:
    with _scripted(lambda connected: None) as url:
        assert caller.refusal(url=url).code == "instance_unavailable"


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"])
def test_time_limit_covers_the_whole_exchange(begun: bytes, caller: Caller) -> None:
    over = threading.Event()

    def drip(connected: socket.socket) -> None:
        connected.sendall(begun)
        over.wait(30.0)

    with _scripted(drip) as url:
        error = caller.refusal(url=url, timeout_s=0.3)
        over.set()
    assert (error.code, error.retryable) == ("timeout", True)


def test_time_limit_is_the_setting(caller: Caller) -> None:
    caller.configure(talk_timeout_seconds=1)
    over = threading.Event()
    with _scripted(lambda connected: over.wait(30.0) and None) as url:
        client = TalkClient("reviewer", config_path=caller.config_path, registry=caller.book)
        with pytest.raises(TalkError, match="within 1 s"):
            client.ask("old", "hello", url=url)
        over.set()


# --- old peers ---


def test_old_server_understands_us_and_we_it(caller: Caller) -> None:
    def say(document: dict[str, Any]) -> bytes:
        if document["prompt"] == "fail":
            return encode({"success": False, "error": "it did not work"})
        return encode({"success": True, "text": "old answer", "fromInstance": "old"})

    with legacy_server(LegacyServer(say, secret="s3")) as old:
        url = f"http://127.0.0.1:{old.port}"
        reply = caller.client().ask("old", "hello", url=url, secret="s3", depth=1)
        assert (reply.text, reply.from_instance) == ("old answer", "old")
        assert (old.asked[0]["fromInstance"], old.asked[0]["depth"]) == ("reviewer", 2)
        with pytest.raises(TalkError) as caught:
            caller.client().ask("old", "fail", url=url, secret="s3")
        failed = caught.value
        assert (failed.code, failed.message, failed.retryable) == (
            "unknown",
            "it did not work",
            False,
        )
        assert caller.refusal("old", url=url).message == "unauthorized"


def test_key_is_not_sent_to_a_server_that_would_refuse_it(caller: Caller) -> None:
    with pytest.raises(ValidationError, match="idempotency key"):
        caller.client().ask("old", "hello", url="http://127.0.0.1:1", idempotency_key="k")


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:80", Target("127.0.0.1", 80)),
        ("http://LOCALHOST:8000/", Target("127.0.0.1", 8000)),
        ("http://[::1]:8000/api/talk", Target("::1", 8000)),
    ],
)
def test_url_on_this_machine(url: str, target: Target) -> None:
    assert loopback_target(url) == target


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:80",
        "https://127.0.0.1:80",
        "http://127.0.0.1",
        "http://127.0.0.1:0",
        "http://127.0.0.1:99999",
        "http://evil.example:80",
        "http://127.0.0.1.evil.example:80",
        "http://127.0.0.1:80@evil.example",
        "http://me@127.0.0.1:80",
        "http://127.0.0.1:80/other",
        "http://127.0.0.1:80/api/talk?x=1",
        "http://[::1",
    ],
)
def test_url_that_leads_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        loopback_target(url)
