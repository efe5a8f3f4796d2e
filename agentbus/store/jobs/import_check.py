"""Whether the records of jobs in an export fit each other and what they refer to.

Owns what a job must be so that it can go on: its channel, an event for each message of that, in
order, and nothing after the last. Touches neither a file nor a database; any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from agentbus.encoding import encode
from agentbus.errors import ValidationError
from agentbus.protocol.jobs import parse_callback
from agentbus.rules.jobs import JOB_CHANNEL_PREFIX, channel_of
from agentbus.store.jobs.rows import NOTHING_YET


@dataclass(slots=True)
class _Channel:
    """`left`: its messages that no event has been read for, in order."""

    name: str
    left: deque[int] = field(default_factory=deque)
    job: dict[str, Any] | None = None
    last_seq: int = NOTHING_YET


class JobRecords:
    """All jobs and what belongs to them so far. In the order of the file."""

    def __init__(self, sessions: Set[str]) -> None:
        """`sessions`: of the export; they are complete before the first job."""
        self._sessions = sessions
        self._channels: dict[int, _Channel] = {}
        self._jobs: dict[str, dict[str, Any]] = {}

    def take_channel(self, channel_id: int, name: str) -> None:
        """A channel of kind job."""
        _require(name.startswith(JOB_CHANNEL_PREFIX), f"a job's is named {JOB_CHANNEL_PREFIX}ID")
        self._channels[channel_id] = _Channel(name)

    def take_message(self, channel_id: int, sequence: int) -> None:
        """A message in such a channel."""
        self._channels[channel_id].left.append(sequence)

    def take_job(self, record: dict[str, Any]) -> None:
        began = record["channel"] is not None
        if began:
            channel = self._channels.get(record["channel"])
            if channel is None or channel.name != channel_of(record["id"]):
                raise ValidationError("channel is not the channel of this job")
            _require(channel.job is None, "channel is that of another job")
            channel.job = record
            _require(record["session"] in self._sessions, "session is no session of the export")
        record["last_seq"] = record["last_seq"] if began else NOTHING_YET
        is_closed = record["state"] == "closed"
        for name in ("closed_at_us", "outcome"):
            _require((record[name] is not None) == is_closed, f"{name} goes with a closed job")
        _require(began or not is_closed, "a job without a channel has not begun")
        if record["callback"] is not None:
            parse_callback(record["callback"])
            record["callback"] = encode(record["callback"]).decode()
        self._jobs[record["id"]] = record

    def take_event(self, record: dict[str, Any]) -> None:
        channel = self._channels.get(record["channel"])
        if channel is None or channel.job is None:
            raise ValidationError("channel is not the channel of a job")
        left = channel.left
        if not left or left.popleft() != record["sequence"]:
            raise ValidationError("sequence is not the next message of its channel")
        _require(record["seq"] > channel.last_seq, "seq must be above the one before")
        _require(record["seq"] <= channel.job["last_seq"], "seq is above last_seq of its job")
        channel.last_seq = record["seq"]

    def take_callback(self, record: dict[str, Any]) -> None:
        job = self._jobs.get(record["job"])
        if job is None or job["callback"] is None:
            raise ValidationError("job is no job of the export with a callback")
        is_dead = record["state"] == "dead"
        _require((record["dead_at_us"] is not None) == is_dead, "dead_at_us goes with a dead one")

    def missing(self) -> str | None:
        """What is missing when all were read."""
        for channel in self._channels.values():
            if channel.job is None:
                return f"channel {channel.name!r} has no job"
            if channel.left:
                return f"channel {channel.name!r} has a message that is no event of its job"
        return None


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValidationError(problem)
