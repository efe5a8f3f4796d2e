"""The inspection command in a whole daemon: order, other senders, heartbeats, recovery, stop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agentbus.encoding import decode_strict, encode_line
from agentbus.errors import (
    InspectionRejectedError,
    InspectionUnavailableError,
    UnavailableError,
)
from agentbus.ids import new_id
from agentbus.limits import INSPECTIONS_AT_ONCE
from tests.bus_fixture import BusSession, ThrowAwayBus
from tests.eventually import PATIENCE_S, eventually
from tests.hooks import Hook, is_running, is_there
from tests.signals import kill

BODY = """
content = read()["payload"]["content"]
if content.startswith("slow"):
    note("hanging", content)
    wait_for("go")
elif content.startswith("hang"):
    hang()
if "secret" in content:
    answer("deny", "it holds a secret")
else:
    answer("allow")
"""

UNAFFECTED_S = 5.0
"""Far more than an answer takes, far less than the runs that others wait for."""


@contextmanager
def inspected_bus(folder: Path, timeout_s: float = 30.0) -> Iterator[tuple[ThrowAwayBus, Hook]]:
    hook = Hook(folder / "hook", BODY)
    with ThrowAwayBus(inspection_command=hook.argv, inspection_timeout_seconds=timeout_s) as bus:
        yield bus, hook
    eventually(lambda: not any(map(is_running, hook.pids())))


def inspection(bus: ThrowAwayBus) -> Any:
    """What the status says of it."""
    with bus.client() as client:
        return client.request("status", {}, PATIENCE_S)["inspection"]


def send(sender: BusSession, content: str, **changes: Any) -> Any:
    return sender.call("send", channel="general", content=content, **changes)


class Pipeline:
    """Sends of one attachment that do not wait for each other."""

    def __init__(self, sender: BusSession, *contents: str) -> None:
        sender.client.take_unread()  # notices of the bus's state
        self._socket = sender.client.detach()
        self._socket.settimeout(20.0)
        self._lines = self._socket.makefile("rb")
        self._left = len(contents)
        for number, content in enumerate(contents):
            args = {"channel": "general", "content": content, "operation_id": new_id()}
            params = {"attachment": sender.attachment, "args": args}
            frame = {"jsonrpc": "2.0", "id": number, "method": "send", "params": params}
            self._socket.sendall(encode_line(frame))

    def answers(self) -> list[tuple[int, Any]]:
        """Every answer, in the order in which they came: the send's number and its outcome."""
        found = []
        while self._left:
            frame = decode_strict(self._lines.readline())
            if "id" in frame:
                self._left -= 1
                result = frame.get("result")
                outcome = result["sequence"] if result else frame["error"]["data"]["code"]
                found.append((frame["id"], outcome))
        return found

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def test_verdicts_reach_the_sender_and_the_status(tmp_path: Path) -> None:
    with inspected_bus(tmp_path) as (bus, hook):
        sam, eva = bus.attach("Sam"), bus.attach("Eva")
        assert send(sam, "hello")["sequence"] == 1
        with pytest.raises(InspectionRejectedError) as caught:
            send(sam, "my secret")
        assert caught.value.reason == "it holds a secret"
        assert eva.wait_for("deliver")["delivery"]["through"] == 1
        assert send(sam, "no more")["sequence"] == 2
        hook.write("sys.exit(1)")
        with pytest.raises(InspectionUnavailableError):
            send(sam, "hello")
        assert inspection(bus) == {
            "command": hook.argv,
            "allowed": 2,
            "denied": 1,
            "failed": 1,
            "running": 0,
            "waiting": 0,
        }
        assert "secret" not in bus.log().replace("it holds a secret", "")


def test_a_denied_send_is_not_charged(tmp_path: Path) -> None:
    hook = Hook(tmp_path / "hook", BODY)
    with ThrowAwayBus(inspection_command=hook.argv, send_messages_per_second=1) as bus:
        sam = bus.attach("Sam")
        for _ in range(4):
            with pytest.raises(InspectionRejectedError):
                send(sam, "secret")


def test_sends_of_one_sender_keep_their_order_behind_a_slow_first(tmp_path: Path) -> None:
    with inspected_bus(tmp_path) as (bus, hook):
        pipeline = Pipeline(bus.attach("Sam"), "slow", "b", "secret", "c", "d")
        eventually(lambda: bool(hook.lines("hanging")))
        assert send(bus.attach("Eva"), "from another")["sequence"] == 1
        assert len(hook.pids()) == 2, "the later ones of the slow sender have not begun"
        hook.release("go")
        assert pipeline.answers() == [
            (0, 2),
            (1, 3),
            (2, "inspection_rejected"),
            (3, 4),
            (4, 5),
        ]
        pipeline.close()


