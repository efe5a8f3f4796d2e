"""reset asks, explains, and empties the bus with or without a daemon."""

from __future__ import annotations

from actors.system import DATABASE_NAME as DAEMONS_NAME
from agentbus.cli.admin.reset import DATABASE_NAME
from agentbus.cli.entry import EXIT_FAILURE, EXIT_OK, EXIT_USAGE
from agentbus.encoding import decode_strict
from agentbus.transport.singleton import DaemonLock, prepare_directory
from tests.bus_fixture import ThrowAwayBus
from tests.cli.command import agentbus, answer_at_terminal
from tests.store.older import make_older


def _config(bus: ThrowAwayBus) -> list[str]:
    return ["--config", str(bus.config_path)]


def _fill(bus: ThrowAwayBus) -> str:
    """One message on a bus that is then stopped; its bus id."""
    bus.start()
    sam = bus.attach("Sam")
    sam.call("send", channel="general", content="precious")
    bus_id = str(sam.call("whoami")["bus_id"])
    assert bus.stop() == 0
    return bus_id


def _messages(bus: ThrowAwayBus) -> int:
    bus.start()
    sam = bus.attach("Sam")
    return len(sam.call("history", channel="general")["messages"])


def test_database_has_the_name_that_the_daemon_gives_it() -> None:
    assert DATABASE_NAME == DAEMONS_NAME


def test_reset_without_terminal_and_without_yes_exits_2(stopped_bus: ThrowAwayBus) -> None:
    _fill(stopped_bus)
    refused = agentbus(stopped_bus, "reset", *_config(stopped_bus))
    assert refused.returncode == EXIT_USAGE
    assert "--yes" in refused.stderr
    assert str(stopped_bus.data_directory) in refused.stderr
    assert _messages(stopped_bus) == 1


def test_reset_without_a_daemon_empties_the_bus(stopped_bus: ThrowAwayBus) -> None:
    old_id = _fill(stopped_bus)
    done = agentbus(stopped_bus, "reset", "--yes", "--json", *_config(stopped_bus))
    assert done.returncode == EXIT_OK, done.stderr
    document = decode_strict(done.stdout)
    assert document["daemon_stopped"] is False
    assert document["bus_id"] != old_id
    assert _messages(stopped_bus) == 0


def test_reset_of_an_older_database_says_what_it_did_and_no_more(
    stopped_bus: ThrowAwayBus,
) -> None:
    stopped_bus.data_directory.mkdir()
    make_older(stopped_bus.data_directory / DATABASE_NAME, 1)
    done = agentbus(stopped_bus, "reset", "--yes", *_config(stopped_bus))
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert _messages(stopped_bus) == 0


def test_reset_with_a_daemon_empties_the_bus_and_stops_it(running_bus: ThrowAwayBus) -> None:
    sam = running_bus.attach("Sam")
    sam.call("send", channel="general", content="precious")
    done = agentbus(running_bus, "reset", "--yes", "--json")
    assert done.returncode == EXIT_OK, done.stderr
    assert decode_strict(done.stdout)["daemon_stopped"] is True
    assert not DaemonLock(running_bus.runtime.lock).held_by_another()
    assert running_bus.wait_ended() == 0
    assert _messages(running_bus) == 0


def test_person_is_told_what_is_lost_and_may_decline(stopped_bus: ThrowAwayBus) -> None:
    _fill(stopped_bus)
    declined = answer_at_terminal(stopped_bus, ["reset", *_config(stopped_bus)], "no\n")
    assert declined.returncode == EXIT_FAILURE
    assert "deletes all messages" in declined.stderr
    assert "nothing was deleted" in declined.stderr
    assert _messages(stopped_bus) == 1


def test_person_may_agree(stopped_bus: ThrowAwayBus) -> None:
    _fill(stopped_bus)
    agreed = answer_at_terminal(stopped_bus, ["reset", *_config(stopped_bus)], "yes\n")
    assert agreed.returncode == EXIT_OK, agreed.stderr
    assert "The bus is empty" in agreed.stdout
    assert _messages(stopped_bus) == 0


def test_reset_of_another_configuration_than_the_running_one_is_refused(
    running_bus: ThrowAwayBus,
) -> None:
    other = running_bus.directory / "other.json"
    refused = agentbus(running_bus, "reset", "--yes", "--config", str(other))
    assert refused.returncode == EXIT_USAGE
    assert str(running_bus.config_path) in refused.stderr
    assert running_bus.state() == "ready"


def test_reset_of_a_damaged_database_says_what_to_do(stopped_bus: ThrowAwayBus) -> None:
    stopped_bus.data_directory.mkdir()
    database = stopped_bus.data_directory / DATABASE_NAME
    database.write_text("this is not SQLite")
    refused = agentbus(stopped_bus, "reset", "--yes", *_config(stopped_bus))
    assert refused.returncode == EXIT_FAILURE
    assert refused.stderr.startswith(f"agentbus: {database}: damaged")
    assert refused.stderr.count("\n") == 1
    assert database.read_text() == "this is not SQLite"


def test_reset_never_touches_a_database_that_is_in_use(stopped_bus: ThrowAwayBus) -> None:
    _fill(stopped_bus)
    prepare_directory(stopped_bus.runtime, stopped_bus.directory.stat().st_uid)
    lock = DaemonLock(stopped_bus.data_directory / "lock")
    assert lock.acquire()
    try:
        refused = agentbus(stopped_bus, "reset", "--yes", *_config(stopped_bus))
    finally:
        lock.release()
    assert refused.returncode == EXIT_FAILURE
    assert "nothing was deleted" in refused.stderr
    assert _messages(stopped_bus) == 1
