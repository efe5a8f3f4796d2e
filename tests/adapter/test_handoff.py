"""The handoff contract, seen from outside: a real process, a client that misbehaves on purpose.

"Nothing happened" is shown by a later call that the server has handled meanwhile, never by waiting.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from agentbus.adapter.handoff import Delivery, OpenExchanges, Outcome, current_delivery
from agentbus.adapter.outbound import WriteSide
from tests.adapter.raw_client import MODERN_META, Channel, EventLog, RawClient

ROOT = Path(__file__).parents[2]
TOO_BIG = 1024 * 1024
"""More than any pipe or socket takes while nobody reads."""


class Session(RawClient):
    def __init__(self, folder: Path, channel: Channel = "pipe", **env: str) -> None:
        self.events = EventLog(folder / "events")
        self.gate = folder / "gate"
        argv = [sys.executable, "-m", "tests.adapter.probe_server"]
        env |= {"PROBE_EVENTS": str(self.events.path), "PYTHONPATH": str(ROOT)}
        super().__init__(argv, env=env, channel=channel)

    def receive_records(self, tag: str, *, gated: bool = False, **arguments: Any) -> Any:
        """Call the tool that gives out records and wait until its handler runs."""
        gate = {"gate": str(self.gate)} if gated else {}
        request_id = self.call("receive", tag=tag, **gate, **arguments)
        self.events.expect("handler_start", tag=tag)
        if not gated:
            self.events.expect("handler_return", tag=tag)
        return request_id

    def pass_barrier(self, tag: str) -> dict[str, Any]:
        """All that was sent before has been read and handled when this returns. Its answer stays
        unread."""
        self.call("mark", tag=tag)
        return self.events.expect("mark", tag=tag)

    def outcome_of(self, tag: str) -> str:
        return str(self.events.expect("settled", tag=tag)["outcome"])

    def is_settled(self, tag: str) -> bool:
        return bool(self.events.all("settled", tag=tag))


OpenSession = Callable[..., Session]


@pytest.fixture(params=["pipe", "socketpair"])
def open_session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenSession]:
    sessions: list[Session] = []

    def open_one(*, handshake: bool = True, **env: str) -> Session:
        session = Session(tmp_path, request.param, **env)
        sessions.append(session)
        if handshake:
            session.initialize()
        return session

    yield open_one
    for session in sessions:
        session.close()


def test_a_result_is_handed_off_when_the_client_gets_it(open_session: OpenSession) -> None:
    session = open_session()
    request_id = session.receive_records("small")
    answer = session.receive()
    assert answer["id"] == request_id
    assert answer["result"]["structuredContent"]["tag"] == "small"
    settled = session.events.expect("settled", tag="small")
    assert (settled["outcome"], settled["bytes_left"]) == ("handed_off", True)


def test_handoff_waits_for_the_last_byte(open_session: OpenSession) -> None:
    session = open_session()
    request_id = session.receive_records("big", bytes=TOO_BIG)
    assert session.pass_barrier("unread")["queued_bytes"] > 0
    assert not session.is_settled("big")
    assert session.receive()["id"] == request_id
    assert session.outcome_of("big") == "handed_off"


def test_a_client_that_closed_its_output_gets_nothing_acknowledged(
    open_session: OpenSession,
) -> None:
    session = open_session()
    session.receive_records("lost", gated=True)
    session.close_read()
    session.gate.touch()
    settled = session.events.expect("settled", tag="lost")
    assert (settled["outcome"], settled["bytes_left"]) == ("broken", False)
    assert session.wait_exit() == 0, "must end by itself although its input is still open"
    assert session.events.all("exit")


def test_a_client_that_closes_in_the_middle_of_a_result_gets_nothing_acknowledged(
    open_session: OpenSession,
) -> None:
    session = open_session()
    session.receive_records("torn", bytes=TOO_BIG)
    session.pass_barrier("blocked")
    assert session.read_bytes(1000)
    session.close_read()
    settled = session.events.expect("settled", tag="torn")
    assert (settled["outcome"], settled["bytes_left"]) == ("broken", True)
    assert session.wait_exit() == 0


def test_killed_between_handler_and_write_acknowledges_nothing(open_session: OpenSession) -> None:
    session = open_session(PROBE_KILL="before_write")
    session.receive_records("killed")
    assert session.wait_exit() == -signal.SIGKILL
    assert session.events.all("killed")
    assert not session.is_settled("killed")
    assert session.receive_rest() == []


def test_killed_while_blocked_acknowledges_nothing(open_session: OpenSession) -> None:
    session = open_session()
    session.receive_records("killed", bytes=TOO_BIG)
    session.pass_barrier("blocked")
    session.process.kill()
    session.process.wait()
    assert not session.is_settled("killed")


def test_cancel_of_a_waiting_call_writes_nothing(open_session: OpenSession) -> None:
    session = open_session()
    request_id = session.receive_records("waiting", gated=True)
    session.cancel(request_id)
    settled = session.events.expect("settled", tag="waiting")
    assert (settled["outcome"], settled["bytes_left"]) == ("cancelled", False)
    assert session.events.all("handler_cancelled", tag="waiting")
    following = session.call("mark")
    assert session.receive()["id"] == following


def test_cancel_finds_its_call_by_either_form_of_the_id(open_session: OpenSession) -> None:
    session = open_session()
    session.call("receive", tag="text", gate=str(session.gate), request_id="71")
    session.events.expect("handler_start", tag="text")
    session.cancel(71)
    assert session.outcome_of("text") == "cancelled"


def test_cancel_of_a_result_behind_a_blocked_one_takes_it_back(open_session: OpenSession) -> None:
    session = open_session()
    first = session.receive_records("first", bytes=TOO_BIG)
    second = session.receive_records("second")
    session.cancel(second)
    settled = session.events.expect("settled", tag="second")
    assert (settled["outcome"], settled["bytes_left"]) == ("cancelled", False)
    following = session.call("mark")
    assert [session.receive()["id"] for _ in range(2)] == [first, following]
    assert session.outcome_of("first") == "handed_off"


def test_cancel_of_a_partly_written_result_completes_the_frame(open_session: OpenSession) -> None:
    session = open_session()
    request_id = session.receive_records("begun", bytes=TOO_BIG)
    session.cancel(request_id)
    settled = session.events.expect("settled", tag="begun")
    assert (settled["outcome"], settled["bytes_left"]) == ("cancelled", True)
    answer = session.receive()
    assert answer["id"] == request_id
    assert len(answer["result"]["structuredContent"]["content"]) == TOO_BIG
    following = session.call("mark")
    assert session.receive()["id"] == following
    assert len(session.events.all("settled", tag="begun")) == 1


def test_cancel_after_the_last_byte_is_ignored(open_session: OpenSession) -> None:
    session = open_session()
    request_id = session.receive_records("answered")
    assert session.outcome_of("answered") == "handed_off"
    session.cancel(request_id)
    session.pass_barrier("after")
    assert len(session.events.all("settled", tag="answered")) == 1
    assert [session.receive()["id"] for _ in range(2)] == [request_id, request_id + 1]


def test_an_unread_result_blocks_nothing_else(open_session: OpenSession) -> None:
    session = open_session()
    session.receive_records("first", bytes=TOO_BIG)
    tags = [f"later-{number}" for number in range(20)]
    for tag in tags:
        session.receive_records(tag)
    beats_before = len(session.events.all("heartbeat"))
    session.events.expect("heartbeat", at_least=beats_before + 10)
    beats = [beat["at_s"] for beat in session.events.all("heartbeat")]
    assert max(late - early for early, late in itertools.pairwise(beats)) < 10.0
    assert not session.events.all("settled")
    answered = [session.receive()["id"] for _ in range(21)]
    assert answered == sorted(answered), "results leave in the order in which they were ready"
    for tag in ["first", *tags]:
        assert session.outcome_of(tag) == "handed_off"


def test_two_calls_with_one_id_settle_their_own_deliveries(open_session: OpenSession) -> None:
    session = open_session()
    session.call("receive", tag="slow", gate=str(session.gate), request_id=77)
    session.events.expect("handler_start", tag="slow")
    session.call("receive", tag="fast", request_id=77)
    assert session.receive()["result"]["structuredContent"]["tag"] == "fast"
    assert session.outcome_of("fast") == "handed_off"
    assert not session.is_settled("slow")
    session.gate.touch()
    assert session.receive()["result"]["structuredContent"]["tag"] == "slow"
    assert session.outcome_of("slow") == "handed_off"


def test_cancel_of_an_id_used_twice_acknowledges_neither(open_session: OpenSession) -> None:
    session = open_session()
    session.call("receive", tag="slow", gate=str(session.gate), request_id=77)
    session.events.expect("handler_start", tag="slow")
    session.receive_records("blocker", bytes=TOO_BIG)
    session.call("receive", tag="fast", request_id=77)
    session.events.expect("handler_return", tag="fast")
    session.cancel(77)
    assert session.outcome_of("fast") == "cancelled"
    session.gate.touch()
    assert session.outcome_of("slow") == "cancelled"


def test_end_of_input_cancels_running_calls(open_session: OpenSession) -> None:
    session = open_session()
    session.receive_records("running", gated=True)
    session.close_write()
    assert session.wait_exit() == 0
    assert [answer["error"]["code"] for answer in session.receive_rest()] == [-32000]
    assert session.events.all("handler_cancelled", tag="running")
    settled = session.events.expect("settled", tag="running")
    assert (settled["outcome"], settled["bytes_left"]) == ("shutdown", False)


def test_end_of_input_while_the_output_is_blocked_ends_the_process(
    open_session: OpenSession,
) -> None:
    session = open_session()
    session.receive_records("blocked", bytes=TOO_BIG)
    session.receive_records("running", gated=True)
    session.close_write()
    assert session.wait_exit() == 0
    settled = session.events.expect("settled", tag="blocked")
    assert (settled["outcome"], settled["bytes_left"]) == ("shutdown", True)
    assert session.outcome_of("running") == "shutdown"


def test_a_result_taken_after_the_end_of_input_is_not_acknowledged(
    open_session: OpenSession,
) -> None:
    session = open_session()
    request_id = session.receive_records("late", bytes=TOO_BIG)
    session.close_write()
    assert session.receive()["id"] == request_id
    settled = session.events.expect("settled", tag="late")
    assert (settled["outcome"], settled["bytes_left"]) == ("shutdown", True)
    assert session.wait_exit() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_with_open_input_ends_cleanly(
    open_session: OpenSession, number: signal.Signals
) -> None:
    session = open_session()
    session.receive_records("running", gated=True)
    os.kill(session.process.pid, number)
    assert session.wait_exit() == 0
    assert session.events.all("exit")
    assert session.outcome_of("running") == "shutdown"


def test_stop_lets_a_reading_client_take_what_is_queued(open_session: OpenSession) -> None:
    session = open_session()
    begun = session.receive_records("begun", bytes=TOO_BIG)
    queued = session.receive_records("queued")
    running = session.receive_records("running", gated=True)
    os.kill(session.process.pid, signal.SIGTERM)
    answers = session.receive_rest()
    assert [answer["id"] for answer in answers] == [begun, queued, running]
    assert answers[-1]["error"]["code"] == -32000
    assert session.outcome_of("begun") == "handed_off"
    assert session.outcome_of("queued") == "handed_off"
    assert session.outcome_of("running") == "shutdown"
    assert session.wait_exit() == 0


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("lone_surrogate", -32603),
        ("huge_integer", -32603),
        ("not_an_object", -32603),
        ("exception", 0),
    ],
)
def test_a_result_that_cannot_be_sent_is_answered_with_an_error(
    open_session: OpenSession, kind: str, code: int
) -> None:
    session = open_session()
    request_id = session.call("spoil", kind=kind)
    answer = session.receive()
    assert answer["id"] == request_id
    assert answer["error"]["code"] == code
    settled = session.events.expect("settled", tag=kind)
    assert (settled["outcome"], settled["bytes_left"]) == ("error_response", False)
    following = session.call("mark")
    assert session.receive()["id"] == following


def test_a_notification_of_the_handler_does_not_settle_its_delivery(
    open_session: OpenSession,
) -> None:
    session = open_session()
    request_id = session.call("notify", meta={"progressToken": "progress"})
    assert session.receive()["method"] == "notifications/progress"
    assert session.receive()["id"] == request_id
    session.pass_barrier("after")
    assert [e["outcome"] for e in session.events.all("settled")] == ["handed_off"]


def test_the_era_without_handshake_has_the_same_contract(open_session: OpenSession) -> None:
    session = open_session(handshake=False)
    assert "2026-07-28" in session.discover()["result"]["supportedVersions"]
    first = session.call("receive", tag="big", bytes=TOO_BIG, meta=MODERN_META)
    session.events.expect("handler_return", tag="big")
    second = session.call("receive", tag="cancelled", meta=MODERN_META)
    session.events.expect("handler_return", tag="cancelled")
    session.cancel(second)
    assert session.outcome_of("cancelled") == "cancelled"
    assert not session.is_settled("big")
    assert session.receive()["id"] == first
    assert session.outcome_of("big") == "handed_off"


def test_the_sdk_transport_would_acknowledge_what_nobody_read(open_session: OpenSession) -> None:
    """The control: this suite can fail, and the transport of our own is needed."""
    session = open_session(PROBE_TRANSPORT="sdk")
    session.receive_records("unread", bytes=TOO_BIG)
    assert session.outcome_of("unread") == "handed_off"
    assert session.process.poll() is None


class ReadAndGone:
    """A client that ends in the instant in which its result can be read."""

    ended = False

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def is_open(self) -> bool:
        return not select.select([self._fd], [], [], 0)[0]

    def stop(self) -> None: ...

    def output_changed(self) -> None: ...


def test_a_client_that_ends_as_soon_as_it_has_its_result_was_handed_it() -> None:
    reading, writing = os.pipe()
    delivery = Delivery(on_settle=lambda settled: None)

    async def answer() -> None:
        side = WriteSide(writing)
        side.bind(ReadAndGone(reading))
        current_delivery.set(delivery)
        await side.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=1, result={})))
        await side.close()

    asyncio.run(answer())
    os.close(reading)
    assert delivery.outcome is Outcome.HANDED_OFF


def test_only_the_first_outcome_counts() -> None:
    outcomes: list[Outcome | None] = []
    delivery = Delivery(on_settle=lambda settled: outcomes.append(settled.outcome))
    delivery.settle(Outcome.CANCELLED)
    delivery.settle(Outcome.HANDED_OFF)
    assert outcomes == [Outcome.CANCELLED]
    assert not delivery.handed_off


def test_a_failing_report_does_not_reach_the_transport(caplog: pytest.LogCaptureFixture) -> None:
    def fail(delivery: Delivery) -> None:
        raise RuntimeError("no daemon")

    delivery = Delivery(on_settle=fail)
    delivery.settle(Outcome.HANDED_OFF)
    assert delivery.handed_off
    assert "no daemon" in caplog.text


def test_closed_exchanges_cannot_be_cancelled() -> None:
    exchanges = OpenExchanges()
    first, second = exchanges.open(7), exchanges.open(7)
    exchanges.close(first)
    exchanges.close(first)
    assert exchanges.cancel(7) == [second]
    assert (first.cancelled, second.cancelled) == (False, True)
    exchanges.close(second)
    assert len(exchanges) == 0
    assert exchanges.cancel(7) == []
