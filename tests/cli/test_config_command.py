"""agentbus-admin config shows every setting with its source."""

from __future__ import annotations

from agentbus.cli.entry import EXIT_OK, EXIT_USAGE
from agentbus.encoding import decode_strict
from agentbus.settings import SETTINGS
from tests.bus_fixture import ThrowAwayBus
from tests.cli.command import agentbus_admin


def test_every_setting_is_shown_with_value_source_and_meaning(stopped_bus: ThrowAwayBus) -> None:
    stopped_bus.configure(recv_max_count=500)
    shown = agentbus_admin(stopped_bus, "config", "--config", str(stopped_bus.config_path))
    assert shown.returncode == EXIT_OK, shown.stderr
    for row in SETTINGS:
        line = next(line for line in shown.stdout.splitlines() if row.name in line.split())
        assert ("file" in line.split()) is (row.name in ("recv_max_count", "data_directory"))
        assert row.meaning.split()[0] in line


def test_configuration_as_json(stopped_bus: ThrowAwayBus) -> None:
    stopped_bus.configure(recv_max_count=500)
    path = str(stopped_bus.config_path)
    document = decode_strict(
        agentbus_admin(stopped_bus, "config", "--json", "--config", path).stdout
    )
    assert (document["path"], document["exists"]) == (path, True)
    rows = {row["name"]: row for row in document["settings"]}
    assert list(rows) == [row.name for row in SETTINGS]
    assert (rows["recv_max_count"]["value"], rows["recv_max_count"]["source"]) == (500, "file")
    assert rows["prefetch_mib"]["source"] == "default"


def test_missing_file_means_all_defaults_and_says_so(stopped_bus: ThrowAwayBus) -> None:
    shown = agentbus_admin(stopped_bus, "config")
    assert shown.returncode == EXIT_OK
    assert "does not exist" in shown.stdout


def test_refused_configuration_is_one_line_and_exit_code_2(stopped_bus: ThrowAwayBus) -> None:
    stopped_bus.config_path.write_text('{"recv_max_count": 0}')
    shown = agentbus_admin(stopped_bus, "config", "--config", str(stopped_bus.config_path))
    assert shown.returncode == EXIT_USAGE
    assert "recv_max_count" in shown.stderr
    assert shown.stderr.count("\n") == 1
