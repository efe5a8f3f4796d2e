"""Progress to a slow parent: the tool goes on, the newest counts, nothing else is left out."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from agentbus.errors import ValidationError
from agentbus.jobs import Event, JobEmitter, Progress, SinkError
from agentbus.jobs.latest import STAGES, LatestProgress
from tests.eventually import eventually


class SlowSink:
    """Lets nothing through until it is told to."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.open = threading.Event()
        self.fails = False

    def emit(self, event: Event) -> None:
        if isinstance(event, Progress):
            assert self.open.wait(50)
            if self.fails:
                raise SinkError("no parent")
        self.events.append(event)

    def close(self) -> None: ...


@pytest.fixture
def sink() -> SlowSink:
    return SlowSink()


@pytest.fixture
def job(sink: SlowSink) -> JobEmitter[Any, Any, Any]:
    made: JobEmitter[Any, Any, Any] = JobEmitter(sink, "j")
    made.accepted("u")
    return made


def shares(sink: SlowSink) -> list[tuple[str, float | None]]:
    return [(event.stage, event.pct) for event in sink.events if isinstance(event, Progress)]


def test_a_slow_parent_gets_the_newest_of_each_stage_without_holes(
    sink: SlowSink, job: JobEmitter[Any, Any, Any]
) -> None:
    with LatestProgress(job) as latest:
        latest.progress("download", pct=0)
        eventually(lambda: not latest._waiting, what="the first one under way")
        for pct in range(1, 101):
            latest.progress("download", pct=pct)
            latest.progress("unpack", pct=pct / 2)
        assert shares(sink) == []
        sink.open.set()
    job.warning("w")
    job.succeeded(1)
    assert shares(sink) == [("download", 0), ("download", 100), ("unpack", 50)]
    assert [event.seq for event in sink.events] == list(range(6))


def test_what_waits_is_bounded(sink: SlowSink, job: JobEmitter[Any, Any, Any]) -> None:
    with LatestProgress(job) as latest:
        for number in range(10 * STAGES):
            latest.progress(f"stage {number}")
        assert len(latest._waiting) <= STAGES
        sink.open.set()
    stages = [stage for stage, _ in shares(sink)]
    assert stages[-STAGES:] == [f"stage {number}" for number in range(9 * STAGES, 10 * STAGES)]


def test_the_end_is_not_behind_progress_that_waits(
    sink: SlowSink, job: JobEmitter[Any, Any, Any]
) -> None:
    latest = LatestProgress(job)
    sink.open.set()
    job.succeeded(1)
    latest.progress("too late")
    latest.close()
    assert shares(sink) == []
    assert job.terminal == sink.events[-1]


def test_trouble_is_told_once_and_later_progress_passes(
    sink: SlowSink, job: JobEmitter[Any, Any, Any]
) -> None:
    sink.fails = True
    sink.open.set()
    latest = LatestProgress(job)
    latest.progress("a")
    eventually(lambda: latest._trouble, what="the trouble")
    sink.fails = False
    with pytest.raises(SinkError, match="no parent"):
        latest.progress("b")
    eventually(lambda: shares(sink) == [("b", None)])
    latest.progress("c", pct=101)
    eventually(lambda: latest._trouble, what="the trouble")
    with pytest.raises(ValidationError, match="pct"):
        latest.progress("d")
    latest.close()
    assert [stage for stage, _ in shares(sink)] == ["b", "d"]
