"""The server's checks and answers, over a real port: each row, and the earlier of any two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from agentbus.encoding import encode
from agentbus.errors import UnavailableError
from agentbus.talk import server as talk_server
from agentbus.talk.handler import Answered, Delegation, NotAnswered
from agentbus.talk.schema import CAPABILITIES, REQUEST_BYTES
from tests.talk.raw_http import SECRET, HttpAnswer, head_of, post, post_chunked, question, send_raw
from tests.talk.served import RunningServer, ScriptedHandler, echo, running_server


def test_question_is_answered_in_the_envelope_of_version_1(server: RunningServer) -> None:
    answer = post(server.port, question())
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    duration_ms = answer.document["durationMs"]
    assert answer.document == {
        "success": True,
        "text": "heard: Please verify",
        "fromInstance": "worker",
        "durationMs": duration_ms,
        "protocolVersion": 1,
        "capabilities": list(CAPABILITIES),
    }


def test_legacy_question_gets_the_same_envelope(server: RunningServer) -> None:
    legacy = {"fromInstance": "reviewer", "prompt": "", "depth": 0}
    answer = post(server.port, legacy)
    assert (answer.document["text"], answer.document["protocolVersion"]) == ("heard: ", 1)


# --- each row, and the earlier of any two ---


class Attempt:
    """A question that can have several things wrong with it at once."""

    def __init__(self) -> None:
        self.document = question()
        self.secret: str | None = SECRET
        self.peers: object = "*"

    def too_large(self) -> None:
        self.document["prompt"] = "x" * REQUEST_BYTES

    def malformed(self) -> None:
        self.document["depth"] = "deep"

    def disabled(self) -> None:
        self.peers = []

    def wrong_secret(self) -> None:
        self.secret = SECRET[::-1]

    def no_peer(self) -> None:
        self.document["fromInstance"] = "stranger"
        if self.peers == "*":
            self.peers = ["reviewer"]

    def too_deep(self) -> None:
        if self.document["depth"] == 1:
            self.document["depth"] = 3

    def garbage(self) -> None:
        self.document["prompt"] += " garbage"

    def throws(self) -> None:
        self.document["prompt"] += " throw"

    def fails(self) -> None:
        self.document["prompt"] += " fail"


Wrong = Callable[[Attempt], None]

ROWS: list[tuple[Wrong, int, str, bool]] = [
    (Attempt.too_large, 413, "request_too_large", False),
    (Attempt.malformed, 400, "invalid_request", False),
    (Attempt.disabled, 403, "bus_disabled", False),
    (Attempt.wrong_secret, 401, "auth_failed", False),
    (Attempt.no_peer, 403, "peer_not_allowed", False),
    (Attempt.too_deep, 429, "max_depth_exceeded", False),
    (Attempt.garbage, 500, "invalid_handler_response", True),
    (Attempt.throws, 500, "internal_error", True),
    (Attempt.fails, 200, "budget_exhausted", False),
]


async def misbehave(delegation: Delegation) -> Any:
    if "garbage" in delegation.prompt:
        return {"success": "yes"}
    if "throw" in delegation.prompt:
        raise RuntimeError("a secret of the server")
    if "fail" in delegation.prompt:
        return NotAnswered("budget_exhausted", "1.20 used of 1.00")
    return Answered("fine")


@pytest.fixture(scope="module")
def misbehaving(tmp_path_factory: pytest.TempPathFactory) -> Any:
    handler = ScriptedHandler(misbehave)
    with running_server(tmp_path_factory.mktemp("talk"), handler) as running:
        yield running, handler


def _attempt(server: RunningServer, *wrongs: Wrong) -> HttpAnswer:
    attempt = Attempt()
    for wrong in wrongs:
        wrong(attempt)
    server.set_peers(attempt.peers)
    return post(server.port, attempt.document, secret=attempt.secret)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2])
def test_row(row: tuple[Wrong, int, str, bool], misbehaving: Any) -> None:
    server, _ = misbehaving
    wrong, status, code, retryable = row
    answer = _attempt(server, wrong)
    document = answer.document
    assert (answer.status, document["errorCode"], document["retryable"]) == (
        status,
        code,
        retryable,
    )
    assert (document["success"], document["text"], document["fromInstance"]) == (
        False,
        "",
        "worker",
    )
    assert (document["protocolVersion"], document["capabilities"]) == (1, list(CAPABILITIES))
    assert document["error"]
    assert "a secret of the server" not in answer.body.decode()


@pytest.mark.parametrize(
    "pair", list(combinations(ROWS, 2)), ids=lambda pair: f"{pair[0][2]}-{pair[1][2]}"
)
def test_of_two_faults_the_earlier_row_answers(pair: Any, misbehaving: Any) -> None:
    server, handler = misbehaving
    (earlier, status, code, _), (later, *_) = pair
    asked = len(handler.asked)
    for wrongs in ((earlier, later), (later, earlier)):
        answer = _attempt(server, *wrongs)
        assert (answer.status, answer.code) == (status, code)
    reaches_the_handler = ROWS.index(pair[0]) >= 6
    assert len(handler.asked) - asked == (2 if reaches_the_handler else 0)


# --- sizes ---


def _of_size(size_bytes: int) -> bytes:
    empty = len(encode(question(prompt="")))
    return encode(question(prompt="x" * (size_bytes - empty)))


@pytest.mark.parametrize("send", [post, post_chunked], ids=["length", "chunks"])
@pytest.mark.parametrize(
    ("size_bytes", "status"),
    [(REQUEST_BYTES - 1, 200), (REQUEST_BYTES, 200), (REQUEST_BYTES + 1, 413)],
)
def test_body_at_the_limit(send: Any, size_bytes: int, status: int, server: RunningServer) -> None:
    answer = send(server.port, _of_size(size_bytes))
    assert answer.status == status
    assert answer.headers["connection"] == "close"


def test_length_over_the_limit_is_refused_before_a_byte_of_the_body(server: RunningServer) -> None:
    answer = send_raw(server.port, head_of(REQUEST_BYTES + 1))
    assert (answer.status, answer.code) == (413, "request_too_large")


def test_small_chunks_are_counted_together(server: RunningServer) -> None:
    answer = post_chunked(server.port, _of_size(REQUEST_BYTES + 4000), chunk_bytes=1000)
    assert answer.status == 413


# --- routes ---


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/api/talk"),
        ("PUT", "/api/talk"),
        ("HEAD", "/api/health"),
        ("POST", "/api/health"),
        ("OPTIONS", "/api/talk"),
        ("POST", "/api/talk/"),
        ("POST", "/api/talk?"),
        ("POST", "/api/talk?x=1"),
        ("POST", "/api/%74alk"),
        ("POST", "//api/talk"),
        ("POST", "/API/TALK"),
        ("POST", "http://127.0.0.1/api/talk"),
        ("GET", "/api/health/"),
        ("GET", "/api/health?a"),
        ("GET", "/"),
        ("GET", "/docs"),
    ],
)
def test_everything_else_is_not_found(method: str, target: str, server: RunningServer) -> None:
    answer = send_raw(server.port, head_of(0, method=method, target=target))
    assert answer.status == 404
    if method != "HEAD":
        assert answer.document == {"error": "Not found"}


def test_health_needs_no_secret(tmp_path: Path) -> None:
    with running_server(tmp_path, kind="cc-telegram-bridge") as server:
        answer = send_raw(
            server.port, head_of(None, method="GET", target="/api/health", secret=None)
        )
    pid = answer.document["pid"]
    assert answer.document == {
        "kind": "cc-telegram-bridge",
        "instance": "worker",
        "status": "ok",
        "pid": pid,
    }


# --- who may reach it ---


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:80", "localhost", "LocalHost:65535", "[::1]", "[::1]:1"]
)
def test_loopback_hosts_are_let_in(host: str, server: RunningServer) -> None:
    assert post(server.port, question(), host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "evil@127.0.0.1",
        "127.0.0.2",
        "127.0.0.1:",
        "0.0.0.0",
        "::1",
        "",
    ],
)
@pytest.mark.parametrize("target", ["/api/talk", "/api/health"])
def test_other_hosts_are_refused(host: str, target: str, server: RunningServer) -> None:
    method = "POST" if target == "/api/talk" else "GET"
    answer = post(server.port, question(), host=host, target=target, method=method)
    assert (answer.status, answer.code) == (403, "invalid_request")


@pytest.mark.parametrize("origin", ["http://127.0.0.1:3000", "http://localhost", "https://[::1]:1"])
def test_loopback_origins_are_let_in(origin: str, server: RunningServer) -> None:
    assert post(server.port, question(), f"Origin: {origin}").status == 200


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost.evil.example", "file://localhost", "", "x"],
)
def test_other_origins_are_refused(origin: str, server: RunningServer) -> None:
    assert post(server.port, question(), f"Origin: {origin}").status == 403


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_by_its_other_names(content_type: str, server: RunningServer) -> None:
    assert post(server.port, question(), content_type=content_type).status == 200


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"]
)
def test_what_a_form_could_send_is_refused(content_type: str | None, server: RunningServer) -> None:
    answer = post(server.port, question(), content_type=content_type)
    assert (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    "secret",
    [None, "", SECRET[:-1], SECRET + "0", SECRET[:-1] + "0", SECRET.upper(), "Bearer " + SECRET],
)
def test_wrong_secret(secret: str | None, server: RunningServer) -> None:
    assert post(server.port, question(), secret=secret).code == "auth_failed"


@pytest.mark.parametrize("scheme", ["bearer", "Basic", "Token", ""])
def test_secret_needs_the_exact_word_before_it(scheme: str, server: RunningServer) -> None:
    header = f"Authorization: {scheme} {SECRET}"
    assert post(server.port, question(), header, secret=None).code == "auth_failed"


def test_peers_are_read_from_the_file_for_every_question(server: RunningServer) -> None:
    assert post(server.port, question()).status == 200
    server.set_peers([])
    assert post(server.port, question()).code == "bus_disabled"
    server.set_peers(["somebody"])
    refused = post(server.port, question(fromInstance="review\ner"))
    assert refused.code == "peer_not_allowed"
    assert '"review\\ner"' in refused.document["error"], "who may not have known its own name"
    server.set_peers(["somebody", "reviewer"])
    assert post(server.port, question()).status == 200
    server.config_path.write_text('{"talk_peers": tru')
    assert post(server.port, question()).code == "bus_disabled"


def test_name_of_another_instance_needs_the_proof_that_the_caller_is_it(
    server: RunningServer,
) -> None:
    server.callers.held["reviewer"] = "the proof"
    assert post(server.port, question()).code == "peer_not_allowed"
    assert post(server.port, question(ext={"session": "guess"})).code == "peer_not_allowed"
    assert post(server.port, question(ext={"session": "the proof"})).status == 200
    deep = question(depth=3)
    assert post(server.port, deep).code == "peer_not_allowed", "it comes before the depth"


def test_who_cannot_be_asked_for_is_not_let_in(server: RunningServer) -> None:
    server.callers.trouble = UnavailableError("no daemon")
    answer = post(server.port, question())
    assert (answer.status, answer.code, answer.document["retryable"]) == (
        500,
        "internal_error",
        True,
    )


@pytest.mark.parametrize(("depth", "status"), [(0, 200), (2, 200), (3, 429), (2**53, 429)])
def test_depth_at_the_limit(depth: int, status: int, server: RunningServer) -> None:
    assert post(server.port, question(depth=depth)).status == status


@pytest.mark.parametrize(("depth", "known", "status"), [(1, 2, 200), (1, 3, 429), (3, 1, 429)])
def test_depth_is_the_larger_of_the_two(
    depth: int, known: int, status: int, server: RunningServer
) -> None:
    server.callers.depths["reviewer"] = known
    assert post(server.port, question(depth=depth)).status == status


def test_handler_that_knows_repeats_is_asked_each_time(tmp_path: Path) -> None:
    handler = ScriptedHandler(echo, knows_repeats=True)
    with running_server(tmp_path, handler) as own_server:
        repeated = question(ext={"idempotencyKey": "k"})
        for _ in range(2):
            assert post(own_server.port, repeated).document["success"]
    assert [asked.key for asked in handler.asked] == ["k", "k"]


# --- malformed text ---


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xef\xbb\xbf{}",
        b'{"fromInstance":"a","prompt":"\xff","depth":0}',
        b'{"fromInstance":"a","prompt":"\\ud800","depth":0}',
        b'{"fromInstance":"a","prompt":"\\u0000","depth":0}',
        b'{"fromInstance":"a","prompt":"b","depth":NaN}',
        b'{"fromInstance":"a","prompt":"b","depth":1e999}',
        b'{"fromInstance":"a","prompt":"b","depth":99999999999999999999999}',
        b'{"fromInstance":"a","prompt":"b","depth":0,"depth":1}',
        b'{"fromInstance":"a","prompt":"b","depth":0,"x":' + b"[" * 40 + b"]" * 40 + b"}",
        b'{"fromInstance":"a","prompt":"b","depth":0,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_malformed_text_is_an_invalid_request(body: bytes, server: RunningServer) -> None:
    answer = post(server.port, body)
    assert (answer.status, answer.code) == (400, "invalid_request")


# --- what a handler may do ---


@pytest.mark.parametrize(
    "said",
    [
        None,
        "text",
        Answered(None),  # type: ignore[arg-type]
        Answered("\ud800"),
        NotAnswered("no_such_code", "x"),
        NotAnswered("auth", 3),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_what_is_no_answer_is_the_servers_fault(said: Any, tmp_path: Path) -> None:
    async def say(_: Delegation) -> Any:
        return said

    with running_server(tmp_path, ScriptedHandler(say)) as server:
        answer = post(server.port, question())
    assert (answer.status, answer.code) == (500, "invalid_handler_response")


def test_handler_hears_what_it_has_to_know(tmp_path: Path) -> None:
    handler = ScriptedHandler(misbehave)
    with running_server(tmp_path, handler, timeout_s=12.0) as server:
        post(server.port, question(depth=2))
        post(server.port, question(depth=2))
    first, second = handler.asked
    assert (first.from_instance, first.prompt, first.depth, first.within_s) == (
        "reviewer",
        "Please verify",
        2,
        12.0,
    )
    assert first.delegation_id != second.delegation_id


def test_repeat_with_the_same_key_gets_the_first_answer(tmp_path: Path) -> None:
    async def count(delegation: Delegation) -> Answered:
        return Answered(f"{len(handler.asked)}")

    handler = ScriptedHandler(count)
    with running_server(tmp_path, handler) as server:
        keyed = question(ext={"idempotencyKey": "k1"})
        assert [post(server.port, keyed).document["text"] for _ in range(2)] == ["1", "1"]
        other = post(server.port, {**keyed, "prompt": "something else"})
        assert (other.status, other.code) == (400, "invalid_request")
        assert post(server.port, {**keyed, "fromInstance": "b"}).document["text"] == "2"
        assert post(server.port, question()).document["text"] == "3"


def test_handler_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_: Delegation) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(talk_server, "GRACE_S", 0.1)
    with running_server(tmp_path, ScriptedHandler(hang), timeout_s=0.1) as server:
        answer = post(server.port, question())
    assert (answer.status, answer.code, answer.document["retryable"]) == (200, "timeout", True)
