"""A bus whose budgets are full: what is removed, who waits, who is refused and who hears of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from actors.system import REDIS_CHECK_SECONDS
from agentbus.errors import CapacityExhaustedError, OverloadedError
from agentbus.ids import new_id
from agentbus.limits import KIB, MIB
from agentbus.projection.connection import connect, dataset_bytes
from agentbus.projection.launching import RedisSettings
from agentbus.store import accounting
from agentbus.store.connection import open_reader
from agentbus.store.reader import Reader
from tests.bus_fixture import BusSession
from tests.eventually import PATIENCE_S, eventually
from tests.hooks import Hook
from tests.integration.in_process import InProcessBus, in_process_bus
from tests.stores import both_stores

LARGE = "x" * (32 * KIB)
LARGER = "x" * 60_000
SENT = 450


@contextmanager
def small_bus(*, sqlite_mib: int = 1, redis_mib: int = 64, **settings: Any) -> Iterator[Any]:
    fast = {"send_messages_per_second": 10_000, "send_kib_per_second": 65_536}
    budgets = {"sqlite_budget_mib": sqlite_mib, "redis_budget_mib": redis_mib}
    settings = {"search_engine": "sqlite", **fast, **settings}
    with in_process_bus(beyond_bounds=budgets, **settings) as bus:
        yield bus


def send(session: BusSession, content: str = LARGE, channel: str = "general") -> int:
    """As an adapter does: again with the same operation id while the bus is overloaded."""
    operation_id = new_id()

    def sent() -> Any:
        try:
            return session.call("send", channel=channel, content=content, operation_id=operation_id)
        except OverloadedError:
            return None

    return int(eventually(sent)["sequence"])


def agree(bus: InProcessBus) -> list[int]:
    """The same, as soon as what was committed is projected."""

    def compared() -> tuple[list[int]] | None:
        try:
            return (both_stores(bus.database, bus.paths.redis_socket),)
        except AssertionError:
            return None

    return eventually(compared, 10.0, what="both stores agree")[0]


def recount(bus: InProcessBus) -> None:
    with closing(open_reader(bus.database)) as connection, closing(Reader(bus.database)) as store:
        assert accounting.recount(connection) == store.logical_bytes()


def test_a_full_bus_goes_on_by_forgetting_its_oldest_messages() -> None:
    with small_bus() as bus:
        sam = bus.attach()
        sent = [send(sam) for _ in range(100)]
        kept = agree(bus)
        assert kept == sent[-len(kept) :]
        assert 20 <= len(kept) <= 32
        budgets = bus.status()["budgets"]
        assert budgets["sqlite"]["used_bytes"] <= MIB
        assert not budgets["sqlite"]["exhausted"]
        assert bus.status()["cleanup"]["removed_for_room"] == 100 - len(kept)
        recount(bus)


def test_a_reader_who_was_away_is_told_exactly_what_is_gone_and_why() -> None:
    with small_bus() as bus:
        sam = bus.attach("Sam")
        bus.attach("Ada", "reads later")
        send(sam, "old")
        bus.clock.advance(hours=bus.config.message_retention_hours - 170)
        bus.clock.advance(hours=170)  # every connection has been silent for too long
        bus.after_cleanup(lambda: agree(bus) == [], what="the cleanup")
        ada, sam = bus.attach("Ada", "reads later"), bus.attach("Sam")
        ada.call("subscribe", channel="general", **{"from": "oldest"})
        [subscription] = subscriptions(bus, ada)
        for _ in range(60):
            send(sam)
        kept = agree(bus)
        [delivery] = ada.pull({subscription: 0}, count=1)
        assert [gap[:3] for gap in delivery["gaps"]] == [
            [1, 1, "age"],
            [2, kept[0] - 1, "capacity"],
        ]
        recount(bus)


def subscriptions(bus: InProcessBus, session: BusSession) -> list[int]:
    with closing(Reader(bus.database)) as store:
        rows = store.subscriptions(session.facts["session_id"])
    return [row.subscription_id for row in rows]


def test_concurrent_senders_wait_for_room_and_none_is_refused_or_passed() -> None:
    with small_bus() as bus:
        sessions = [bus.attach(f"A{number}") for number in range(4)]
        sequences: list[list[int]] = [[] for _ in sessions]

        def run(number: int) -> None:
            sequences[number] += [send(sessions[number]) for _ in range(40)]

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for own in sequences:
            assert own == sorted(own)
            assert len(own) == 40
        kept = agree(bus)
        assert kept == sorted(chain(*sequences))[-len(kept) :]
        recount(bus)


def fill_with_memories(session: BusSession) -> tuple[list[str], CapacityExhaustedError]:
    """Until one is refused: the ids of those that are there, and the refusal."""
    session.call("create_channel", name="facts", kind="memory")
    ids: list[str] = []
    while len(ids) < 200:
        try:
            sent = session.call("send", channel="facts", content=LARGE, operation_id=f"m{len(ids)}")
        except CapacityExhaustedError as refused:
            return ids, refused
        ids.append(sent["message_id"])
    raise AssertionError("the bus is never full")


def test_when_only_memories_are_left_sends_are_refused_and_everything_else_goes_on() -> None:
    with small_bus() as bus:
        sam, ada = bus.attach("Sam"), bus.attach("Ada")
        first = sam.call("send", channel="general", content="first", operation_id="first")
        _, refused = fill_with_memories(sam)
        text = refused.message
        for part in ("sqlite_budget_mib", str(bus.config.path), "agentbus reset", "agentbus stop"):
            assert part in text
        with pytest.raises(CapacityExhaustedError):
            send(sam)
        again = sam.call("send", channel="general", content="first", operation_id="first")
        assert again["duplicate"]
        assert again["sequence"] == first["sequence"]
        assert agree(bus) == []
        kim = bus.attach("Kim")
        kim.call("create_channel", name="elsewhere")
        kim.call("subscribe", channel="elsewhere")
        assert kim.call("history", channel="facts", count=1)["messages"]
        assert bus.status()["budgets"]["sqlite"]["exhausted"]
        recount(bus)
        notice = ada.wait_for("notice")["notice"]
        assert (notice["kind"], notice["exhausted"]) == ("capacity", True)
        assert str(bus.config.path) in notice["message"]


def test_room_made_by_age_lets_the_bus_accept_again_and_says_so_once() -> None:
    with small_bus(dedup_retention_hours=1) as bus:
        sam = bus.attach("Sam")
        memories, _ = fill_with_memories(sam)
        assert sam.wait_for("notice")["notice"]["exhausted"]
        bus.clock.advance(hours=2)
        bus.after_cleanup(lambda: bus.status()["cleanup"]["removed_rows"], what="of receipts")
        sam = bus.attach("Sam")
        for memory_id in memories[:3]:
            sam.call("delete_memory", memory_id=memory_id, operation_id=new_id())
        with pytest.raises(CapacityExhaustedError):
            send(sam)
        bus.clock.advance(hours=72, seconds=-60)
        sam = bus.attach("Sam")

        def is_clear() -> bool:
            bus.clock.advance(5)
            sam.client.request("heartbeat", {}, PATIENCE_S)
            return not bus.status()["budgets"]["sqlite"]["exhausted"]

        eventually(is_clear)
        send(sam)
        notice = sam.wait_for("notice")["notice"]
        while notice["exhausted"]:  # what is told daily may have been told after the attach
            notice = sam.wait_for("notice")["notice"]
        assert (notice["kind"], notice["exhausted"]) == ("capacity", False)
        send(sam)
        assert not [told for told in sam.notifications if told.method == "notice"]
        recount(bus)


@pytest.mark.parametrize(("search_engine", "mib"), [("sqlite", 3), ("auto", 6)])
def test_a_full_redis_has_the_oldest_removed_from_both_stores(search_engine: str, mib: int) -> None:
    limit_bytes = mib * MIB
    with small_bus(sqlite_mib=64, redis_mib=mib, search_engine=search_engine) as bus:
        sam = bus.attach()
        sent = [send(sam, words(number)) for number in range(SENT)]
        agree(bus)
        settled_below(bus, limit_bytes)
        kept = agree(bus)
        assert kept == sent[-len(kept) :]
        assert len(kept) < SENT
        assert redis_used(bus) > limit_bytes // 2
        assert bus.status()["budgets"]["binding"] == "redis"
        assert not bus.status()["budgets"]["redis"]["exhausted"]
        recount(bus)


def words(number: int) -> str:
    return " ".join(f"word-{(number + step) % 500}" for step in range(1000))


def settled_below(bus: InProcessBus, limit_bytes: int) -> None:
    """What stands above the budget by less than its share between two measurements is found by the
    next look at Redis, when nothing more is sent."""

    def is_below() -> bool:
        bus.clock.advance(REDIS_CHECK_SECONDS)
        return redis_used(bus) < limit_bytes

    eventually(is_below, what="Redis is below its budget")


def redis_used(bus: InProcessBus) -> int:
    return int(bus.status()["budgets"]["redis"]["used_bytes"])


def test_a_redis_full_of_memories_is_exhausted_until_it_is_not() -> None:
    with small_bus(sqlite_mib=64, redis_mib=1) as bus:
        sam = bus.attach()
        memories, refused = fill_with_memories(sam)
        assert "redis_budget_mib" in refused.message
        assert sam.wait_for("notice")["notice"]["budget"] == "redis_budget_mib"
        again = sam.call("send", channel="facts", content=LARGE, operation_id="m0")
        assert (again["message_id"], again["duplicate"]) == (memories[0], True)
        assert sam.call("get_memory", memory_id=memories[0])
        with closing(connect(bus.paths.redis_socket)) as client:
            # Redis takes the buffers of its clients, 84 KiB here, for data until it looks at them.
            assert 0.9 * MIB < dataset_bytes(client) < 1.2 * MIB
        for memory_id in memories[:4]:
            with pytest.raises(CapacityExhaustedError):
                sam.call("delete_memory", memory_id=memory_id, operation_id=new_id())


def small_backstop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis refuses to grow 16 MiB above its budget already; a batch that is loaded takes 8 MiB of
    that for a moment, and Redis 2 MiB for itself."""
    monkeypatch.setattr(
        RedisSettings, "memory_bytes", property(lambda settings: settings.budget_bytes + 16 * MIB)
    )


