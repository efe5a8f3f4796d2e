"""A daemon without descriptors or memory: refusals, never a false success, never a loss."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from agentbus.errors import BusError, UnavailableError
from agentbus.transport.client import Client, connect_socket
from tests.bus_fixture import BusSession, ThrowAwayBus
from tests.crash.conversation import attempt
from tests.eventually import PATIENCE_S, eventually

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="needs Linux to limit another process"
)

DESCRIPTORS = 96


@pytest.fixture
def bus() -> Iterator[ThrowAwayBus]:
    with ThrowAwayBus(send_messages_per_second=10_000, send_kib_per_second=65_536) as bus:
        yield bus


@contextmanager
def limited(bus: ThrowAwayBus, what: int, limit: int) -> Iterator[None]:
    """The running daemon may take no more than that, until the end of the block."""
    assert bus.daemon is not None
    unlimited = resource.prlimit(bus.daemon.pid, what)
    resource.prlimit(bus.daemon.pid, what, (limit, unlimited[1]))
    try:
        yield
    finally:
        if bus.daemon is not None and bus.daemon.poll() is None:
            resource.prlimit(bus.daemon.pid, what, unlimited)


def address_space_bytes(bus: ThrowAwayBus) -> int:
    assert bus.daemon is not None
    status = Path(f"/proc/{bus.daemon.pid}/status").read_text()
    found = re.search(r"^VmSize:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def descriptors(bus: ThrowAwayBus) -> int:
    assert bus.daemon is not None
    return len(os.listdir(f"/proc/{bus.daemon.pid}/fd"))


def computed_s(bus: ThrowAwayBus) -> float:
    """What the daemon has computed so far."""
    assert bus.daemon is not None
    fields = Path(f"/proc/{bus.daemon.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def crowd(bus: ThrowAwayBus, size: int) -> Iterator[None]:
    """That many connections that say nothing."""
    with ExitStack() as stack:
        for _ in range(size):
            stack.enter_context(connect_socket(bus.runtime.socket, PATIENCE_S))
        yield


def send(session: BusSession, content: str) -> str:
    return str(session.call("send", channel="general", content=content)["message_id"])


def stored(session: BusSession) -> list[str]:
    page = session.call("history", channel="general", after=0, count=1000, max_kib=4096)
    return [message["message_id"] for message in page["messages"]]


def test_without_descriptors_newcomers_wait_and_everybody_else_goes_on(bus: ThrowAwayBus) -> None:
    sam = bus.attach("Sam")
    send(sam, "first")
    with bus.client() as client:
        before = client.request("status", {}, 10.0)["transport"]["accept_pauses"]
    with limited(bus, resource.RLIMIT_NOFILE, DESCRIPTORS):
        with (
            crowd(bus, DESCRIPTORS),
            Client(connect_socket(bus.runtime.socket, PATIENCE_S)) as newcomer,
        ):
            eventually(lambda: descriptors(bus) == DESCRIPTORS, what="no descriptor left")
            accepted = [send(sam, f"while it is full {number}") for number in range(50)]
            began_s = computed_s(bus)
            assert isinstance(attempt(lambda: newcomer.request("heartbeat", {}, 1.5)), BusError)
            assert computed_s(bus) - began_s < 1.0, "it computes although it can only wait"
        eventually(lambda: bus.state() == "ready", what="an accept after the crowd has gone")
        kim = bus.attach("Kim")
        send(kim, "I am here")
        with bus.client() as client:
            assert client.request("status", {}, 10.0)["transport"]["accept_pauses"] > before
            epoch = client.request("heartbeat", {}, PATIENCE_S)["epoch"]
            assert epoch == 1, "Redis was taken for lost"
        assert set(accepted) <= set(stored(kim))


def test_an_attachment_that_gets_no_descriptor_fails_alone(bus: ThrowAwayBus) -> None:
    sam = bus.attach("Sam")
    send(sam, "first")
    before = descriptors(bus)
    with limited(bus, resource.RLIMIT_NOFILE, DESCRIPTORS):
        with crowd(bus, DESCRIPTORS - before - 2):
            eventually(lambda: descriptors(bus) == DESCRIPTORS - 2, what="two descriptors left")
            kim = bus.attach("Kim", conversation="kim")  # takes one; its database needs two
            assert isinstance(attempt(lambda: kim.call("whoami")), UnavailableError)
            last = send(sam, "I go on")
        eventually(lambda: descriptors(bus) <= before + 2, what="its descriptors given back")
        assert stored(bus.attach("Kim", conversation="kim"))[-1] == last
    assert "AttachmentActor-Kim failed" in bus.log()


def test_without_memory_for_a_thread_newcomers_are_refused_and_the_daemon_lives(
    bus: ThrowAwayBus,
) -> None:
    sam = bus.attach("Sam")
    first = send(sam, "first")
    with limited(bus, resource.RLIMIT_AS, address_space_bytes(bus) + 2_000_000):
        for number in range(3):  # a thread's stack takes 8 MiB
            newcomer = attempt(lambda number=number: bus.attach(f"A{number}"))  # type: ignore[misc]
            if not isinstance(newcomer, BusError):
                assert isinstance(attempt(lambda: newcomer.call("whoami")), BusError)  # noqa: B023
    assert bus.state() == "ready"
    assert bus.log().count("AttachmentActor-A") >= 1
    kim = bus.attach("Kim")
    assert stored(kim) == [first]
    assert send(kim, "there is room again") == stored(sam)[-1]


@pytest.mark.parametrize("room_bytes", [8_000_000, 40_000_000])
def test_an_allocation_that_fails_is_an_error_or_an_end_and_loses_nothing(
    bus: ThrowAwayBus, room_bytes: int
) -> None:
    sam = bus.attach("Sam", conversation="sam")
    accepted: list[str] = []
    with limited(bus, resource.RLIMIT_AS, address_space_bytes(bus) + room_bytes):
        for number in range(12):
            answer = attempt(lambda: send(sam, "x" * 60_000))
            if isinstance(answer, str):
                accepted.append(answer)
            attempt(lambda number=number: bus.attach(f"A{number}"))  # type: ignore[misc]
            if bus.daemon is None or bus.daemon.poll() is not None:
                break
    if bus.state() is None:
        bus.wait_ended()  # it neither hangs nor answers for one that has gone
        bus.start()
    assert set(accepted) <= set(stored(bus.attach("Auditor")))
