"""Log files: private, bounded, and no data in them can pass for a record or steer a terminal."""

from __future__ import annotations

import logging
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path

import pytest

from agentbus.limits import LOG_FILE_BYTES, LOG_FILES
from agentbus.logs import RECORD_CHARACTERS, setup_logging

LOGGER = logging.getLogger("agentbus.test")
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) [\w.]+ .*")


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in (None, "agentbus", "actors")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        for handler in list(logger.handlers):
            if handler not in handlers:
                logger.removeHandler(handler)
                handler.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "logs" / "daemon.log"


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_record_has_time_level_logger_and_message_on_one_line(path: Path) -> None:
    setup_logging(path, "info")
    LOGGER.info("bus %s is ready", "b1")
    (line,) = lines(path)
    assert LINE.fullmatch(line)
    assert line.endswith("Z INFO agentbus.test bus b1 is ready")


def test_folder_and_file_are_private(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.parent.chmod(0o777)
    path.touch()
    path.chmod(0o666)
    setup_logging(path, "info")
    assert mode(path.parent) == 0o700
    assert mode(path) == 0o600


def test_data_cannot_forge_a_record_or_reach_a_terminal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup_logging(path, "info")
    root = logging.getLogger()
    ours = [one for one in root.handlers if isinstance(one, RotatingFileHandler)]
    assert ours
    # pytest's own would pass the lone surrogate on between its processes, which cannot be done.
    monkeypatch.setattr(root, "handlers", ours)
    LOGGER.info("agent %s", "x\n2026-01-01T00:00:00.000Z INFO agentbus fake\x1b[2J\r\x00\x9b\u2028")
    LOGGER.info("a lone surrogate \udcff and \u202e")
    first, second = lines(path)
    assert "\\n2026" in first
    assert "\\x1b[2J\\r\\x00\\x9b\\u2028" in first
    assert "\\udcff and \\u202e" in second


def test_readable_text_of_any_language_stays_readable(path: Path) -> None:
    setup_logging(path, "info")
    LOGGER.info("channel größe 部屋")
    assert lines(path)[0].endswith("channel größe 部屋")


def test_traceback_is_set_in_so_that_its_text_is_no_record(path: Path) -> None:
    setup_logging(path, "info")
    try:
        raise ValueError("bad\n2026-01-01T00:00:00.000Z INFO agentbus fake \x1b[0m")
    except ValueError:
        LOGGER.exception("failed")
    first, *rest = lines(path)
    assert LINE.fullmatch(first)
    assert rest[0] == "  | Traceback (most recent call last):"
    assert all(line.startswith("  | ") for line in rest)
    assert rest[-1].endswith("fake \\x1b[0m")


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("debug", ["DEBUG", "INFO", "WARNING", "ERROR"]),
        ("info", ["INFO", "WARNING", "ERROR"]),
        ("warn", ["WARNING", "ERROR"]),
        ("error", ["ERROR"]),
    ],
)
def test_level_selects_the_records(path: Path, level: str, shown: list[str]) -> None:
    setup_logging(path, level)
    for severity in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logging.getLogger("actors.test").log(severity, "text")
    assert [line.split()[1] for line in lines(path)] == shown


def test_libraries_log_no_payloads_even_at_debug(path: Path) -> None:
    setup_logging(path, "debug")
    logging.getLogger("peewee").debug("INSERT with the content of a message")
    logging.getLogger("mcp.server").info("Received message: secret")
    logging.getLogger("mcp.server").warning("something is wrong")
    assert [line.split()[2] for line in lines(path)] == ["mcp.server"]


def test_long_record_is_cut_with_a_note(path: Path) -> None:
    setup_logging(path, "info")
    LOGGER.info("x" * (RECORD_CHARACTERS * 2))
    LOGGER.info("\x1b" * RECORD_CHARACTERS)
    for line in lines(path):
        assert len(line) <= RECORD_CHARACTERS
        assert re.search(r" \[\d+ characters cut\]$", line)


def test_files_rotate_within_their_limits_and_stay_private(path: Path) -> None:
    setup_logging(path, "info")
    record = "ü" * 60_000  # two bytes each: the limit is one of bytes
    for number in range((LOG_FILES + 1) * LOG_FILE_BYTES // 120_000):
        LOGGER.info("%d %s", number, record)
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == [
        "daemon.log",
        *(f"daemon.log.{number}" for number in range(1, LOG_FILES)),
    ]
    assert all(file.stat().st_size <= LOG_FILE_BYTES for file in files)
    assert all(mode(file) == 0o600 for file in files)


def test_second_set_up_replaces_the_first(path: Path) -> None:
    setup_logging(path, "info")
    LOGGER.info("one")
    other = path.with_name("other.log")
    setup_logging(other, "info")
    LOGGER.info("two")
    assert [line.split()[-1] for line in lines(path)] == ["one"]
    assert [line.split()[-1] for line in lines(other)] == ["two"]


def test_without_a_path_records_go_to_stderr() -> None:
    program = (
        "import logging\n"
        "from agentbus.logs import setup_logging\n"
        "setup_logging(None, 'info')\n"
        "logging.getLogger('agentbus.x').info('to a person %s', chr(27))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert LINE.fullmatch(done.stderr.rstrip("\n"))
    assert done.stderr.endswith("INFO agentbus.x to a person \\x1b\n")


def test_log_folder_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        setup_logging(tmp_path / "file" / "logs" / "daemon.log", "info")
