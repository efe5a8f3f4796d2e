"""What every sink promises.

Owns the protocol only. A sink is used by one emitter, which calls it from one thread at a time.
"""

from __future__ import annotations

from typing import Protocol

from agentbus.jobs.events import Event


class Sink(Protocol):
    """Takes the events of one job in order."""

    def emit(self, event: Event) -> None:
        """Returns when the event is handed over, as durably as this sink can.

        Raises SinkError when it is not, or nobody knows; ValidationError or TooLargeError for an
        event that is none.
        """
        ...

    def close(self) -> None:
        """Gives back what the sink holds; once, after the last event. Flushes nothing: every event
        was handed over by its `emit`."""
        ...
