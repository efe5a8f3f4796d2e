"""A job as a person sees it, on stderr: a bar on a terminal, lines elsewhere.

Owns how events are worded. Everything that came from a tool is escaped. The thread that runs the
job; `log` from any.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from agentbus.cli.text import for_terminal
from agentbus.jobs.events import Accepted, Event, Failed, Progress, Succeeded, Warned
from agentbus.jobs.inbox import Arrival
from agentbus.rules.jobs import Missing

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

LINE_CHARACTERS = 2100
"""The longest message of an event and what stands around it."""


class JobView(Protocol):
    """Shows one job."""

    def show(self, arrival: Arrival) -> None: ...

    def log(self, line: str) -> None: ...


class PlainView:
    """One line for each event."""

    def show(self, arrival: Arrival) -> None:
        for line in _lines(arrival):
            self.log(line)

    def log(self, line: str) -> None:
        # In one write, because the tool writes to the same place.
        sys.stderr.write(for_terminal(line, LINE_CHARACTERS) + "\n")
        sys.stderr.flush()


class BarView:
    """A bar with the stage; warnings and the end as lines above it."""

    def __init__(self, bars: Bars, job_id: str) -> None:
        self._bars = bars
        self._task = bars.add_task(for_terminal(job_id), total=None)

    def show(self, arrival: Arrival) -> None:
        event = arrival.event
        if isinstance(event, Progress) and arrival.missing is None:
            self._bars.update(
                self._task,
                description=for_terminal(_worded(event)),
                total=None if event.pct is None else 100,
                completed=event.pct or 0,
            )
            return
        if isinstance(event, Succeeded):
            self._bars.update(self._task, total=100, completed=100)
        for line in _lines(arrival):
            self.log(line)

    def log(self, line: str) -> None:
        from rich.text import Text

        self._bars.console.print(Text(for_terminal(line, LINE_CHARACTERS)))


@contextmanager
def view(job_id: str) -> Iterator[JobView]:
    """What fits stderr as it is now."""
    if not sys.stderr.isatty():
        yield PlainView()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=False) as bars:
        yield BarView(bars, job_id)


def missing_words(missing: Missing) -> str:
    """Which events were passed over."""
    return f"missing: events {missing.first} to {missing.last}"


def _lines(arrival: Arrival) -> Iterator[str]:
    if arrival.missing is not None:
        yield missing_words(arrival.missing)
    yield _worded(arrival.event)


def _worded(event: Event) -> str:
    match event:
        case Accepted():
            return f"accepted {event.url}"
        case Progress():
            share = "" if event.pct is None else f" {event.pct:g}%"
            message = f": {event.message}" if event.message else ""
            return f"{event.stage}{share}{message}"
        case Warned():
            return f"warning: {event.message}"
        case Succeeded():
            artifacts = f" with {len(event.artifacts)} artifacts" if event.artifacts else ""
            return f"succeeded{artifacts}"
        case Failed():
            return f"failed ({event.code}): {event.message}"
