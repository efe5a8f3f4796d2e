"""A reply is answered once, tells no secrets, and gives back what its request was charged."""

from __future__ import annotations

import threading

from agentbus import encoding, limits
from agentbus.errors import ConflictError
from tests.eventually import PATIENCE_S
from tests.transport.server import RawClient, Server


def test_only_the_first_answer_is_sent(server: Server, client: RawClient) -> None:
    client.call(1, "hold")
    reply = server.handler.held.get(timeout=PATIENCE_S)
    reply.set("first")
    reply.set("second")
    reply.set_exception(ConflictError("third"))
    client.call(2, "echo")
    assert client.frame()["result"] == "first"
    assert client.frame()["id"] == 2
    assert server.listener.statistics().in_flight_now == 0


def test_one_of_many_racing_answers_is_sent(server: Server, client: RawClient) -> None:
    client.call(1, "hold")
    reply = server.handler.held.get(timeout=PATIENCE_S)
    start = threading.Barrier(8)

    def answer(number: int) -> None:
        start.wait()
        reply.set(number)

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.call(2, "echo")
    assert client.frame()["result"] in range(8)
    assert client.frame()["id"] == 2


def test_ready_json_is_passed_on_as_it_is(server: Server, client: RawClient) -> None:
    client.call(1, "hold")
    server.handler.held.get(timeout=PATIENCE_S).set_json(b'{"a":[1,2]}')
    assert client.frame()["result"] == {"a": [1, 2]}
    client.call(2, "hold")
    server.handler.held.get(timeout=PATIENCE_S).set({"a": encoding.raw(b"[1,2]")})
    assert client.frame()["result"] == {"a": [1, 2]}


def test_bus_error_is_answered_with_its_data(server: Server, client: RawClient) -> None:
    client.call(1, "hold")
    error = ConflictError("taken", reason="WORD")
    server.handler.held.get(timeout=PATIENCE_S).set_exception(error)
    assert client.frame()["error"]["data"] == error.as_data()


def test_result_that_is_no_json_is_answered_internal(server: Server, client: RawClient) -> None:
    for value in (object(), {"x": "\ud800"}, {"x": 2**70}):
        client.call(1, "hold")
        server.handler.held.get(timeout=PATIENCE_S).set(value)
        assert client.frame()["error"]["data"]["code"] == "internal"


def test_unforeseen_error_is_answered_without_its_text(server: Server, client: RawClient) -> None:
    client.call(1, "hold")
    server.handler.held.get(timeout=PATIENCE_S).set_exception(RuntimeError("secret text"))
    error = client.frame()["error"]
    assert error["data"]["code"] == "internal"
    assert "secret" not in str(error)


def test_result_over_the_frame_limit_is_answered_too_large(
    server: Server, client: RawClient
) -> None:
    client.call(1, "hold")
    server.handler.held.get(timeout=PATIENCE_S).set("x" * limits.FRAME_BYTES)
    assert client.frame()["error"]["data"]["code"] == "too_large"
