"""A damaged page that is met while the bus runs: told as such, and refused at the next start."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from agentbus.errors import BusError, InternalError
from agentbus.launch import ensure_daemon
from agentbus.transport.singleton import EXIT_DATABASE
from tests.bus_fixture import ThrowAwayBus
from tests.cli.command import agentbus
from tests.crash.conversation import attempt

PAGE = 4096
MESSAGES = 40


@pytest.fixture
def bus() -> Iterator[ThrowAwayBus]:
    """Not started yet."""
    bus = ThrowAwayBus(send_messages_per_second=10_000, send_kib_per_second=65_536)
    yield bus
    bus.close()


def test_a_page_that_is_damaged_while_the_bus_runs_ends_in_clear_errors_not_in_a_loop(
    bus: ThrowAwayBus,
) -> None:
    bus.start()
    sam = bus.attach(conversation="c")
    sent = [
        sam.call("send", channel="general", content="x" * 3000)["message_id"]
        for _ in range(MESSAGES)
    ]
    assert bus.stop() == 0  # everything is in the file, nothing in a cache
    bus.start()
    database = bus.data_directory / "agentbus.sqlite3"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'messages_message_id_revision'"
        ).fetchone()
    whole = database.read_bytes()
    with database.open("r+b") as file:
        file.seek((root - 1) * PAGE)
        file.write(b"\xee" * PAGE)
    kim = bus.attach("Kim")
    answer = attempt(lambda: kim.call("history", message_id=sent[0]))
    assert isinstance(answer, InternalError), answer
    assert "the database is damaged" in answer.message
    assert not answer.retryable
    assert bus.state() == "ready"
    assert len(kim.call("history", channel="general", count=1)["messages"]) == 1
    with bus.client() as client:
        assert client.request("status", {}, 10.0)["state"] == "ready"
    bus.stop()

    refused = agentbus(bus, "daemon", "--config", str(bus.config_path))
    assert refused.returncode == EXIT_DATABASE
    assert f"agentbus: {database}: damaged (" in refused.stderr
    with pytest.raises(BusError, match="agentbus-admin import FILE") as told:
        ensure_daemon(bus.runtime, bus.config_path, deadline_s=20.0, env=bus.environment).close()
    assert isinstance(told.value, InternalError)
    database.write_bytes(whole)
    bus.start()
    again = bus.attach(conversation="c").call("history", channel="general", after=0, max_kib=4096)
    assert [message["message_id"] for message in again["messages"]] == sent
