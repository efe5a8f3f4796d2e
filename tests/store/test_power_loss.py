"""What a power loss leaves of the files: what was synced, and anything of what was written later.

With `sqlite_synchronous: full` a batch is synced before it is answered. So the state of the log of
writes at each answer is kept for sure; of what came behind it every sector may be there, be missing
or be garbage. The files are copied, the later part is spoiled in each of these ways, and the copy
is opened as the next daemon would.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentbus.encoding import decode_trusted
from agentbus.ids import Sequence
from tests.store.bus import Bus

SECTOR_BYTES = 512
PAGE_BYTES = 4096
FRAME_HEADER_BYTES = 24


@dataclass(frozen=True, slots=True)
class Answered:
    """The log's size when a batch was answered, and how many messages there were by then."""

    log_bytes: int
    messages: int


@dataclass(frozen=True, slots=True)
class Run:
    """A bus that has been used, as bytes."""

    database: bytes
    log: bytes
    answers: list[Answered]
    contents: list[str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "used"
    folder.mkdir()
    bus = Bus(folder)
    log = bus.path.with_name(f"{bus.path.name}-wal")
    sam = bus.attach()
    answers = [Answered(log.stat().st_size, 0)]
    contents: list[str] = []
    sizes = random.Random(1)
    for number in range(12):
        batch = [f"{number}.{part} " + "x" * sizes.choice((1, 500, 9000)) for part in range(2)]
        bus.store.apply([sam.send(content) for content in batch])
        contents += batch
        answers.append(Answered(log.stat().st_size, len(contents)))
    run = Run(bus.path.read_bytes(), log.read_bytes(), answers, contents)
    bus.close()
    assert len(run.log) == answers[-1].log_bytes, "the log was emptied meanwhile"
    return run


def kept(run: Run, folder: Path, log: bytes, database: bytes | None = None) -> list[str]:
    """What a daemon that opens these files finds, in order."""
    folder.mkdir()
    path = folder / "bus.sqlite3"
    path.write_bytes(run.database if database is None else database)
    path.with_name(f"{path.name}-wal").write_bytes(log)
    bus = Bus(folder)
    try:
        found = bus.reader().scan(Sequence(0), 1000)
        return [decode_trusted(row.envelope)["content"] for row in found]
    finally:
        bus.close()


def test_of_an_unsynced_tail_nothing_counts_or_whole_batches(run: Run, tmp_path: Path) -> None:
    number = 0
    for answered, following in zip(run.answers, run.answers[1:], strict=False):
        synced, log = run.log[: answered.log_bytes], run.log[: following.log_bytes]
        for tail in spoilt(log[answered.log_bytes :], seed=answered.log_bytes):
            number += 1
            found = kept(run, tmp_path / str(number), synced + tail)
            assert found == run.contents[: len(found)]
            assert len(found) in (answered.messages, following.messages)


def spoilt(tail: bytes, seed: int) -> Iterator[bytes]:
    """Ways in which bytes that were written, but not synced, come back."""
    chance = random.Random(seed)
    yield b""
    yield tail
    for cut in (1, FRAME_HEADER_BYTES, FRAME_HEADER_BYTES + SECTOR_BYTES, len(tail) - 1):
        yield tail[:cut]
    yield bytes(len(tail))  # the size was written, the content not
    yield chance.randbytes(len(tail))
    sectors = [tail[at : at + SECTOR_BYTES] for at in range(0, len(tail), SECTOR_BYTES)]
    for _ in range(2):
        yield b"".join(
            sector if chance.random() < 0.5 else bytes(len(sector)) for sector in sectors
        )


def test_a_checkpoint_that_was_cut_short_is_made_up_for_from_the_log(
    run: Run, tmp_path: Path
) -> None:
    """It writes pages into the database while the log still has them all, and syncs them last."""
    folder = tmp_path / "checkpointed"
    folder.mkdir()
    path = folder / "bus.sqlite3"
    path.write_bytes(run.database)
    path.with_name(f"{path.name}-wal").write_bytes(run.log)
    Bus(folder).close()  # folds the log into the file
    after = path.read_bytes()
    before = run.database.ljust(len(after), b"\0")
    pages = range(0, len(after), PAGE_BYTES)
    for seed in range(8):
        chance = random.Random(seed)
        torn = b"".join(
            (after if chance.random() < seed / 7 else before)[at : at + PAGE_BYTES] for at in pages
        )
        assert kept(run, tmp_path / str(seed), run.log, torn) == run.contents
