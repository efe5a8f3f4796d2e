"""What a broker must be able to do so that jobs can run over it.

Owns the protocol and the documents of the control channel. Names on every broker: events on
`jobs.<job_id>.events`, cancels on `jobs.<job_id>.control`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from agentbus.encoding import decode_strict, encode
from agentbus.errors import ValidationError
from agentbus.limits import JOB_REASON_CHARACTERS

RETENTION_S: Final = 168 * 3600
"""How long a broker keeps a job; the bus keeps messages as long by default."""

LOOK_S: Final = 0.5
"""How soon a follower notices that it was stopped."""


class JobTransport(Protocol):
    """One connection to a broker, for one emitter or one reader. Every call may block."""

    def publish(self, job_id: str, seq: int, event: bytes, *, is_terminal: bool) -> None:
        """Returns when the broker has said that it keeps the event.

        A repeat of the same event has no effect, ConflictError where it is another one and the
        broker can tell. Raises SinkError when nobody knows.
        """
        ...

    def has_begun(self, job_id: str) -> bool:
        """Whether the broker has an event of the job.

        Raises SinkError when the broker does not say so within some seconds: who asks this has
        only begun, and is told sooner than an emitter in the middle of its work.
        """
        ...

    def follow(self, job_id: str, from_seq: int, stop: threading.Event) -> Iterator[bytes]:
        """Every kept event from that sequence on, in order, then what comes, until `stop` is set.

        At least once: a reader compares sequences. Goes on after a lost connection; raises
        SinkError when it cannot be made again.
        """
        ...

    def cancel(self, job_id: str, reason: str) -> None:
        """Ask the job to end; also when it has not begun to listen yet."""
        ...

    def listen(self, job_id: str, cancelled: Callable[[str], None]) -> None:
        """Call `cancelled(reason)` once somebody asks, or has asked, on a thread of its own."""
        ...

    def close(self) -> None:
        """End listening and disconnect. Never raises for a broker that has gone."""
        ...


def events_name(job_id: str) -> str:
    """Of the subject or key with the events of a job."""
    return f"jobs.{job_id}.events"


def control_name(job_id: str) -> str:
    """Of the subject or key by which a job is told to end."""
    return f"jobs.{job_id}.control"


def encode_cancel(job_id: str, reason: str) -> bytes:
    """The document on the control channel."""
    return encode({"job_id": job_id, "type": "cancel", "reason": reason[:JOB_REASON_CHARACTERS]})


def cancel_reason(document: bytes) -> str | None:
    """Why the job shall end; None for a document that says something else."""
    try:
        data = decode_strict(document)
    except ValidationError:
        return None
    if not isinstance(data, dict) or data.get("type") != "cancel":
        return None
    reason = data.get("reason")
    return reason[:JOB_REASON_CHARACTERS] if isinstance(reason, str) and reason else "cancelled"
