"""Export and import: what comes out goes in again, byte for byte, and nothing else goes in."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentbus.encoding import decode_strict, encode_line
from agentbus.envelope import Reference
from agentbus.store import importing
from agentbus.store.changes import MoveCursors, PruneSlice
from agentbus.store.connection import DatabaseUnusable
from agentbus.store.export_kinds import KINDS
from agentbus.store.exporting import export_bus
from agentbus.store.importing import ImportRefused, import_bus
from agentbus.store.reset import reset_database
from tests.store.bus import Bus
from tests.store.test_failures import PROJECT

_IMPORT = """
import sys
from pathlib import Path
from agentbus.store.importing import import_bus

with open(sys.argv[2], "rb") as lines:
    import_bus(Path(sys.argv[1]), "full", lines, 1)
"""


def exported(path: Path) -> bytes:
    out = io.BytesIO()
    summary = export_bus(path, out.write, 1_800_000_000_000_000)
    assert summary.size_bytes == len(out.getvalue())
    return out.getvalue()


def imported(path: Path, export: bytes) -> Any:
    return import_bus(path, "full", io.BytesIO(export), 2_000_000_000_000_000)


def content(export: bytes) -> list[bytes]:
    """All but the first line, whose bus id and time are its own, and the checksum over it."""
    return export.splitlines()[1:-1]


def fill(bus: Bus) -> None:
    sam, kim = bus.attach(), bus.attach("Kim", "c2", repository="/home/kim/tree")
    bus.attach("Kim", "c2", child="sub", parent=kim.session_id, role="review")
    bus.done(sam.make("plans", "memory"))
    bus.done(sam.make("ünïcode \U0001f600"))
    bus.done(kim.subscribe("plans"))
    bus.store.apply([sam.send(f"old {n}", operation_id=f"old-{n}") for n in range(5)])
    bus.clock.advance(hours=bus.config.message_retention_hours)
    bus.done(PruneSlice("messages_by_age", 500))
    bus.done(PruneSlice("subscriptions", 500))
    sam, kim = bus.attach(), bus.attach("Kim", "c2")
    bus.done(kim.subscribe("plans"))
    bus.done(kim.subscribe("ünïcode \U0001f600", "oldest"))
    first = bus.done(
        sam.send(
            '\u202e\x1b[31m "quoted" \\ \t\n \U0001f600 NFD: e\u0301',
            channel="ünïcode \U0001f600",
            operation_id="k",
            metadata={
                "float": 1e300,
                "big": 2**64 - 1,
                "least": -(2**63),
                "zero": -0.0,
                "deep": _deep(30),
            },
            references=(
                Reference("windows_path", "C:\\x\\\u00ff"),
                Reference("url", "https://e.x/?a=b"),
            ),
            tags=("a", "b"),
            type="report",
            subject="Sübject",
        )
    ).result
    bus.done(kim.send("x" * 60_000, reply_to=first["message_id"], thread="t"))
    plan = bus.done(sam.send("plan 1", channel="plans")).result["message_id"]
    bus.done(sam.edit(plan, "plan 2", operation_id="edit"))
    gone = bus.done(sam.send("gone", channel="plans")).result["message_id"]
    bus.done(sam.delete(gone))
    (mine,) = [r for r in bus.reader().subscriptions(kim.session_id) if r.channel == "plans"]
    newest = bus.store.last_sequence
    bus.done(MoveCursors(kim.attachment, {mine.subscription_id: newest}, {}))


def _deep(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = [value]
    return value


@pytest.fixture
def full(tmp_path: Path) -> Bus:
    bus = Bus(tmp_path)
    fill(bus)
    return bus


@pytest.fixture
def new(tmp_path: Path) -> Path:
    folder = tmp_path / "new"
    folder.mkdir()
    return folder / "bus.sqlite3"


def test_what_is_imported_exports_the_same_bytes(full: Bus, new: Path) -> None:
    export = exported(full.path)
    summary = imported(new, export)
    again = exported(new)
    assert content(again) == content(export)
    first, second = (decode_strict(text.splitlines()[0]) for text in (export, again))
    assert first.pop("bus_id") == full.store.bus_id
    assert second.pop("bus_id") == summary.bus_id != full.store.bus_id
    assert first == second
    assert summary.counts == decode_strict(export.splitlines()[-1])["end"]["counts"]
    full.close()


def test_an_imported_bus_goes_on_where_the_other_one_was(full: Bus, new: Path) -> None:
    imported(new, exported(full.path))
    bus = Bus(new.parent)
    bus.clock.set_wall(full.clock.wall_us())
    assert bus.store.logical_bytes == full.store.logical_bytes
    assert bus.store.last_sequence == full.store.last_sequence
    sam, kim = bus.attach(), bus.attach("Kim", "c2")
    assert (sam.bound.resumed, kim.bound.resumed) == (True, True)
    assert kim.bound.generation > full.store.last_generation
    before = full.reader().subscriptions(kim.session_id)
    assert tuple(kim.bound.subscriptions) == before
    edit = sam.edit(_memory_of(bus), "plan 2", operation_id="edit")
    assert bus.done(edit).result["duplicate"] is True
    assert bus.done(sam.send("next")).result["sequence"] == full.store.last_sequence + 1
    for row in full.reader().channels():
        there = bus.reader().channel(row.channel)
        assert there is not None
        if row.channel != "general":
            assert there == row
        ranges = full.reader().removed_ranges(row.channel_id, 0)  # type: ignore[arg-type]
        assert bus.reader().removed_ranges(row.channel_id, 0) == ranges  # type: ignore[arg-type]
    counted = bus.store.logical_bytes
    assert bus.reopen().logical_bytes == counted
    bus.close()
    full.close()


def _memory_of(bus: Bus) -> str:
    reader = bus.reader()
    (memory,) = reader.scan_memories(reader.memory_channels()[0], 0, 9)  # type: ignore[arg-type]
    return memory.message_id


_TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=50)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | _TEXTS
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(_TEXTS, st.dictionaries(_TEXTS, _JSON, max_size=3)), max_size=5))
def test_any_content_survives(tmp_path_factory: Any, sent: list[tuple[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("any")
    bus = Bus(folder)
    sam = bus.attach()
    for text, metadata in sent:
        bus.done(sam.send(text, metadata=metadata))
    export = exported(bus.path)
    bus.close()
    (folder / "new").mkdir()
    imported(folder / "new" / "bus.sqlite3", export)
    assert content(exported(folder / "new" / "bus.sqlite3")) == content(export)


def test_an_export_is_one_snapshot_while_others_write(full: Bus) -> None:
    out: list[bytes] = []

    def write(line: bytes) -> None:
        if len(out) == 3:
            full.done(full.attach("Late", "late").send("late"))
        out.append(line)

    before = exported(full.path)
    export_bus(full.path, write, 1_800_000_000_000_000)
    assert b"".join(out) == before
    full.close()


def test_numbers_of_an_empty_bus_that_was_reset_never_come_again(full: Bus, new: Path) -> None:
    other = Bus(new.parent)
    sam = other.attach()
    other.store.apply([sam.send() for _ in range(50)])
    generation, sequence = other.store.last_generation, other.store.last_sequence
    other.close()
    reset_database(new, "full", 1)
    summary = imported(new, exported(full.path))
    assert summary.last_sequence == sequence > full.store.last_sequence
    bus = Bus(new.parent)
    assert bus.attach().bound.generation > max(generation, full.store.last_generation)
    bus.close()
    full.close()


def test_a_bus_with_anything_on_it_is_left_alone(full: Bus, new: Path) -> None:
    export = exported(full.path)
    full.close()
    before = content(exported(full.path))
    with pytest.raises(ImportRefused, match=r"not empty \(.* 3 sessions.*agentbus reset"):
        imported(full.path, export)
    assert content(exported(full.path)) == before
    Bus(new.parent).close()
    imported(new, export)  # a bus without any agent yet is empty


def test_an_export_of_an_older_schema_is_read_and_what_it_lacks_is_0(full: Bus, new: Path) -> None:
    full.close()
    lines = lines_of(exported(full.path))
    lines[0]["schema"] = 2
    for line in lines:
        for name in ("used_sequence", "seen_sequence"):
            line.get("session", {}).pop(name, None)
        for name in ("description", "capabilities"):
            line.get("agent", {}).pop(name, None)
    export = sealed(lines)
    *records, trailer = export.splitlines(keepends=True)
    end = decode_strict(trailer)
    end["end"]["counts"] = {name: n for name, n in end["end"]["counts"].items() if n}
    imported(new, b"".join(records) + encode_line(end))
    sessions = [line["session"] for line in lines_of(exported(new)) if "session" in line]
    assert {(row["used_sequence"], row["seen_sequence"]) for row in sessions} == {(0, 0)}


# --- what is refused ---


def lines_of(export: bytes) -> list[Any]:
    return [decode_strict(line, depth=64) for line in export.splitlines()]


def sealed(lines: list[Any]) -> bytes:
    """The lines as bytes, with counts and checksum that fit them."""
    *records, trailer = lines
    end = trailer["end"]
    end["counts"] = {kind.plural: sum(kind.name in record for record in records) for kind in KINDS}
    text = b"".join(encode_line(record) for record in records)
    if "sha256" in end:
        end["sha256"] = hashlib.sha256(text).hexdigest()
    return text + encode_line(trailer)


def refusal(path: Path, export: bytes) -> str:
    with pytest.raises(ImportRefused) as refused:
        imported(path, export)
    assert "\n" not in str(refused.value)
    if path.exists():
        bus = Bus(path.parent)
        assert bus.reader().counts() == dict.fromkeys(bus.reader().counts(), 0) | {"channels": 1}
        bus.close()
    return str(refused.value)


def test_a_file_cut_anywhere_is_refused(full: Bus, new: Path) -> None:
    export = exported(full.path)
    full.close()
    for size in (0, 1, 100, len(export) // 2, len(export) - 300, len(export) - 1):
        assert "it was cut" in refusal(new, export[:size])
    whole_lines = export.splitlines(keepends=True)
    assert "it was cut" in refusal(new, b"".join(whole_lines[:-1]))
    assert "counts" in refusal(new, b"".join(whole_lines[:-3] + whole_lines[-1:]))


def test_a_changed_byte_is_refused(full: Bus, new: Path) -> None:
    export = exported(full.path)
    full.close()
    assert "checksum" in refusal(new, export.replace(b"plan 1", b"plan 7"))
    assert "something follows" in refusal(new, export + b"\n")


def change_of(record_kind: str, at: int = -1, /, **changes: Any) -> Callable[[list[Any]], None]:
    """Change a record of a kind, the last one by default; `envelope__...` within its envelope."""

    def change(lines: list[Any]) -> None:
        record = [line[record_kind] for line in lines if record_kind in line][at]
        for name, value in changes.items():
            inner, _, key = name.partition("__")
            target = record[inner] if key else record
            if value is ...:
                del target[key or inner]
            else:
                target[key or inner] = value

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (change_of("agent", id=7), "agent: id must be text"),
        (change_of("agent", colour="red"), "agent: colour is no field"),
        (change_of("agent", name="a\nb"), "agent: name must not hold control characters"),
        (change_of("session", agent="nobody"), "agent is no agent of the export"),
        (change_of("session", parent="nobody"), "parent 'nobody' is no session"),
        (change_of("session", generation=10**6), "generation is above last_generation"),
        (change_of("session", display_name=None), "display_name must be text"),
        (change_of("session", seen_sequence=10**6), "seen_sequence is above last_sequence"),
        (change_of("channel", kind="other"), "channel: kind must be one of"),
        (change_of("channel", newest=10**6), "newest is above last_sequence"),
        (change_of("channel", created_at_us=-1), "created_at_us must be 0"),
        (change_of("channel", id=1), "repeats an earlier one"),
        (change_of("removed", from_sequence=99), "from_sequence is above to_sequence"),
        (change_of("removed", cause="whim"), "cause must be one of"),
        (change_of("subscription", confirmed=99), "confirmed is above handed_off"),
        (change_of("subscription", channel=77), "channel is no channel"),
        (change_of("subscription", handed_off=...), "handed_off is missing"),
        (change_of("message", position=True), "position must be a whole number"),
        (change_of("message", ended_sequence=None), "go together"),
        (change_of("message", session="nobody"), "session is no session"),
        (change_of("message", envelope__channel="nowhere"), "envelope.channel is no channel"),
        (change_of("message", envelope__sequence=2, position=2), "must be above the one before"),
        (change_of("message", envelope__content=7), "envelope.content must be text"),
        (change_of("message", envelope__content=...), "envelope.content is missing"),
        (change_of("message", envelope__sent_at="yesterday"), "another time than sent_at_us"),
        (change_of("message", envelope__sender={}), "envelope.sender.agent is missing"),
        (change_of("message", envelope__tags="a"), "envelope.tags must be"),
        (change_of("message", envelope__evil=1), "envelope.evil is no field"),
        (change_of("message", ended_sequence=10**6), "ended_sequence is above last_sequence"),
        (change_of("receipt", fingerprint="00"), "fingerprint must be 32 hexadecimal digits"),
        (change_of("receipt", result=[]), "result must be an object"),
        (lambda lines: lines.insert(-1, {"agent": {}}), "the order is fixed"),
        (lambda lines: lines.insert(1, {"colour": {}}), "'colour' is no kind of record"),
        (lambda lines: lines.insert(1, {}), "exactly one member"),
        (lambda lines: lines.insert(1, [1]), "must be an object"),
        (lambda lines: lines.pop(0), "is not an export of agentbus"),
        (lambda lines: lines[0].update(agentbus_export=2), "has format version 2"),
        (lambda lines: lines[0].pop("last_sequence"), "last_sequence is missing"),
        (lambda lines: lines[0].update(purged_through=10**6), "purged_through is above"),
        (lambda lines: lines[-1]["end"].pop("sha256"), "end: sha256 is missing"),
    ],
)
def test_a_line_that_is_not_right_is_refused_by_number_and_field(
    full: Bus, new: Path, change: Callable[[list[Any]], None], problem: str
) -> None:
    lines = lines_of(exported(full.path))
    full.close()
    change(lines)
    text = refusal(new, sealed(lines))
    assert problem in text
    assert ", line " in text
    assert "nothing was imported" in text


def _purged_first(lines: list[Any]) -> None:
    lines.remove([line for line in lines if "message" in line][FIRST])
    change_of("channel", 1, created_sequence=8)(lines)


MESSAGE, FIRST, SECOND = 1, 2, 3
"""Of the messages that `fill` leaves: the one of `general`, and two revisions of one memory."""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (change_of("removed", to_sequence=6), "to_sequence is above removed_through"),
        (change_of("channel", 0, removed_through=6), "no record of all that was removed"),
        (change_of("channel", 2, removed_through=6), "was removed from its channel"),
        (change_of("channel", 0, created_sequence=3), "from before its channel"),
        (change_of("channel", 0, newest=6), "not between created_sequence and newest"),
        (change_of("channel", 2, created_sequence=6), "not between created_sequence and newest"),
        (_purged_first, "position is from before its channel"),
        (change_of("message", MESSAGE, envelope__revision=2), "has one revision"),
        (change_of("message", FIRST, position=7), "first revision stands at its own sequence"),
        (change_of("message", SECOND, position=7), "was made at another place"),
        (change_of("message", SECOND, envelope__revision=1, position=9), "at another place"),
        (change_of("message", FIRST, envelope__revision=2), "must be above the one before"),
        (change_of("message", FIRST, ended_sequence=10), "the revision before ends behind it"),
        (change_of("message", SECOND, envelope__message_id="x"), "is that of another memory"),
        (
            lambda lines: lines.insert(
                next(n for n, line in enumerate(lines) if "subscription" in line),
                {"removed": _record(lines, "removed") | {"from_sequence": 5, "cause": "capacity"}},
            ),
            "must be above the range before",
        ),
    ],
)
def test_records_that_do_not_fit_each_other_are_refused(
    full: Bus, new: Path, change: Callable[[list[Any]], None], problem: str
) -> None:
    """Taken in, each of these would hide a message from its readers, or show it twice."""
    lines = lines_of(exported(full.path))
    full.close()
    change(lines)
    assert problem in refusal(new, sealed(lines))


def _record(lines: list[Any], kind: str) -> dict[str, Any]:
    return dict(next(line[kind] for line in lines if kind in line))


COUNT_MAX, TIME_MAX_US = 2**53 - 1, 253_402_300_799_999_999


@pytest.mark.parametrize(
    ("kind", "name", "largest"),
    [
        ("agentbus_export", "last_sequence", COUNT_MAX),
        ("agentbus_export", "last_generation", COUNT_MAX),
        ("subscription", "id", COUNT_MAX),
        ("channel", "created_at_us", TIME_MAX_US),
        ("session", "last_seen_us", TIME_MAX_US),
        ("subscription", "last_used_us", TIME_MAX_US),
        ("receipt", "expires_at_us", TIME_MAX_US),
    ],
)
def test_the_largest_number_leaves_a_bus_that_goes_on_and_one_more_is_refused(
    full: Bus, new: Path, kind: str, name: str, largest: int
) -> None:
    lines = lines_of(exported(full.path))
    full.close()
    record = lines[0] if kind == "agentbus_export" else [x[kind] for x in lines if kind in x][-1]
    record[name] = largest + 1
    assert f"{name} must be" in refusal(new, sealed(lines))
    record[name] = largest
    imported(new, sealed(lines))
    bus = Bus(new.parent)
    bus.clock.set_wall(1_800_604_800_000_000)
    kim = bus.attach("Kim", "c2")
    bus.done(kim.send("next"))
    bus.done(kim.subscribe("general"))
    bus.close()
    assert exported(new)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"not json", "not a JSON document"),
        (b'{"agent": {"id": "\xff"}}', "not UTF-8"),
        (b'{"agent": {}, "agent": {}}', "duplicate key"),
        (b'{"agent": {"id": "\\ud800"}}', "lone surrogate"),
        (b'{"agent": {"created_at_us": 1e999}}', "out of range"),
        (b'{"agent": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper"),
    ],
)
def test_text_that_is_not_strict_json_is_refused(
    full: Bus, new: Path, line: bytes, problem: str
) -> None:
    lines = exported(full.path).splitlines()
    full.close()
    text = refusal(new, b"\n".join([lines[0], line, *lines[1:], b""]))
    assert problem in text
    assert "line 2:" in text


def test_a_file_without_line_ends_is_not_read_whole(
    new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "LINE_BYTES", 1000)
    assert "longer than 1000 bytes" in refusal(new, b"x" * 5000)
    assert not new.exists()


def test_without_general_it_is_no_bus(full: Bus, new: Path) -> None:
    lines = lines_of(exported(full.path))
    full.close()
    lines = [
        line
        for line in lines
        if not line.keys() & {"subscription", "message", "removed"}
        and line.get("channel", {}).get("name") != "general"
    ]
    assert "no ordinary channel 'general'" in refusal(new, sealed(lines))


def test_a_memory_with_two_living_revisions_is_refused(full: Bus, new: Path) -> None:
    lines = lines_of(exported(full.path))
    full.close()
    ended = [line["message"] for line in lines if line.get("message", {}).get("ended_sequence")]
    ended[0]["ended_sequence"] = ended[0]["tombstoned_at_us"] = None
    assert "two revisions that live" in refusal(new, sealed(lines))


def test_killed_before_its_commit_nothing_is_imported(full: Bus, new: Path) -> None:
    export = new.parent / "export"
    export.write_bytes(exported(full.path))
    full.close()
    command = [sys.executable, "-c", _IMPORT, str(new), str(export)]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    killed = environment | {"AGENTBUS_TEST_FAILPOINT": "during_import"}
    ended = subprocess.run(command, env=killed, cwd=PROJECT, timeout=30)
    assert ended.returncode == -signal.SIGKILL
    subprocess.run(command, env=environment, cwd=PROJECT, timeout=30, check=True)
    assert content(exported(new)) == content(export.read_bytes())


def test_an_export_without_the_log_of_a_crash_is_refused(full: Bus, tmp_path: Path) -> None:
    lost = tmp_path / "lost.sqlite3"
    lost.write_bytes(full.path.read_bytes())
    with pytest.raises(DatabaseUnusable, match=r"its log lost\.sqlite3-wal is missing"):
        exported(lost)
    assert not lost.with_name("lost.sqlite3-wal").exists()
    full.close()
