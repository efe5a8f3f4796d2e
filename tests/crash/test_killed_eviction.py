"""kill -9 of the daemon while it makes room: both stores agree afterwards, and gaps are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentbus.config import DATABASE_NAME
from agentbus.failpoints import VARIABLE
from agentbus.ids import Sequence
from agentbus.limits import KIB
from agentbus.store.reader import Reader
from agentbus.transport.client import NoAnswerError
from tests.bus_fixture import BusSession, ThrowAwayBus
from tests.crash.test_killed_daemon import bus, restart
from tests.stores import both_stores

__all__ = ["bus"]

LARGE = "x" * (1000 * KIB)


def send(session: BusSession, number: int) -> int:
    sent = session.call("send", channel="general", content=LARGE, operation_id=f"m{number}")
    return int(sent["sequence"])


@pytest.mark.parametrize("failpoint", ["during_eviction", "before_removal"])
def test_killed_while_room_is_made(bus: ThrowAwayBus, failpoint: str) -> None:
    bus.configure(
        sqlite_budget_mib=64,
        max_message_kib=1024,
        send_kib_per_second=65_536,
        cleanup_free_percent=5,
        search_engine="sqlite",
    )
    bus.environment[VARIABLE] = failpoint
    bus.start()
    sam = bus.attach(conversation="s")
    sent: list[int] = []
    try:
        while len(sent) < 100:
            sent.append(send(sam, len(sent)))
    except NoAnswerError:
        pass
    assert 55 < len(sent) < 70
    restart(bus)
    sam = bus.attach(conversation="s")
    database = bus.data_directory / DATABASE_NAME
    kept = both_stores(database, bus.runtime.redis_socket)
    assert kept == sent[-len(kept) :]
    assert (len(kept) == len(sent)) is (failpoint == "during_eviction")
    gaps = told_gaps(database)
    assert gaps == ([] if len(kept) == len(sent) else [(1, kept[0] - 1, "capacity")])
    assert send(sam, len(sent) - 1) == sent[-1]  # its receipt is there whatever was removed
    assert send(sam, len(sent)) > sent[-1]


def told_gaps(database: Path) -> list[tuple[int, int, str]]:
    store = Reader(database)
    try:
        general = store.channel("general")
        assert general is not None
        ranges = store.removed_ranges(general.channel_id, Sequence(0))
    finally:
        store.close()
    return [(int(one.from_sequence), int(one.to_sequence), one.cause) for one in ranges]
