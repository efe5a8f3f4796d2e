"""Scenarios of many: channels of which few are in use, sessions that do nothing."""

from __future__ import annotations

import time
from contextlib import ExitStack
from statistics import median

from agentbus.encoding import encode_line
from agentbus.limits import HEARTBEAT_SECONDS, MIB
from tests.adapter.adapter_process import AdapterProcess
from tests.benchmarks.generator import generate, load_of
from tests.benchmarks.load import CHANNEL, BusWire
from tests.benchmarks.reading import START_WITHIN_S, bus_with_channel, filled_bus
from tests.benchmarks.scale import Rounds, Scale
from tests.bus_fixture import ThrowAwayBus
from tests.soak.sampling import ProcessSample, sample_process

ADAPTERS = 3


def measure_channels(scale: Scale) -> Rounds:
    """Sends in turn to a few of many channels, with a subscriber, beside a bus with one channel."""
    active = [f"channel{number}" for number in range(scale.active_channels)]
    with ExitStack() as stack:
        one = stack.enter_context(bus_with_channel())
        many = stack.enter_context(filled_bus(scale.channels, channels=scale.channels))
        many.start(START_WITHIN_S)
        for bus, channels in ((one, [CHANNEL]), (many, active)):
            subscriber = bus.attach("Subscriber")
            for channel in channels:
                subscriber.call("subscribe", channel=channel)
        while True:
            p50_us_one = _accept_p50_us(one, [CHANNEL], scale.seconds)
            p50_us_many = _accept_p50_us(many, active, scale.seconds)
            yield {
                "channels": scale.channels,
                "active": scale.active_channels,
                "accept p50 / 1 channel": p50_us_many / p50_us_one,
                "threads beyond 1 channel's": _daemon(many).threads - _daemon(one).threads,
                "daemon RSS MiB": _daemon(many).rss_bytes / MIB,
                "daemon RSS MiB, 1 channel": _daemon(one).rss_bytes / MIB,
            }


def _accept_p50_us(bus: ThrowAwayBus, channels: list[str], seconds: float) -> float:
    return generate(load_of(bus.runtime.socket, seconds=seconds, channels=channels)).p50_us


def measure_sessions(scale: Scale) -> Rounds:
    """Attached sessions that say no more than an idle adapter does; and a few real adapters."""
    with bus_with_channel() as bus, ExitStack() as stack:
        wires = [BusWire(str(bus.runtime.socket), f"Idle{n}") for n in range(scale.sessions)]
        for wire in wires:
            stack.enter_context(wire.socket)
            wire.call("subscribe", channel=CHANNEL)
        while True:
            adapters = [_start_adapter(bus, number) for number in range(ADAPTERS)]
            before, begin_s = _daemon(bus), time.monotonic()
            _idle(wires, scale.seconds * 5)
            after, end_s = _daemon(bus), time.monotonic()
            yield {
                "sessions": scale.sessions,
                "daemon RSS MiB": after.rss_bytes / MIB,
                "daemon threads": after.threads,
                "daemon CPU %": 100 * (after.cpu_s - before.cpu_s) / (end_s - begin_s),
                "adapter RSS MiB": median(rss_bytes for _, rss_bytes in adapters) / MIB,
                "adapter start to first answer: s": median(start_s for start_s, _ in adapters),
            }


def _idle(wires: list[BusWire], seconds: float) -> None:
    """A heartbeat of each in turn, every `HEARTBEAT_SECONDS`."""
    heartbeat = encode_line({"jsonrpc": "2.0", "id": 0, "method": "heartbeat", "params": {}})
    begin_s = time.monotonic()
    pause_s = HEARTBEAT_SECONDS / len(wires)
    for number in range(int(seconds / pause_s)):
        time.sleep(max(0.0, begin_s + number * pause_s - time.monotonic()))
        wire = wires[number % len(wires)]
        wire.socket.sendall(heartbeat)
        wire.receive()


def _start_adapter(bus: ThrowAwayBus, number: int) -> tuple[float, int]:
    begin_s = time.monotonic()
    with AdapterProcess(bus.environment, bus.config_path, agent=f"Adapter{number}") as adapter:
        adapter.initialize()
        adapter.use("whoami")
        return time.monotonic() - begin_s, sample_process(adapter.process.pid).rss_bytes


def _daemon(bus: ThrowAwayBus) -> ProcessSample:
    assert bus.daemon is not None
    return sample_process(bus.daemon.pid)
