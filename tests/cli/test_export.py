"""export and import as a person uses them: backup, restore, moving to another folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbus.cli.entry import EXIT_FAILURE, EXIT_OK, EXIT_USAGE
from agentbus.config import DATABASE_NAME
from agentbus.encoding import decode_strict
from agentbus.transport.singleton import EXIT_DATABASE
from tests.bus_fixture import ThrowAwayBus
from tests.cli.command import agentbus, agentbus_admin

SECRET = "\x1b[31m\u202e look"


@pytest.fixture
def other_bus() -> Iterator[ThrowAwayBus]:
    bus = ThrowAwayBus()
    yield bus
    bus.close()


def _config(bus: ThrowAwayBus) -> list[str]:
    return ["--config", str(bus.config_path)]


def test_a_running_bus_is_exported_and_imported_elsewhere(
    running_bus: ThrowAwayBus, other_bus: ThrowAwayBus
) -> None:
    sam, kim = (
        running_bus.attach("Sam", conversation="s"),
        running_bus.attach("Kim", conversation="k"),
    )
    sent = [sam.call("send", channel="general", content=text, operation_id=text) for text in "abc"]
    (general,) = kim.facts["subscriptions"]
    kim.wait_for("deliver")  # what was not delivered cannot have been handed off
    kim.request(
        "handoff",
        epoch=kim.facts["epoch"],
        report=1,
        positions=[[general["subscription"], sent[0]["sequence"]]],
        expired=[],
    )
    backup = running_bus.directory / "backup.jsonl"
    done = agentbus_admin(running_bus, "export", "--output", str(backup), "--json")
    assert done.returncode == EXIT_OK, done.stderr
    document = decode_strict(done.stdout)
    assert (document["output"], document["counts"]["messages"]) == (str(backup), 3)
    assert document["size_bytes"] == backup.stat().st_size
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert running_bus.state() == "ready"
    assert sorted(path.name for path in backup.parent.glob("*backup*")) == ["backup.jsonl"]

    done = agentbus_admin(other_bus, "import", str(backup), "--json", *_config(other_bus))
    assert done.returncode == EXIT_OK, done.stderr
    bus_id = decode_strict(done.stdout)["bus_id"]
    assert bus_id != document["bus_id"]
    other_bus.start()
    kim = other_bus.attach("Kim", conversation="k")
    assert (kim.facts["resumed"], kim.facts["bus_id"]) == (True, bus_id)
    delivered = kim.wait_for("deliver")["delivery"]
    # The first one was handed off and not confirmed.
    assert [record["content"] for _, record in delivered["records"]] == ["a", "b", "c"]
    assert delivered["redelivered_through"] == sent[0]["sequence"]
    repeat = other_bus.attach("Sam", conversation="s").call(
        "send", channel="general", content="a", operation_id="a"
    )
    assert repeat == sent[0] | {"duplicate": True}


def test_a_bus_without_a_daemon_is_exported_to_stdout(stopped_bus: ThrowAwayBus) -> None:
    stopped_bus.start()
    stopped_bus.attach().call("send", channel="general", content=SECRET)
    assert stopped_bus.stop() == 0
    shown = agentbus_admin(stopped_bus, "export", "--output", "-", *_config(stopped_bus))
    assert shown.returncode == EXIT_OK, shown.stderr
    lines = [decode_strict(line) for line in shown.stdout.splitlines()]
    assert "agentbus_export" in lines[0]
    assert lines[-1]["end"]["counts"]["messages"] == 1
    assert SECRET in [line["message"]["envelope"]["content"] for line in lines if "message" in line]
    stopped_bus.start()  # nothing was changed, and nothing is in the way


def test_stdout_holds_one_thing_only(stopped_bus: ThrowAwayBus) -> None:
    shown = agentbus_admin(stopped_bus, "export", "--output", "-", "--json", *_config(stopped_bus))
    assert (shown.returncode, shown.stdout) == (EXIT_USAGE, "")


def test_without_a_name_the_export_is_a_new_file_in_the_current_folder(
    running_bus: ThrowAwayBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentbus.cli import admin

    monkeypatch.chdir(tmp_path)
    for name, value in running_bus.environment.items():
        monkeypatch.setenv(name, value)
    assert admin.main(["export"]) == EXIT_OK
    (made,) = tmp_path.iterdir()
    assert made.name.startswith("agentbus-export-")


def test_an_export_replaces_an_export_and_nothing_else(running_bus: ThrowAwayBus) -> None:
    folder = running_bus.directory

    def export(place: Path) -> str:
        shown = agentbus_admin(running_bus, "export", "--output", str(place))
        assert (shown.returncode, shown.stderr.count("\n")) in ((EXIT_OK, 0), (EXIT_USAGE, 1))
        return shown.stderr

    earlier, link = folder / "earlier", folder / "link"
    earlier.touch()
    link.symlink_to(earlier)
    assert export(earlier) == ""
    running_bus.attach().call("send", channel="general", content="newer")
    assert export(link) == ""
    assert link.is_symlink()
    assert b"newer" in earlier.read_bytes()
    os.mkfifo(folder / "pipe")
    assert "is not a file" in export(folder / "pipe")
    assert "is a folder" in export(folder)
    for place in (running_bus.config_path, running_bus.data_directory / DATABASE_NAME):
        before = place.read_bytes()
        assert f"{place} is there and is no export" in export(place)
        assert place.read_bytes() == before
    assert not list(folder.glob("**/.*.new"))


@pytest.mark.parametrize("problem", ["no bus", "no folder"])
def test_an_export_that_fails_says_why_and_leaves_no_file(
    stopped_bus: ThrowAwayBus, problem: str
) -> None:
    if problem == "no folder":
        stopped_bus.start()
    folder = stopped_bus.directory / ("gone" if problem == "no folder" else "")
    shown = agentbus_admin(
        stopped_bus, "export", "--output", str(folder / "out"), *_config(stopped_bus)
    )
    assert (shown.returncode, shown.stdout) == (EXIT_FAILURE, "")
    assert shown.stderr.count("\n") == 1
    assert not list(stopped_bus.directory.glob("*out*"))


def test_nothing_is_imported_while_a_daemon_runs(running_bus: ThrowAwayBus) -> None:
    backup = running_bus.directory / "backup"
    assert agentbus_admin(running_bus, "export", "--output", str(backup)).returncode == EXIT_OK
    refused = agentbus_admin(running_bus, "import", str(backup), *_config(running_bus))
    assert refused.returncode == EXIT_FAILURE
    assert "so nothing was imported; run agentbus stop" in refused.stderr
    assert running_bus.state() == "ready"


def test_a_bus_that_is_not_empty_is_left_alone_until_it_is_reset(running_bus: ThrowAwayBus) -> None:
    bus = running_bus
    bus.attach("Sam", conversation="s").call("send", channel="general", content="kept")
    backup = bus.directory / "backup"
    assert agentbus_admin(bus, "export", "--output", str(backup)).returncode == EXIT_OK
    assert bus.stop() == 0
    refused = agentbus_admin(bus, "import", str(backup), *_config(bus))
    assert refused.returncode == EXIT_FAILURE
    assert "run agentbus reset first" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert agentbus(bus, "reset", "--yes", *_config(bus)).returncode == EXIT_OK
    assert backup.exists()
    done = agentbus_admin(bus, "import", str(backup), *_config(bus))
    assert done.returncode == EXIT_OK, done.stderr
    assert "1 messages" in done.stdout
    bus.start()
    sam = bus.attach("Sam", conversation="s")
    assert [m["content"] for m in sam.call("history", channel="general")["messages"]] == ["kept"]


@pytest.mark.parametrize("text", ["", "{}\n", '{"\u202e\x1b": 1}\n', "not an export"])
def test_a_file_that_is_no_export_is_refused_in_one_line(
    stopped_bus: ThrowAwayBus, text: str
) -> None:
    file = stopped_bus.directory / "odd"
    file.write_text(text)
    refused = agentbus_admin(stopped_bus, "import", str(file), *_config(stopped_bus))
    assert refused.returncode == EXIT_FAILURE
    assert f"{file}, line 1: " in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert "\u202e" not in refused.stderr
    assert not (stopped_bus.data_directory / DATABASE_NAME).exists()


def test_a_damaged_database_is_restored_as_the_daemon_says(stopped_bus: ThrowAwayBus) -> None:
    """What the line says is done: move the file away, import the export."""
    bus = stopped_bus
    bus.start()
    bus.attach("Sam", conversation="s").call("send", channel="general", content="kept")
    backup = bus.directory / "backup"
    assert agentbus_admin(bus, "export", "--output", str(backup)).returncode == EXIT_OK
    assert bus.stop() == 0
    database = bus.data_directory / DATABASE_NAME
    with database.open("r+b") as file:
        file.seek(2 * 4096)
        file.write(b"\xee" * 4096)
    for command in (["daemon"], ["daemon", "--detach"]):
        shown = agentbus(bus, *command, *_config(bus))
        assert shown.returncode == (EXIT_DATABASE if command == ["daemon"] else EXIT_FAILURE)
        line = shown.stderr.splitlines()[-1]
        assert line.startswith(f"agentbus: {database}: damaged (")
        assert "agentbus-admin import FILE" in line
    damaged = agentbus_admin(bus, "export", "--output", "-", *_config(bus))
    assert damaged.returncode == EXIT_FAILURE
    assert "damaged" in damaged.stderr
    os.rename(database, database.with_name("damaged"))
    for left in bus.data_directory.glob(f"{DATABASE_NAME}-*"):
        left.unlink()
    done = agentbus_admin(bus, "import", str(backup), *_config(bus))
    assert done.returncode == EXIT_OK, done.stderr
    bus.start()
    sam = bus.attach("Sam", conversation="s")
    assert [m["content"] for m in sam.call("history", channel="general")["messages"]] == ["kept"]
