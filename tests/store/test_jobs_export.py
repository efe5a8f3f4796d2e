"""Jobs in an export: they go on in the bus that imported them, and what does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentbus.store.jobs.changes import CancelJob, SettleCallback
from agentbus.store.jobs.reading import JobReader
from tests.store.bus import Bus
from tests.store.jobs import CALLBACK, Emitting, read
from tests.store.test_export import (
    change_of,
    content,
    exported,
    imported,
    lines_of,
    refusal,
    sealed,
)


@pytest.fixture
def full(tmp_path: Path) -> Bus:
    """A job with callbacks, one of them dead; one that has ended; one that was only cancelled."""
    bus = Bus(tmp_path)
    job, other = Emitting(bus), Emitting(bus, "other")
    job.emit(0, "accepted", callback=CALLBACK)
    job.emit(2)
    with closing(JobReader(bus.path)) as reader:
        [entry] = reader.first_callbacks()
    bus.done(SettleCallback(entry.callback_id, "refused"))
    other.emit(0, "accepted")
    other.emit(1, "failed")
    bus.done(CancelJob("ahead", "r", ahead=True))
    return bus


@pytest.fixture
def new(tmp_path: Path) -> Path:
    folder = tmp_path / "new"
    folder.mkdir()
    return folder / "bus.sqlite3"


def test_an_imported_job_goes_on_where_it_was(full: Bus, new: Path) -> None:
    export = exported(full.path)
    full.close()
    imported(new, export)
    assert content(exported(new)) == content(export)
    bus = Bus(new.parent)
    job = Emitting(bus)
    assert job.emit(2).result["duplicate"]
    assert not job.emit(3).result["duplicate"]
    assert read(bus)["missing"] == [(1, 1)]
    assert read(bus, "other")["closed"]
    with closing(JobReader(bus.path)) as reader:
        assert [entry.row.seq for entry in reader.first_callbacks()] == [2]
        assert [entry.row.seq for entry in reader.dead_letters(10)] == [0]
    bus.close()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (change_of("channel", name="cake"), "a job's is named job/ID"),
        (change_of("job", 1, channel=1), "channel is not the channel of this job"),
        (change_of("job", 1, id="cookie"), "channel is not the channel of this job"),
        (change_of("job", 1, session="nobody"), "session is no session"),
        (change_of("job", 2, outcome=None), "outcome goes with a closed job"),
        (change_of("job", 1, outcome="failed"), "outcome goes with a closed job"),
        (change_of("job", 0, state="closed", closed_at_us=1, outcome="failed"), "has not begun"),
        (change_of("job", 1, last_seq=-2), "last_seq must be -1"),
        (change_of("job", 1, last_seq=1), "seq is above last_seq of its job"),
        (change_of("job", 1, callback={"url": 7}), "url must be text"),
        (change_of("job_event", 1, seq=0), "seq must be above the one before"),
        (change_of("job_event", 1, sequence=4), "sequence is not the next message of its channel"),
        (change_of("job_event", 1, channel=77), "channel is not the channel of a job"),
        (change_of("callback", job="other"), "no job of the export with a callback"),
        (change_of("callback", dead_at_us=1), "dead_at_us goes with a dead one"),
        (change_of("callback", 0, dead_at_us=None), "dead_at_us goes with a dead one"),
        (lambda lines: lines.remove(_last(lines, "job_event")), "a message that is no event"),
        (lambda lines: _remove_job(lines, "other"), "channel is not the channel of a job"),
    ],
)
def test_what_does_not_fit_is_refused(
    full: Bus, new: Path, change: Callable[[list[Any]], None], problem: str
) -> None:
    lines = lines_of(exported(full.path))
    full.close()
    change(lines)
    assert problem in refusal(new, sealed(lines))


def test_a_channel_without_its_job_is_refused(full: Bus, new: Path) -> None:
    lines = lines_of(exported(full.path))
    full.close()
    kept = [line for line in lines if not {"job", "job_event", "callback"} & line.keys()]
    assert "has no job" in refusal(new, sealed(kept))


def _last(lines: list[Any], kind: str) -> Any:
    return [line for line in lines if kind in line][-1]


def _remove_job(lines: list[Any], job_id: str) -> None:
    lines.remove(next(line for line in lines if line.get("job", {}).get("id") == job_id))
