"""`export`: the whole bus as a file of JSON lines, with or without a running daemon.

The file is made under another name beside its place, private to its owner, and renamed when it is
complete: a file of the name that was asked for is always a whole export. Never replaces what is no
export, such as a configuration or the database itself. Runs on the main thread.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from agentbus.cli.entry import EXIT_OK, Arguments
from agentbus.cli.output import print_json
from agentbus.cli.running import find_daemon
from agentbus.cli.text import for_terminal
from agentbus.config import DATABASE_NAME, load_config
from agentbus.errors import UnavailableError, ValidationError

if TYPE_CHECKING:
    from agentbus.store.exporting import ExportSummary

STDOUT = "-"


def export(arguments: Arguments) -> int:
    """Write the export and say what is in it."""
    database = _database(arguments)
    output = arguments["--output"] or time.strftime("agentbus-export-%Y%m%d-%H%M%S.jsonl")
    if output == STDOUT:
        _refuse_mixed_output(arguments)
        # Not to the pipe itself: whoever reads it slowly would hold up the bus's own housekeeping.
        with tempfile.TemporaryFile() as spool:
            _export(database, spool)
            spool.seek(0)
            shutil.copyfileobj(spool, sys.stdout.buffer)
        return EXIT_OK
    place = Path(os.path.realpath(output))
    _refuse_to_replace(place)
    with _whole_file(place) as file:
        summary = _export(database, file)
    if arguments["--json"]:
        print_json(
            {
                "output": str(place),
                "bus_id": summary.bus_id,
                "counts": summary.counts,
                "size_bytes": summary.size_bytes,
            }
        )
    else:
        print(f"Exported {_told(summary.counts)} to {for_terminal(place)}.")
        print("The file holds everybody's messages; whoever can read it can read them.")
    return EXIT_OK


def _told(counts: dict[str, int]) -> str:
    shown = ("messages", "channels", "agents", "sessions", "subscriptions", "receipts")
    return ", ".join(f"{counts[name]} {name}" for name in shown)


def _refuse_mixed_output(arguments: Arguments) -> None:
    if arguments["--json"]:
        raise ValidationError("export: --json and --output - both mean stdout; leave out one")
    if sys.stdout.isatty():
        raise ValidationError(
            "export: messages are not written to a terminal; redirect stdout, or name a file"
        )


def _refuse_to_replace(place: Path) -> None:
    from agentbus.store.export_format import BEGINNING

    if place.is_dir():
        raise ValidationError(f"export: {place} is a folder; name a file in it")
    if not place.exists():
        return
    if not place.is_file():
        raise ValidationError(f"export: {place} is not a file; use --output - and redirect stdout")
    with place.open("rb") as file:
        beginning = file.read(len(BEGINNING))
    if beginning not in (b"", BEGINNING):
        raise ValidationError(
            f"export: {place} is there and is no export, so it is left as it is; name another file"
        )


def _database(arguments: Arguments) -> Path:
    """The running bus's, else the configuration's."""
    asked_path = None if arguments["--config"] is None else Path(arguments["--config"])
    daemon = find_daemon()
    if daemon is None:
        return load_config(asked_path).data_directory / DATABASE_NAME
    with daemon:
        return Path(str(daemon.data_directory(asked_path))) / DATABASE_NAME


def _export(database: Path, file: IO[bytes]) -> ExportSummary:
    from agentbus.clock import SystemClock
    from agentbus.store.connection import DatabaseUnusable
    from agentbus.store.exporting import export_bus

    try:
        return export_bus(database, file.write, SystemClock().wall_us())
    except DatabaseUnusable as error:
        raise UnavailableError(str(error)) from None


@contextmanager
def _whole_file(place: Path) -> Iterator[IO[Any]]:
    draft = place.with_name(f".{place.name}.{os.getpid()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(place)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