def test_hanging_runs_delay_neither_heartbeats_nor_others(tmp_path: Path) -> None:
    with inspected_bus(tmp_path) as (bus, hook):
        hanging = [Pipeline(bus.attach(f"Hang{n}"), f"hang {n}") for n in range(20)]
        sam, eva = bus.attach("Sam"), bus.attach("Eva")
        eventually(lambda: len(hook.lines("hanging")) == 20, within_s=20)
        gaps_s = []
        for _ in range(20):
            began_s = time.monotonic()
            bus.client().request("heartbeat", {}, UNAFFECTED_S)
            gaps_s.append(time.monotonic() - began_s)
        assert max(gaps_s) < UNAFFECTED_S
        began_s = time.monotonic()
        for number in range(1, 6):
            assert send(sam, "quick")["sequence"] == number
        eva.call("subscribe", channel="general")
        assert eva.wait_for("deliver", UNAFFECTED_S)
        assert time.monotonic() - began_s < 5 * UNAFFECTED_S
        status = inspection(bus)
        assert (status["running"], status["allowed"]) == (20, 5)
        for pipeline in hanging:
            pipeline.close()


def test_forty_senders_behind_hanging_runs_leave_reads_and_channels_alone(tmp_path: Path) -> None:
    with inspected_bus(tmp_path, timeout_s=4.0) as (bus, hook):
        senders = [bus.attach(f"Hang{n}") for n in range(40)]
        hanging = [Pipeline(sender, "hang") for sender in senders]
        sam = bus.attach("Sam")
        eventually(lambda: inspection(bus)["running"] == INSPECTIONS_AT_ONCE)
        sam.call("create_channel", name="plans")
        sam.call("subscribe", channel="plans")
        assert len(sam.call("list_channels")["channels"]) == 2
        with ThreadPoolExecutor(40) as threads:
            answers = list(threads.map(Pipeline.answers, hanging))
        assert answers == [[(0, "inspection_unavailable")]] * 40
        status = inspection(bus)
        assert (status["failed"], status["running"], status["waiting"]) == (40, 0, 0)
        for pipeline in hanging:
            pipeline.close()
        # Not even a zombie: they were children of the daemon, which still runs.
        assert not any(map(is_there, hook.pids()))


MIXED = """\
#!/bin/sh
read -r document
case $document in
*'"content":"allow'*) echo '{"decision": "allow"}' ;;
*'"content":"deny'*) echo '{"decision": "deny", "reason": "no"}' ;;
*'"content":"garbage'*) echo 'perhaps' ;;
*'"content":"exit'*) echo '{"decision": "allow"}'; exit 3 ;;
*) kill -9 $$ ;;
esac
"""


def test_a_thousand_inspections_at_once_end_each_as_it_should(tmp_path: Path) -> None:
    program = tmp_path / "mixed"
    program.write_text(MIXED)
    program.chmod(0o700)
    kinds = ("allow", "deny", "garbage", "exit", "killed")
    refused = {
        "deny": "inspection_rejected",
        **dict.fromkeys(("garbage", "exit", "killed"), "inspection_unavailable"),
    }
    contents = [f"{kinds[number % 5]} {number}" for number in range(25)]
    with (
        ThrowAwayBus(inspection_command=[str(program)], send_messages_per_second=10_000) as bus,
        bus.client() as client,
    ):
        senders = [Pipeline(bus.attach(f"S{n}"), *contents) for n in range(40)]
        with ThreadPoolExecutor(40) as threads:
            answers = [threads.submit(sender.answers) for sender in senders]
            while not all(answer.done() for answer in answers):
                began_s = time.monotonic()
                client.request("heartbeat", {}, UNAFFECTED_S)
                assert time.monotonic() - began_s < UNAFFECTED_S
                time.sleep(0.05)
        for outcomes in (dict(answer.result()) for answer in answers):
            assert [
                refused.get(content.split()[0], outcomes[number])
                for number, content in enumerate(contents)
            ] == list(outcomes.values())
            allowed = [outcomes[number] for number in range(0, 25, 5)]
            assert allowed == sorted(allowed), "not in the order of their sender"
        counters = client.request("status", {}, 10.0)["inspection"]
        assert (counters["allowed"], counters["denied"], counters["failed"]) == (200, 200, 600)
        assert (counters["running"], counters["waiting"]) == (0, 0)
        assert bus.daemon is not None
        tasks = Path(f"/proc/{bus.daemon.pid}/task")
        children = [
            pid for task in tasks.iterdir() for pid in (task / "children").read_text().split()
        ]
        assert len(children) == 2, "more than Redis and the guard of the runs"
        for sender in senders:
            sender.close()


