"""Every setting at its edges, and every way in which a configuration file can be wrong."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentbus.config import (
    SETTINGS,
    Config,
    ConfigError,
    default_path,
    load_config,
)
from agentbus.encoding import encode
from agentbus.errors import ERRORS_BY_CODE, ValidationError
from agentbus.limits import KIB, MIB

# Written out, not taken from SETTINGS: the two must agree. (name, default, minimum, maximum)
INTEGERS = [
    ("redis_budget_mib", 512, 64, 65536),
    ("sqlite_budget_mib", 2048, 64, 1048576),
    ("message_retention_hours", 168, 1, 8760),
    ("cleanup_free_percent", 25, 5, 90),
    ("cleanup_interval_seconds", 60, 5, 3600),
    ("cursor_idle_hours", 72, 1, 720),
    ("tombstone_min_hours", 72, 72, 720),
    ("dedup_retention_hours", 72, 1, 720),
    ("max_message_kib", 64, 1, 1024),
    ("send_messages_per_second", 100, 1, 10000),
    ("send_kib_per_second", 1024, 64, 65536),
    ("prefetch_messages", 256, 1, 4096),
    ("prefetch_mib", 4, 1, 64),
    ("recv_default_count", 100, 1, 1000),
    ("recv_max_count", 1000, 1, 10000),
    ("recv_max_wait_seconds", 60, 0, 300),
    ("result_default_kib", 40, 4, 4096),
    ("talk_max_depth", 3, 1, 16),
    ("talk_timeout_seconds", 60, 1, 600),
    ("peer_lease_seconds", 30, 5, 300),
    ("peer_window_seconds", 600, 30, 86400),
    ("peer_max_extensions", 6, 0, 100),
    ("peer_reply_due_seconds", 900, 60, 604800),
    ("job_idle_seconds", 600, 5, 86400),
    ("job_total_seconds", 86400, 60, 604800),
]
CHOICES = [
    ("log_level", "info", ["debug", "info", "warn", "error"]),
    ("search_engine", "auto", ["auto", "redis", "sqlite"]),
    ("sqlite_synchronous", "full", ["full", "normal"]),
]
OTHER_DEFAULTS: dict[str, object] = {
    "redis_executable": "redis-server",
    "discovery_enabled": True,
    "inspection_command": (),
    "inspection_timeout_seconds": 5.0,
    "talk_peers": (),
    "peer_allow": "*",
    "capabilities": (),
}
NAMES = [row[0] for row in INTEGERS] + [row[0] for row in CHOICES] + [*OTHER_DEFAULTS]
EVERY_NAME = ["data_directory", *NAMES]

# What makes a value at its own edge agree with the other settings.
COMPANIONS: dict[str, dict[str, int]] = {
    "recv_default_count": {"recv_max_count": 10000},
    "recv_max_count": {"recv_default_count": 1},
}

Write = Callable[[object], Path]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


@pytest.fixture
def write(file: Path) -> Write:
    """Write a configuration file: bytes as they are, anything else as JSON."""

    def write_content(content: object) -> Path:
        file.write_bytes(content if isinstance(content, bytes) else encode(content))
        return file

    return write_content


def refusal(path: Path, key: str | None = None) -> str:
    """The message with which the file is refused; it names the file and the key, on one line."""
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = caught.value.message
    assert caught.value.key == key
    assert str(path) in message
    assert message.isprintable()
    if key is not None:
        assert key[:20] in message
    return message


def test_no_file_means_all_defaults(file: Path) -> None:
    config = load_config(file)
    expected = dict(OTHER_DEFAULTS)
    expected.update((row[0], row[1]) for row in INTEGERS)
    expected.update((row[0], row[1]) for row in CHOICES)
    assert {name: getattr(config, name) for name in NAMES} == expected
    assert config.data_directory == Path.home() / ".local/share/agentbus"
    assert set(config.source.values()) == {"default"}
    assert config.path == file
    assert not file.exists()


def test_an_empty_object_means_all_defaults(write: Write, file: Path) -> None:
    empty = load_config(write({}))
    file.unlink()
    assert empty == load_config(file)


def test_there_are_22_settings_and_14_added_ones() -> None:
    assert len(SETTINGS) == 22 + 14
    assert {row.name for row in SETTINGS} == set(EVERY_NAME)
    fields = {field.name for field in dataclasses.fields(Config)}
    assert fields == {*EVERY_NAME, "path", "source"}


def test_every_setting_has_a_meaning_and_every_number_a_unit() -> None:
    for row in SETTINGS:
        assert row.meaning
        assert row.expected
        assert bool(row.unit) == (row.kind in ("integer", "number")), row.name


def test_default_path_is_below_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", "/elsewhere")
    assert default_path() == tmp_path / ".config/agentbus/config.json"
    default_path().parent.mkdir(parents=True)
    default_path().write_bytes(encode({"log_level": "debug"}))
    assert load_config().log_level == "debug"
    assert load_config().path == default_path()


def test_environment_sets_nothing(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    before = load_config(file)
    for name in EVERY_NAME:
        monkeypatch.setenv(f"AGENTBUS_{name.upper()}", "7")
    assert load_config(file) == before


@pytest.mark.parametrize(("name", "_default", "minimum", "maximum"), INTEGERS)
def test_integer_is_accepted_at_its_edges(
    write: Write, name: str, _default: int, minimum: int, maximum: int
) -> None:
    for value in (minimum, maximum):
        config = load_config(write({**COMPANIONS.get(name, {}), name: value}))
        assert getattr(config, name) == value
        assert config.source[name] == "file"


@pytest.mark.parametrize(("name", "_default", "minimum", "maximum"), INTEGERS)
def test_integer_is_refused_beyond_its_edges(
    write: Write, name: str, _default: int, minimum: int, maximum: int
) -> None:
    for value in (minimum - 1, maximum + 1, -(2**63), 2**64 - 1):
        message = refusal(write({**COMPANIONS.get(name, {}), name: value}), name)
        assert f"{name} is {value}, " in message
        assert f"write a whole number from {minimum} to {maximum}" in message


@pytest.mark.parametrize("value", [True, False, 5.0, 80.5, "80", "", None, [80], {"a": 80}])
@pytest.mark.parametrize("name", [row[0] for row in INTEGERS])
def test_integer_is_refused_in_another_type(write: Write, name: str, value: object) -> None:
    message = refusal(write({name: value}), name)
    assert f"{name} is {encode(value).decode()}, which is " in message
    assert "write a whole number" in message


@pytest.mark.parametrize(("value", "seconds"), [(0.1, 0.1), (60, 60.0), (60.0, 60.0), (1, 1.0)])
def test_inspection_timeout_takes_fractions(write: Write, value: float, seconds: float) -> None:
    config = load_config(write({"inspection_timeout_seconds": value}))
    assert config.inspection_timeout_seconds == seconds
    assert type(config.inspection_timeout_seconds) is float


@pytest.mark.parametrize(
    "value", [0.0999, 0, 60.001, 61, -1, 1e300, True, False, "5", None, [5], {}]
)
def test_inspection_timeout_is_refused(write: Write, value: object) -> None:
    message = refusal(write({"inspection_timeout_seconds": value}), "inspection_timeout_seconds")
    assert "write a number from 0.1 to 60" in message


@pytest.mark.parametrize(("name", "_default", "allowed"), CHOICES)
def test_choice_accepts_exactly_its_words(
    write: Write, name: str, _default: str, allowed: list[str]
) -> None:
    for word in allowed:
        assert getattr(load_config(write({name: word})), name) == word
    wrong: list[object] = [allowed[0].upper(), allowed[0] + " ", "", None, True, 1, [allowed[0]]]
    for value in [*wrong, {allowed[0]: 1}]:
        message = refusal(write({name: value}), name)
        assert all(f'"{choice}"' in message for choice in allowed)


@pytest.mark.parametrize("value", [True, False])
def test_discovery_is_on_or_off(write: Write, value: bool) -> None:
    assert load_config(write({"discovery_enabled": value})).discovery_enabled is value


@pytest.mark.parametrize("value", [1, 0, 1.0, "true", "", None, [], {}])
def test_discovery_is_nothing_else(write: Write, value: object) -> None:
    assert "write true or false" in refusal(
        write({"discovery_enabled": value}), "discovery_enabled"
    )


@pytest.mark.parametrize("name", ["data_directory", "redis_executable"])
@pytest.mark.parametrize("value", ["", None, 1, True, ["a"], {}, "~", "~somebody/x", "~x/y"])
def test_path_is_refused(write: Write, name: str, value: object) -> None:
    if name == "redis_executable" and value == "~":
        assert load_config(write({name: value})).redis_executable == "~"  # a plain name, on PATH
        return
    refusal(write({name: value}), name)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/var/bus", "/var/bus"),
        ("/var/../var/bus/", "/var/bus"),
        ("~/bus", "{home}/bus"),
        ("~//bus", "{home}/bus"),
        ("~/", "{home}"),
        ("bus", "{folder}/bus"),
        ("./~bus", "{folder}/~bus"),
        ("../bus", "{parent}/bus"),
        ("bus mit Leerzeichen ü", "{folder}/bus mit Leerzeichen ü"),
    ],
)
def test_data_directory_becomes_absolute(write: Write, value: str, expected: str) -> None:
    path = write({"data_directory": value})
    known = {"home": Path.home(), "folder": path.parent, "parent": path.parent.parent}
    assert load_config(path).data_directory == Path(expected.format(**known))


def test_relative_path_means_the_folder_of_the_file_wherever_one_stands(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write({"data_directory": "data"})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load_config(Path("..") / path.name)
    assert config.path == path
    assert config.data_directory == tmp_path / "data"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("valkey-server", "valkey-server"),
        ("/usr/bin/redis-server", "/usr/bin/redis-server"),
        ("~/bin/redis", "{home}/bin/redis"),
        ("./redis", "{folder}/redis"),
        ("bin/redis", "{folder}/bin/redis"),
    ],
)
def test_redis_executable_is_a_name_or_an_absolute_path(
    write: Write, value: str, expected: str
) -> None:
    path = write({"redis_executable": value})
    executable = load_config(path).redis_executable
    assert executable == expected.format(home=Path.home(), folder=path.parent)


@pytest.mark.parametrize(
    "argv", [[], ["hook"], ["hook", ""], ["h"] * 64, ["x" * 32 * KIB], ["é" * 16 * KIB]]
)
def test_inspection_command_is_accepted(write: Write, argv: list[str]) -> None:
    assert load_config(write({"inspection_command": argv})).inspection_command == tuple(argv)


@pytest.mark.parametrize(
    ("program", "expected"),
    [("~/scan", "{home}/scan"), ("./scan", "{folder}/scan"), ("/bin/scan", "/bin/scan")],
)
def test_program_of_the_inspection_command_is_a_name_or_an_absolute_path(
    write: Write, program: str, expected: str
) -> None:
    path = write({"inspection_command": [program, "./argument"]})
    absolute = expected.format(home=Path.home(), folder=path.parent)
    assert load_config(path).inspection_command == (absolute, "./argument")


@pytest.mark.parametrize(
    "value",
    [
        ["h"] * 65,
        ["x" * 32 * KIB, "y"],
        ["é" * 16 * KIB, "y"],
        [""],
        ["", "hook"],
        ["hook", 1],
        ["hook", None],
        [["hook"]],
        "hook",
        None,
        True,
        {},
        1,
    ],
)
def test_inspection_command_is_refused(write: Write, value: object) -> None:
    refusal(write({"inspection_command": value}), "inspection_command")


@pytest.mark.parametrize("name", ["talk_peers", "peer_allow"])
def test_names_are_a_star_or_a_list(write: Write, name: str) -> None:
    for value in ("*", [], ["Sam"], ["Sam", "é" * 64], ["x" * 128]):
        got = getattr(load_config(write({name: value})), name)
        assert got == (value if isinstance(value, str) else tuple(value))
    wrong: list[object] = ["Sam", "", None, True, 1, {}, ["*"], [""], ["x" * 129], ["é" * 65]]
    for refused in [*wrong, ["a\tb"], ["a\x85b"], ["e\u0301"], [1], ["Sam", None]]:
        refusal(write({name: refused}), name)


def test_capabilities_are_up_to_50_of_up_to_80_characters(write: Write) -> None:
    many = [f"c{n}" for n in range(50)]
    for value in ([], ["a"], ["é" * 79], ["é" * 80], many[:49], many):
        assert load_config(write({"capabilities": value})).capabilities == tuple(value)
    wrong: list[object] = [[""], ["x" * 81], [f"c{n}" for n in range(51)], "*", None, True, [1], {}]
    for refused in [*wrong, ["a\nb"], ["a\x1b[31m"], ["a\x85"]]:
        refusal(write({"capabilities": refused}), "capabilities")


def test_default_count_must_not_exceed_the_largest_count(write: Write) -> None:
    assert load_config(write({"recv_default_count": 7, "recv_max_count": 7})).recv_max_count == 7
    for wrong in ({"recv_default_count": 8, "recv_max_count": 7}, {"recv_max_count": 99}):
        message = refusal(write(wrong), "recv_default_count")
        assert "recv_max_count" in message
        assert "lower the first or raise the second" in message


def test_smallest_prefetch_holds_the_largest_message(write: Write) -> None:
    config = load_config(write({"prefetch_mib": 1, "max_message_kib": 1024}))
    assert config.prefetch_mib * MIB >= config.max_message_kib * KIB


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b" \n\t", "empty"),
        (b"{", "not a JSON document"),
        (b'{"log_level": "info",}', "not a JSON document"),
        (b"{'log_level': 'info'}", "not a JSON document"),
        (b'{"log_level": "info"} // why', "not a JSON document"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"log_level": "\xff"}', "not UTF-8 at byte 15"),
        (b'{"log_level": "info", "log_level": "info"}', "duplicate key 'log_level'"),
        (b'{"a\\nb": 1, "a\\nb": 1}', "duplicate key"),
        (b'{"redis_budget_mib": 18446744073709551616}', "64 bits"),
        (b'{"redis_budget_mib": ' + b"9" * 5000 + b"}", "64 bits"),
        (b'{"inspection_timeout_seconds": NaN}', "NaN"),
        (b'{"inspection_timeout_seconds": Infinity}', "Infinity"),
        (b'{"inspection_timeout_seconds": 1e999}', "out of range"),
        (b'{"data_directory": "a\\u0000b"}', "NUL"),
        (b'{"data_directory": "\\ud800"}', "surrogate"),
        (b'{"capabilities": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "nested"),
        (b"[]", "a list"),
        (b"null", "null"),
        (b"5", "a whole number"),
        (b'"text"', "text"),
        (b"true", "a truth value"),
        (b"{}" + b" " * MIB, "larger than"),
    ],
)
def test_broken_file_is_refused(write: Write, content: bytes, says: str) -> None:
    message = refusal(write(content))
    assert says in message
    assert len(message) < 400


def test_unknown_key_is_refused_with_its_value_and_a_near_one(write: Write) -> None:
    message = refusal(write({"redis_budget_mb": 512}), "redis_budget_mb")
    assert "512" in message
    assert "did you mean redis_budget_mib?" in message
    assert "remove it" in refusal(write({"zzzz": None}), "zzzz")
    assert "remove it" in refusal(write({"": 1}), "")


@pytest.mark.parametrize("name", EVERY_NAME)
def test_key_in_capitals_is_unknown(write: Write, name: str) -> None:
    assert "unknown key" in refusal(write({name.upper(): 1}), name.upper())


@pytest.mark.parametrize(
    "value", ["x" * 100_000, ["y" * 100_000], {"k": ["z" * 100_000]}, "\x1b[2J\r\n\u202e" * 5000]
)
@pytest.mark.parametrize("name", ["log_level", "redis_budget_mib", "talk_peers", "no_such_key"])
def test_value_in_a_message_is_bounded_and_harmless(write: Write, name: str, value: Any) -> None:
    message = refusal(write({name: value}), name)
    assert "…" in message
    assert len(message.removeprefix(str(write({})))) < 400


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling link", "below a file"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config.json"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "dangling link":
            path.symlink_to(tmp_path / "nothing")
        case _:
            path.touch()
            path = path / "config.json"
    refusal(path)


def test_unreadable_file_is_refused(write: Write) -> None:
    path = write({"log_level": "debug"})
    path.chmod(0)
    as_root = os.geteuid() == 0
    if as_root:
        os.seteuid(65534)  # root may read everything; anybody else may not
    try:
        with pytest.raises(ConfigError, match=r"cannot be read \(Permission denied\)"):
            load_config(path)
    finally:
        if as_root:
            os.seteuid(0)


def test_path_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a usable path"):
        load_config(Path("/tmp/a\0b"))


@pytest.mark.parametrize("home", ["", "relative/home"])
def test_home_that_is_no_absolute_path_is_refused(
    monkeypatch: pytest.MonkeyPatch, write: Write, home: str
) -> None:
    monkeypatch.setenv("HOME", home)
    if not home:
        monkeypatch.setattr(Path, "home", lambda: Path(home))
    with pytest.raises(ConfigError, match="HOME"):
        load_config()
    with pytest.raises(ConfigError, match="HOME"):
        load_config(write({"data_directory": "~/bus"}))


def test_path_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff/config.json"))
    path.parent.mkdir()
    path.write_bytes(encode({"data_directory": "data"}))
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        load_config(path)
    assert caught.value.message.isprintable()


def test_config_error_is_a_validation_error_on_the_wire() -> None:
    error = ConfigError(Path("/f"), "why", key="k")
    assert isinstance(error, ValidationError)
    assert error.as_data() == {"code": "validation", "message": "/f: why", "retryable": False}
    assert ERRORS_BY_CODE["validation"] is ValidationError


def test_fingerprint_follows_effective_values_only(write: Write) -> None:
    plain = load_config(write({"log_level": "info"}))
    spelled = load_config(
        write(b'\n{ "inspection_timeout_seconds": 5, "log_level":"\\u0069nfo", "prefetch_mib":4}')
    )
    assert spelled.fingerprint() == plain.fingerprint() == load_config(write({})).fingerprint()
    seen = {plain.fingerprint()}
    for row in SETTINGS:
        changed: object = {
            "folder": "/elsewhere",
            "executable": "valkey-server",
            "integer": row.maximum,
            "number": 6,
            "boolean": False,
            "choice": row.allowed[-1] if row.allowed else None,
            "argv": ["hook"],
            "names": ["Sam"],
            "labels": ["review"],
        }[row.kind]
        seen.add(
            load_config(write({**COMPANIONS.get(row.name, {}), row.name: changed})).fingerprint()
        )
    assert len(seen) == 1 + len(SETTINGS)


def test_effective_values_written_as_a_file_mean_the_same(write: Write) -> None:
    config = load_config(write({"data_directory": "d", "talk_peers": ["Sam"], "prefetch_mib": 8}))
    again = load_config(write(config.effective()))
    assert again == config
    assert set(again.source.values()) == {"file"}
    assert [*config.effective()] == [row.name for row in SETTINGS]


def test_config_cannot_be_changed(file: Path) -> None:
    config = load_config(file)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.log_level = "debug"  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.source["log_level"] = "file"  # type: ignore[index]
