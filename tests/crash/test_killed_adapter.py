"""kill -9 of an adapter around the moment in which a result leaves: what the client may have seen
comes again marked, what it cannot have seen comes as new, and nothing is lost."""

from __future__ import annotations

import fcntl
import signal
import termios
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from tests.adapter.adapter_process import AdapterProcess
from tests.bus_fixture import ThrowAwayBus
from tests.eventually import eventually
from tests.signals import freeze

PIPE_BYTES = 4096
"""The smallest pipe that Linux gives: a result of some KiB is written in several steps."""

_numbers = count()


@pytest.fixture(scope="module")
def bus() -> Iterator[ThrowAwayBus]:
    with ThrowAwayBus() as bus:
        yield bus


class Harness:
    """One conversation whose adapters are killed and started again."""

    def __init__(self, bus: ThrowAwayBus) -> None:
        self._bus = bus
        self._conversation = f"killed-{next(_numbers)}"
        self._adapters: list[AdapterProcess] = []
        self.sender = bus.attach("Sender", conversation=self._conversation)

    def start(self, failpoint: str | None = None) -> AdapterProcess:
        adapter = AdapterProcess(
            self._bus.environment,
            self._bus.config_path,
            session=self._conversation,
            extra_environment={} if failpoint is None else {"AGENTBUS_TEST_FAILPOINT": failpoint},
        )
        self._adapters.append(adapter)
        adapter.initialize()
        return adapter

    def kill(self) -> None:
        self._adapters[-1].process.kill()
        self._adapters[-1].wait_exit()

    def send(self, *contents: str) -> None:
        for content in contents:
            self.sender.call("send", channel="general", content=content, operation_id=content[:99])

    def close(self) -> None:
        for adapter in self._adapters:
            adapter.close()
        self.sender.close()


@pytest.fixture
def harness(bus: ThrowAwayBus) -> Iterator[Harness]:
    harness = Harness(bus)
    yield harness
    harness.close()


def messages(answer: Any) -> list[tuple[str, bool]]:
    """Beginning and mark of what a receive gave."""
    return [(m["content"][:9], m.get("redelivered", False)) for m in answer["messages"]]


def unread_bytes(adapter: AdapterProcess) -> int:
    answer = fcntl.ioctl(adapter._read_fd, termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(answer, "little")


@pytest.mark.parametrize(
    "failpoint", ["before_handoff_write", "after_handoff_write", "before_report"]
)
def test_killed_around_the_write_of_a_result_it_comes_again_marked_and_the_rest_does_not(
    harness: Harness, failpoint: str
) -> None:
    harness.start().use("whoami")  # subscribed before anything is sent
    harness.kill()
    harness.send(f"{failpoint}-1", f"{failpoint}-2")
    adapter = harness.start(failpoint)
    request = adapter.call("receive", count=1)
    seen = []
    with suppress(EOFError):
        seen = messages(adapter.answer(request))
    assert adapter.wait_exit() == -signal.SIGKILL
    assert seen == ([] if failpoint == "before_handoff_write" else [(failpoint[:9], False)])
    again = harness.start()
    assert [mark for _, mark in messages(again.use("receive"))] == [True, False]
    harness.kill()
    # That result was never confirmed.
    assert [mark for _, mark in messages(harness.start().use("receive"))] == [True, True]


def test_stopped_and_killed_in_the_middle_of_a_write_it_comes_again_marked(
    harness: Harness,
) -> None:
    adapter = harness.start()
    adapter.use("whoami")
    fcntl.fcntl(adapter._read_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    harness.send("in-the-mi" + "x" * 3 * PIPE_BYTES, "not-taken")
    adapter.call("receive", count=1)
    eventually(lambda: unread_bytes(adapter) == PIPE_BYTES, within_s=40.0, what="the pipe is full")
    freeze(adapter.process.pid)
    harness.kill()
    again = harness.start()
    assert messages(again.use("receive", count=1)) == [("in-the-mi", True)]
    assert messages(again.use("receive")) == [("not-taken", False)]


def test_cancelled_before_its_first_byte_it_comes_again_as_new(harness: Harness) -> None:
    adapter = harness.start()
    adapter.use("whoami")
    fcntl.fcntl(adapter._read_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    harness.send("cancelled")
    listing = adapter.request("tools/list", {})
    eventually(lambda: unread_bytes(adapter) == PIPE_BYTES, within_s=40.0, what="the pipe is full")
    cancelled = adapter.call("receive")
    adapter.cancel(cancelled)
    answered = adapter.request("ping", {})
    assert [adapter.receive()["id"], adapter.receive()["id"]] == [listing, answered]
    harness.kill()
    assert messages(harness.start().use("receive")) == [("cancelled", False)]


@pytest.mark.parametrize("failpoint", ["before_handoff_write", "before_report"])
def test_killed_with_a_daemon_that_never_heard_of_the_result_it_comes_again_marked(
    failpoint: str,
) -> None:
    with ThrowAwayBus() as bus:
        harness = Harness(bus)
        harness.start().use("whoami")
        harness.kill()
        harness.send("both-1", "both-2")
        adapter = harness.start(failpoint)
        eventually(lambda: adapter.use("whoami")["pending"] == 2, what="both are here")
        with bus.client() as client:
            daemon = client.request("status", {}, 10.0)["pid"]
        freeze(daemon)
        adapter.call("receive", count=1)
        assert adapter.wait_exit() == -signal.SIGKILL
        bus.kill()
        bus.start()
        assert messages(harness.start().use("receive")) == [("both-1", True), ("both-2", False)]
        harness.close()