def test_a_command_that_vanished_answers_until_it_is_back(tmp_path: Path) -> None:
    with inspected_bus(tmp_path) as (bus, hook):
        sam = bus.attach("Sam")
        hook.path.unlink()
        with pytest.raises(InspectionUnavailableError):
            send(sam, "hello", operation_id="op")
        hook.write(BODY)
        assert send(sam, "hello", operation_id="op")["duplicate"] is False
        assert send(sam, "hello", operation_id="op")["duplicate"] is True
        assert len(hook.pids()) == 1


def test_a_sender_that_attaches_anew_finds_its_send_done_once(tmp_path: Path) -> None:
    with inspected_bus(tmp_path) as (bus, hook):
        first = bus.attach("Sam", conversation="c1")
        operation_id = new_id()
        args = {"channel": "general", "content": "slow", "operation_id": operation_id}
        first.client.take_unread()
        connection = first.client.detach()
        params = {"attachment": first.attachment, "args": args}
        frame = {"jsonrpc": "2.0", "id": 1, "method": "send", "params": params}
        connection.sendall(encode_line(frame))
        eventually(lambda: bool(hook.lines("hanging")))
        connection.close()
        again = bus.attach("Sam", conversation="c1")
        hook.release("go")
        assert send(again, "slow", operation_id=operation_id)["sequence"] == 1
        assert send(again, "next")["sequence"] == 2


def test_a_recovery_while_a_command_runs_commits_nothing_of_it(tmp_path: Path) -> None:
    with inspected_bus(tmp_path) as (bus, hook):
        sam, eva = bus.attach("Sam"), bus.attach("Eva")
        pipeline = Pipeline(sam, "slow")
        eventually(lambda: bool(hook.lines("hanging")))
        redis_pid = bus.redis_pid()
        assert redis_pid is not None
        kill(redis_pid)
        with suppress(UnavailableError):  # the loss may have been noticed before
            send(eva, "finds out")
        assert pipeline.answers() == [(0, "unavailable")]
        bus.wait_ready()
        hook.release("go")
        sequence = send(eva, "after it")["sequence"]
        eventually(lambda: inspection(bus)["running"] == 0)
        assert send(eva, "nothing between")["sequence"] == sequence + 1
        pipeline.close()


def test_stop_ends_hanging_runs_and_answers_their_senders(tmp_path: Path) -> None:
    with inspected_bus(tmp_path) as (bus, hook):
        pipelines = [Pipeline(bus.attach(f"Hang{n}"), "hang", "held") for n in range(5)]
        eventually(lambda: len(hook.lines("hanging")) == 5)
        assert bus.stop() == 0, bus.log()
        for pipeline in pipelines:
            held, hung = sorted(pipeline.answers(), reverse=True)
            assert hung == (0, "unavailable")
            assert held[1] in ("stale_attachment", "unavailable")
            pipeline.close()
        assert not any(map(is_running, hook.pids()))


def test_a_killed_daemon_leaves_no_run_and_nothing_of_it_is_stored(tmp_path: Path) -> None:
    with inspected_bus(tmp_path) as (bus, hook):
        hanging = Pipeline(bus.attach("Sam"), "hang")
        eventually(lambda: bool(hook.lines("hanging")))
        bus.kill()
        hanging.close()
        eventually(lambda: not any(map(is_running, hook.pids())))
        bus.start()
        assert bus.attach("Eva").call("history", channel="general")["messages"] == []


def test_a_program_that_is_not_there_is_refused_at_start(tmp_path: Path) -> None:
    bus = ThrowAwayBus(inspection_command=["./no-such-hook"])
    try:
        bus.launch()
        assert bus.wait_ended() == 2
        (line,) = bus.log().splitlines()
        assert "no-such-hook" in line
        assert "nothing is ever allowed by silence" in line
        with pytest.raises(UnavailableError):
            bus.client()
    finally:
        bus.close()
