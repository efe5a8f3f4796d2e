"""Somebody removes files of the database while the bus runs: what was accepted is still there."""

from __future__ import annotations

import pytest

from agentbus.errors import UnavailableError
from tests.bus_fixture import ThrowAwayBus


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