def restart(bus: InProcessBus, **budgets: int) -> None:
    bus.system.stop()
    bus.config = replace(bus.config, **budgets)
    bus.start()


def test_a_rebuild_that_does_not_fit_removes_the_oldest_and_fits_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with small_bus(sqlite_mib=64) as bus:
        sam = bus.attach("Sam", "s")
        sent = [send(sam, LARGER) for _ in range(400)]
        small_backstop(monkeypatch)
        restart(bus, redis_budget_mib=3)
        # How much did not fit is an estimate; what is still too much goes while the bus is ready.
        settled_below(bus, 3 * MIB)
        eventually(lambda: len(agree(bus)) < 50, what="room as after any cleanup")
        kept = agree(bus)
        assert kept == sent[-len(kept) :]
        assert len(kept) > 20
        assert redis_used(bus) < 3 * MIB
        status = bus.status()
        assert not status["budgets"]["redis"]["exhausted"]
        assert any("no memory left" in error["what"] for error in status["errors"])
        send(bus.attach("Sam", "s"))
        recount(bus)


def test_memories_that_do_not_fit_a_rebuild_stay_readable_and_nothing_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with small_bus(sqlite_mib=64) as bus:
        sam = bus.attach("Sam", "s")
        sam.call("create_channel", name="facts", kind="memory")
        memories = [
            sam.call("send", channel="facts", content=LARGER, operation_id=new_id())["message_id"]
            for _ in range(400)
        ]
        send(sam)
        small_backstop(monkeypatch)
        restart(bus, redis_budget_mib=3)
        eventually(lambda: bus.status()["budgets"]["redis"]["exhausted"])
        sam = bus.attach("Sam", "s")
        assert sam.call("get_memory", memory_id=memories[0])["memory"]["message_id"] == memories[0]
        assert agree(bus) == []
        with pytest.raises(CapacityExhaustedError):
            send(sam)
        restart(bus, redis_budget_mib=64)
        send(bus.attach("Sam", "s"))


