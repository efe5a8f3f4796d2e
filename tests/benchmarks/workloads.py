"""Which workloads there are and how one round of each is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Sample
from tests.benchmarks.generator import generate, load_of
from tests.benchmarks.load import CHANNEL, Load
from tests.benchmarks.references import (
    Floor,
    RedisAlways,
    Scratch,
    measure_simplebroker,
    missing_nats,
    missing_simplebroker,
)
from tests.benchmarks.search_100k import MESSAGES, SearchBuses
from tests.benchmarks.tool_calls import to_adapter, to_empty_server
from tests.bus_fixture import ThrowAwayBus
from tests.redis_fixture import redis_can_search

FLOOR_BATCH = 64
PROBE_CHANNEL = "probe"
LAG_WITHIN_MS = 20_000
"""Less than what ends a silent connection."""

BUS_SETTINGS: dict[str, Any] = {
    "sqlite_synchronous": "full",
    "search_engine": "redis",
    "send_messages_per_second": 10_000,
    "send_kib_per_second": 65_536,
    "log_level": "warn",
}
"""The default durability; rates out of the way. Redis with search: the more costly projection."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`measure(seconds)` is one round. Rounds of all workloads alternate.

    One that is `slow_to_start` prepares itself in its first round, for longer than that takes.
    """

    name: str
    measure: Callable[[float], Sample]
    slow_to_start: bool = False


@contextmanager
def workloads(
    say: Callable[[str], None], *, searched_messages: int = MESSAGES
) -> Iterator[list[Workload]]:
    """Everything that can be measured here, running; says what is left out and why."""
    with ExitStack() as stack:
        scratch = stack.enter_context(Scratch())
        bus = stack.enter_context(ThrowAwayBus(**BUS_SETTINGS))
        with bus.attach("Setup") as setup:
            for name in (CHANNEL, PROBE_CHANNEL):
                setup.call("create_channel", name=name)
        redis = stack.enter_context(closing(RedisAlways(scratch)))
        floor_1 = stack.enter_context(closing(Floor(scratch, 1)))
        floor_64 = stack.enter_context(closing(Floor(scratch, FLOOR_BATCH)))
        adapter = stack.enter_context(closing(to_adapter(bus)))
        empty = stack.enter_context(closing(to_empty_server(bus)))
        search = stack.enter_context(closing(SearchBuses(searched_messages)))
        yield [
            Workload("floor-1", floor_1.measure),
            *_accept("accept", "bus", bus.runtime.socket, lambda: _lag_s(bus)),
            Workload("deliver", lambda seconds: _deliver(bus, seconds)),
            Workload("peer-roundtrip", lambda seconds: _peer_roundtrip(bus, seconds)),
            Workload("mcp-1", adapter.measure),
            Workload("mcp-empty", empty.measure),
            Workload("floor-64", floor_64.measure),
            *_accept("redis", "redis", redis.socket_path, lambda: None),
            *_simplebroker(scratch, say),
            *_search(search, say),
        ]
        if (why := missing_nats()) is not None:
            say(f"skipped: NATS JetStream ({why})")


def _accept(
    prefix: str, target: str, socket_path: Path, lag_s: Callable[[], float | None]
) -> list[Workload]:
    def workload(name: str, clients: int, in_flight: int) -> Workload:
        def measure(seconds: float) -> Sample:
            sample = _generate(target, socket_path, clients, in_flight, seconds)
            return replace(sample, lag_s=lag_s())

        return Workload(f"{prefix}-{name}", measure)

    return [workload("1", 1, 1), workload("8", 8, 1), workload("8x16", 8, 16)]


def _lag_s(bus: ThrowAwayBus) -> float:
    """Until a message that is sent now can be read, and so everything that was sent before it."""
    with bus.attach("Probe") as probe:
        subscribed = probe.call("subscribe", channel=PROBE_CHANNEL)
        begin_s = time.monotonic()
        probe.call("send", channel=PROBE_CHANNEL, content="probe")
        after = {subscribed["subscription_id"]: subscribed["from_sequence"] - 1}
        if not probe.pull(after, wait_ms=LAG_WITHIN_MS, include_own=True):
            raise SystemExit(f"nothing is delivered within {LAG_WITHIN_MS} ms")
        return time.monotonic() - begin_s


def _deliver(bus: ThrowAwayBus, seconds: float) -> Sample:
    return _generate("bus", bus.runtime.socket, 1, 1, seconds, "--deliver")


def _peer_roundtrip(bus: ThrowAwayBus, seconds: float) -> Sample:
    load = load_of(bus.runtime.socket, seconds=seconds)
    return generate(load, generator="peer_load")


def _simplebroker(directory: Path, say: Callable[[str], None]) -> list[Workload]:
    if (why := missing_simplebroker()) is not None:
        say(f"skipped: simplebroker ({why})")
        return []
    return [
        Workload("simplebroker-1", lambda seconds: measure_simplebroker(directory, 1, seconds)),
        Workload("simplebroker-8", lambda seconds: measure_simplebroker(directory, 8, seconds)),
    ]


def _search(buses: SearchBuses, say: Callable[[str], None]) -> list[Workload]:
    engines = ["redis", "sqlite"]
    if not redis_can_search():
        engines.remove("redis")
        say("skipped: search-100k-redis (no search module is installed)")
    return [
        Workload(f"search-100k-{engine}", partial(buses.measure, engine), slow_to_start=True)
        for engine in engines
    ]


def _generate(
    target: str,
    socket_path: Path,
    clients: int,
    in_flight: int,
    seconds: float,
    *options: str,
) -> Sample:
    load = Load(target, str(socket_path), clients, in_flight, seconds)  # type: ignore[arg-type]
    return generate(load, *options)
