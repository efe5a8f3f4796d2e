"""Scenarios of much to read: fan-out, a backlog, and readers that do not stop."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from agentbus.config import DATABASE_NAME
from agentbus.errors import OverloadedError
from agentbus.limits import MIB
from tests.benchmarks.filling import CHANNELS, fill
from tests.benchmarks.generator import generate, load_of, start_generator
from tests.benchmarks.load import CHANNEL
from tests.benchmarks.receivers import ReceiverProcess, Receivers
from tests.benchmarks.scale import Rounds, Scale
from tests.bus_fixture import ThrowAwayBus

SETTINGS: dict[str, Any] = {
    "send_messages_per_second": 10_000,
    "send_kib_per_second": 65_536,
    "log_level": "warn",
}
START_WITHIN_S = 300.0
SAMPLE_EVERY_S = 0.05
READING_SESSIONS = 4


@contextmanager
def filled_bus(messages: int, *, channels: int = CHANNELS) -> Iterator[ThrowAwayBus]:
    """A bus whose daemon has not been started yet, with messages in its database."""
    bus = ThrowAwayBus(**SETTINGS)
    try:
        bus.data_directory.mkdir()
        fill(bus.data_directory / DATABASE_NAME, messages, channels=channels)
        yield bus
    finally:
        bus.close()


@contextmanager
def bus_with_channel(**settings: Any) -> Iterator[ThrowAwayBus]:
    """A ready bus with the load's own channel."""
    with ThrowAwayBus(**SETTINGS, **settings) as bus:
        with bus.attach("Setup") as setup:
            setup.call("create_channel", name=CHANNEL)
        yield bus


def measure_fanout(scale: Scale) -> Rounds:
    """One sender with 16 in flight, everybody subscribed to its channel."""
    while True:
        with bus_with_channel() as bus:
            socket_path = bus.runtime.socket
            receivers = Receivers(
                str(socket_path), scale.subscribers, [CHANNEL], "now", scale.fanned_out
            )
            with ReceiverProcess(receivers) as process:
                generate(load_of(socket_path, in_flight=16), "--sends", str(scale.fanned_out))
                received = process.result()
        yield {"subscribers": scale.subscribers, "deliveries/s": received.per_second}


def measure_backlog(scale: Scale) -> Rounds:
    """A session that has everything before it, through its window, as an adapter reads."""
    with filled_bus(scale.messages) as bus:
        bus.start(START_WITHIN_S)
        channels = [f"channel{number}" for number in range(CHANNELS)]
        while True:
            receivers = Receivers(str(bus.runtime.socket), 1, channels, "oldest", scale.messages)
            with ReceiverProcess(receivers) as process:
                received = process.result()
            yield {"messages": scale.messages, "messages/s": received.per_second}


def measure_long_readers(scale: Scale) -> Rounds:
    """The largest size of the write-ahead log while much is sent and somebody reads all the time:
    sessions of the bus, whose searches read SQLite too, and another process in one transaction."""
    while True:
        with bus_with_channel(search_engine="sqlite") as bus, ExitStack() as stack:
            _read_without_end(bus, stack)
            on_bus_bytes = _largest_log_bytes(bus, scale.messages)
        with bus_with_channel() as bus, outside_reader(bus.data_directory / DATABASE_NAME):
            outside_bytes = _largest_log_bytes(bus, scale.messages)
        yield {
            "messages": scale.messages,
            "WAL MiB, readers on the bus": on_bus_bytes / MIB,
            "WAL MiB, a reader outside": outside_bytes / MIB,
        }


def _read_without_end(bus: ThrowAwayBus, stack: ExitStack) -> None:
    """Sessions that read long histories and search, and one that takes nothing."""
    stopping = threading.Event()
    slow = bus.attach("Slow")
    slow.call("subscribe", channel=CHANNEL)

    def read(number: int) -> None:
        with bus.attach(f"Reader{number}") as session:
            while not stopping.is_set():
                with suppress(OverloadedError):  # the search that takes longest is given up
                    session.call("history", channel=CHANNEL, count=1000, max_kib=4096)
                    session.call("search", text="e*", count=1000, max_kib=4096)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(READING_SESSIONS)]
    for thread in threads:
        thread.start()

    def stop() -> None:
        stopping.set()
        for thread in threads:
            thread.join()

    stack.callback(stop)


def _largest_log_bytes(bus: ThrowAwayBus, messages: int) -> int:
    log = bus.data_directory / f"{DATABASE_NAME}-wal"
    load = load_of(bus.runtime.socket, clients=8, in_flight=16)
    largest = 0
    with start_generator(load, "--sends", str(messages)) as process:
        while process.returncode is None:
            try:
                process.wait(SAMPLE_EVERY_S)
            except subprocess.TimeoutExpired:
                largest = max(largest, log.stat().st_size)
    if process.returncode:
        raise SystemExit("the load generator failed")
    return max(largest, log.stat().st_size)


@contextmanager
def outside_reader(database: Path) -> Iterator[None]:
    """Another process that keeps one read transaction open."""
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN');"
        "c.execute('SELECT COUNT(*) FROM messages').fetchall(); print(flush=True); input()"
    )
    argv = [sys.executable, "-c", program, str(database)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        try:
            reader.stdout.readline()
            yield
        finally:
            reader.kill()