def test_a_message_that_waits_for_room_is_inspected_once_and_a_repeat_never(
    tmp_path: Path,
) -> None:
    hook = Hook(tmp_path / "hook", 'read()\nanswer("allow")')
    with small_bus(inspection_command=hook.argv, inspection_timeout_seconds=30) as bus:
        sam = bus.attach()
        sent = [send(sam) for _ in range(40)]
        assert len(hook.documents()) == 40
        kept = agree(bus)
        assert kept == sent[-len(kept) :]
        assert len(kept) < 40
        _, refused = fill_with_memories(sam)
        assert refused.code == "capacity_exhausted"
        runs = len(hook.documents())
        again = sam.call("send", channel="facts", content=LARGE, operation_id="m0")
        assert again["duplicate"]
        assert len(hook.documents()) == runs


def test_both_budgets_full_at_once_end_below_both() -> None:
    with small_bus(sqlite_mib=2, redis_mib=2) as bus:
        sam = bus.attach()
        sent = [send(sam) for _ in range(150)]
        agree(bus)
        settled_below(bus, 2 * MIB)
        kept = agree(bus)
        assert kept == sent[-len(kept) :]
        assert len(kept) > 20
        assert bus.status()["budgets"]["sqlite"]["used_bytes"] <= 2 * MIB
        recount(bus)
