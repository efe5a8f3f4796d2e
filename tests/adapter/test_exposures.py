"""What an adapter noted of its results, read by the next one of the same session."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentbus.adapter.exposures import FILE_BYTES, KEPT_S, Exposures
from agentbus.adapter.prefetch import Prefetch
from agentbus.errors import ValidationError
from tests.adapter.deliveries import OWN, PLENTY, arrive, message, row


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "exposed"


def test_the_newest_of_each_subscription_is_read_again(folder: Path) -> None:
    noting = Exposures(folder, "bus", "session-1")
    assert noting.read() == {}
    noting.note({1: 10})
    noting.note({2: 5})
    noting.note({1: 8})  # taken back: no byte had left
    assert Exposures(folder, "bus", "session-1").read() == {1: 8, 2: 5}
    assert Exposures(folder, "bus", "session-2").read() == {}
    assert Exposures(folder, "bus-after-reset", "session-1").read() == {}
    assert stat.S_IMODE((folder / "session-1").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_who_had_the_session_before_reads_what_another_noted_meanwhile(folder: Path) -> None:
    first, second = Exposures(folder, "bus", "s"), Exposures(folder, "bus", "s")
    first.note({1: 10, 2: 3})
    assert first.read() == {}
    assert second.read() == {1: 10, 2: 3}
    second.note({1: 20})
    assert first.read() == {1: 20}
    first.note({2: 4})
    assert Exposures(folder, "bus", "s").read() == {1: 20, 2: 4}


def test_a_line_cut_by_a_kill_says_nothing_and_the_one_before_it_holds(folder: Path) -> None:
    Exposures(folder, "bus", "s").note({1: 10})
    with (folder / "s").open("ab") as file:
        file.write(b'{"bus_id":"bus","exposed":[[1,9')
    next_one = Exposures(folder, "bus", "s")
    assert next_one.read() == {1: 10}
    next_one.note({2: 4})
    assert Exposures(folder, "bus", "s").read() == {1: 10, 2: 4}


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_passed_over_without_waiting(
    folder: Path, make: Callable[[Path], None]
) -> None:
    folder.mkdir()
    make(folder / "s")
    noting = Exposures(folder, "bus", "s")
    assert noting.read() == {}
    noting.note({1: 10})
    assert Exposures(folder, "bus", "s").read() == {}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[]\n",
        b'{"bus_id":"bus","exposed":7}\n',
        b'{"bus_id":"bus","exposed":[[1,1e99]]}\n',
    ],
)
def test_a_file_that_holds_no_positions_is_passed_over(folder: Path, text: bytes) -> None:
    folder.mkdir()
    (folder / "s").write_bytes(text)
    assert Exposures(folder, "bus", "s").read() == {}


def test_the_file_stays_small_and_goes_when_all_is_stored(folder: Path) -> None:
    noting = Exposures(folder, "bus", "s")
    for position in range(2000):
        noting.note({1: position, 2: position})
    assert (folder / "s").stat().st_size < FILE_BYTES + 1000
    assert stat.S_IMODE((folder / "s").stat().st_mode) == 0o600
    assert Exposures(folder, "bus", "s").read() == {1: 1999, 2: 1999}
    noting.forget()
    assert list(folder.iterdir()) == []
    noting.note({1: 1})
    assert Exposures(folder, "bus", "s").read() == {1: 1}


def test_files_of_sessions_that_nobody_resumed_go(folder: Path) -> None:
    folder.mkdir()
    for name, age_s in (("old", KEPT_S + 60), ("young", KEPT_S - 60)):
        (folder / name).write_text("")
        os.utime(folder / name, (time.time() - age_s,) * 2)
    Exposures(folder, "bus", "s").note({1: 1})
    assert {path.name for path in folder.iterdir()} == {"young", "s"}


def test_a_folder_that_cannot_be_written_costs_no_message(tmp_path: Path) -> None:
    in_the_way = tmp_path / "exposed"
    in_the_way.write_text("")
    Exposures(in_the_way, "bus", "s").note({1: 1})


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 65])
def test_a_session_id_is_no_path(folder: Path, name: str) -> None:
    with pytest.raises(ValidationError):
        Exposures(folder, "bus", name)


def test_what_was_shown_before_is_marked_and_the_daemon_hears_of_it() -> None:
    prefetch = Prefetch()
    prefetch.attached(OWN, 1, [row(1), row(2)], {1: 2, 9: 7})
    assert prefetch.exposed_before([row(1), row(2)]) == {1: 2}
    assert not prefetch.all_stored
    arrive(prefetch, message(1), message(2), message(3))
    arrive(prefetch, message(1), subscription=2)
    batch = prefetch.take((), PLENTY)
    marks = sorted((top, one.position, one.redelivered) for top, one in batch.entries)
    assert marks == [(1, 1, True), (1, 2, True), (1, 3, False), (2, 1, False)]
    assert prefetch.exposes(batch) == {1: 3, 2: 1}
    prefetch.settle(batch, handed_off=True, bytes_left=True)
    report = prefetch.report_due()
    assert report is not None
    prefetch.committed(report)
    assert prefetch.all_stored
