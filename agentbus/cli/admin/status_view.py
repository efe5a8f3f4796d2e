"""The status as a person reads it: what matters first, details below.

Every part may be missing or be an explanation of why it could not be had; then only that part is
left out or shown as it is. Pure but for the print. Runs on the main thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agentbus.cli.output import console, facts, table
from agentbus.limits import MIB

if TYPE_CHECKING:
    from rich.table import Table

ERRORS_SHOWN = 5
_INSPECTIONS = ("allowed", "denied", "failed", "running", "waiting")


def print_status(status: dict[str, Any]) -> None:
    """Print the human view of the daemon's answer."""
    out = console()
    for part in _parts(status):
        out.print(part)
        out.print()


def _parts(status: dict[str, Any]) -> Iterator[Table]:
    notes: list[str] = status.get("notes") or []
    yield facts("Bus", [*_bus(status), *(("note", note) for note in notes)])
    if redis := _mapping(status.get("redis")):
        yield facts("Redis", _redis(redis))
    if budgets := _mapping(status.get("budgets")):
        yield facts("Budgets", _budgets(budgets))
    yield session_table(_rows(status.get("sessions")))
    if actors := _rows(status.get("actors")):
        yield table(
            "Actors",
            ("Actor", "Alive", "Busy", "Waiting", "Handled", "Told after its end"),
            (
                (
                    actor.get("name"),
                    _yes_no(actor.get("alive")),
                    _yes_no(actor.get("busy")),
                    actor.get("mailbox_length"),
                    actor.get("processed"),
                    actor.get("dead_tells"),
                )
                for actor in actors
            ),
        )
    if transport := _mapping(status.get("transport")):
        yield facts("Transport", [(_words(name), value) for name, value in transport.items()])
    if errors := _rows(status.get("errors")):
        yield table(
            f"Last errors ({len(errors)})",
            ("At", "What"),
            ((error.get("at"), error.get("what")) for error in errors[-ERRORS_SHOWN:]),
        )


def _bus(status: dict[str, Any]) -> Iterator[tuple[str, object]]:
    versions = _mapping(status.get("versions"))
    config = _mapping(status.get("config"))
    values = _mapping(config.get("values"))
    inspection = _mapping(status.get("inspection"))
    yield "state", _state(status)
    yield "work", _work(status)
    yield "process", status.get("pid")
    yield "started", status.get("started_at")
    if versions:
        yield "versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    yield "configuration", config.get("path")
    yield "data", values.get("data_directory")
    if values.get("sqlite_synchronous") == "normal":
        yield "durability", "sqlite_synchronous is normal: a power loss may lose the last messages"
    store = _mapping(status.get("store"))
    if "error" not in store:
        yield "holds", ", ".join(f"{_words(name)} {count}" for name, count in store.items()) or None
        if waiting := store.get("paused_deliveries"):
            yield "waits for you", f"{waiting}; agentbus-admin human list shows what"
    ledger = _mapping(status.get("ledger"))
    if obstacle := ledger.get("log_obstacle"):
        yield "write-ahead log", f"{_mib(ledger.get('log_bytes'))}, because {obstacle}"
    if inspection:
        counts = [f"{inspection[name]} {name}" for name in _INSPECTIONS if name in inspection]
        command = inspection.get("command")
        yield "inspection", ", ".join(["on", *counts]) if command else "off"


def _state(status: dict[str, Any]) -> str:
    state = str(status.get("state", "unknown"))
    epoch = status.get("epoch")
    return state if epoch is None else f"{state} (recovery epoch {epoch})"


def _work(status: dict[str, Any]) -> str | None:
    """What a bus that is not ready is busy with, and how far it has come."""
    progress = _mapping(status.get("progress"))
    counted = f"{progress.get('done')} of {progress.get('total')}" if progress else None
    return ", ".join(filter(None, (status.get("work"), counted))) or None


def _redis(redis: dict[str, Any]) -> Iterator[tuple[str, object]]:
    yield "executable", redis.get("executable")
    yield "version", " ".join(str(redis[key]) for key in ("engine", "version") if redis.get(key))
    yield "process", redis.get("pid")
    yield "healthy", _yes_no(redis.get("healthy"))
    engine = redis.get("search_engine")
    module = redis.get("search_module")
    yield "search engine", engine if module is None else f"{engine} ({module})"
    yield "search missing", redis.get("search_missing")
    if redis.get("taken_over"):
        yield "taken over", "from a daemon that had crashed"


def _budgets(budgets: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for name, budget in budgets.items():
        if isinstance(budget, dict):
            used, limit = budget.get("used_bytes"), budget.get("limit_bytes")
            binds = "  (this one binds)" if budgets.get("binding") == name else ""
            full = "  EXHAUSTED: new messages are refused" if budget.get("exhausted") else ""
            yield name, f"{_mib(used)} of {_mib(limit)}{binds}{full}"


def session_table(rows: list[dict[str, Any]]) -> Table:
    """One line per connected session; also the view of `agentbus-admin sessions`."""
    return table(
        f"Sessions ({len(rows)})",
        ("Name", "Application", "Conversation", "Known by", "Generation", "Channels (lag)"),
        (
            (
                row.get("display_name"),
                row.get("application"),
                _conversation(row),
                row.get("identity_source"),
                row.get("generation"),
                _lags(row.get("subscriptions")),
            )
            for row in rows
        ),
    )


def _conversation(row: dict[str, Any]) -> str:
    child = row.get("child")
    conversation = str(row.get("conversation", ""))
    return conversation if child is None else f"{conversation} / {child}"


def _lags(subscriptions: Any) -> str:
    return ", ".join(f"{row.get('channel')} ({row.get('lag')})" for row in _rows(subscriptions))


def _mib(size_bytes: Any) -> str:
    return f"{size_bytes / MIB:.1f} MiB" if isinstance(size_bytes, int) else "unknown"


def _yes_no(value: Any) -> str | None:
    return None if value is None else ("yes" if value else "no")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _rows(value: Any) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
