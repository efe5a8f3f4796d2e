"""Somebody removes files while the bus runs: what was accepted is still there and can be found."""

from __future__ import annotations

import pytest

from agentbus.errors import UnavailableError
from tests.bus_fixture import ThrowAwayBus
from tests.eventually import eventually


@pytest.mark.parametrize("removed", [("-wal", "-shm"), ("-wal",), ("-shm",)])
def test_without_its_log_the_bus_starts_anew_with_all_that_was_accepted(
    throw_away_bus: ThrowAwayBus, removed: tuple[str, ...]
) -> None:
    bus = throw_away_bus
    sam = bus.attach(conversation="c")
    sent = [sam.call("send", channel="general", content=content)["message_id"] for content in "abc"]
    for suffix in removed:
        (bus.data_directory / f"agentbus.sqlite3{suffix}").unlink()
    with pytest.raises(UnavailableError):
        sam.call("send", channel="general", content="d")
    assert bus.wait_ended() == 1
    assert "was removed or replaced while the bus uses it" in bus.log()
    bus.start()
    again = bus.attach(conversation="c")
    assert again.facts["resumed"] is True
    kept = again.call("history", channel="general")["messages"]
    assert [message["message_id"] for message in kept] == sent


def test_nothing_is_accepted_into_a_database_that_was_moved_away(
    throw_away_bus: ThrowAwayBus,
) -> None:
    bus = throw_away_bus
    sam = bus.attach()
    sam.call("send", channel="general", content="here")  # its attachment has opened the database
    database = bus.data_directory / "agentbus.sqlite3"
    database.rename(database.with_name("moved"))
    with pytest.raises(UnavailableError):
        sam.call("send", channel="general", content="nowhere")
    assert bus.wait_ended() == 1
    assert "was removed or replaced while the bus uses it" in bus.log()


@pytest.mark.parametrize("taken", ["daemon.sock", "lock", "."])
def test_a_daemon_that_nobody_can_find_makes_way_for_another(
    throw_away_bus: ThrowAwayBus, taken: str
) -> None:
    """A cleaner of temporary folders does that to a daemon that runs for weeks."""
    bus = throw_away_bus
    sent = bus.attach().call("send", channel="general", content="kept")
    (bus.runtime.directory / taken).rename(bus.directory / "taken")
    assert bus.wait_ended() == 1
    assert "nobody finds this daemon" in bus.log()
    bus.start()
    (kept,) = bus.attach("Kim").call("history", channel="general")["messages"]
    assert kept["message_id"] == sent["message_id"]


def test_redis_is_replaced_when_its_socket_is_taken_away(throw_away_bus: ThrowAwayBus) -> None:
    """Whoever is connected to it would go on; whoever comes would not get there."""
    bus = throw_away_bus
    sam = bus.attach()
    sent = sam.call("send", channel="general", content="kept")
    first = bus.redis_pid()
    bus.runtime.redis_socket.unlink()
    eventually(lambda: bus.redis_pid() not in (None, first), what="another Redis")
    bus.wait_ready()
    kim = bus.attach("Kim")
    kim.call("subscribe", channel="general", **{"from": "oldest"})
    sam.call("send", channel="general", content="after")
    assert kim.wait_for("deliver")["delivery"]["records"]
    assert sent["sequence"] == 1
