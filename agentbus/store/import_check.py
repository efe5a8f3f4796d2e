"""Whether the records of an export fit each other, checked one by one as they are read.

Owns what a record must be to those before it, so that a file whose checksum fits, but which no bus
has written, becomes no bus whose readers pass over messages without a word. What a field may be by
itself is export_kinds.py's; what direct messages must be, peer/import_check.py's. Touches neither a
file nor a database; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentbus.encoding import encode
from agentbus.errors import ValidationError
from agentbus.limits import DEFAULT_CHANNEL, INBOX_PREFIX
from agentbus.store.export_format import check_envelope
from agentbus.store.export_kinds import Kind
from agentbus.store.peer.import_check import DirectRecords


@dataclass(slots=True)
class _Channel:
    """`removed_to`: where the last range of removed messages ends."""

    channel_id: int
    kind: str
    created_sequence: int
    newest: int
    removed_through: int
    removed_to: int = 0


@dataclass(slots=True)
class _Memory:
    """The last revision that was read. `ended_sequence` is null while it lives."""

    place: tuple[int, int, str]  # channel, position and session of its creation
    revision: int
    ended_sequence: int | None


class Records:
    """All records so far, as far as later ones depend on them. In the order of the file."""

    def __init__(self, header: dict[str, Any]) -> None:
        self._last_sequence: int = header["last_sequence"]
        self._last_generation: int = header["last_generation"]
        self._agents: dict[str, str] = {}  # names by id
        self._sessions: set[str] = set()
        self._parents: dict[str, int] = {}  # and the line that names one first
        self._channels: dict[int, _Channel] = {}
        self._named: dict[str, _Channel] = {}
        self._last_message = 0
        self._memories: dict[str, _Memory] = {}
        self._positions: set[int] = set()  # of memories
        self._direct = DirectRecords(self._agents.keys(), self._sessions, self._last_sequence)

    def row(self, kind: Kind, record: dict[str, Any], line: int) -> tuple[Any, ...]:
        """The row of a record, columns in the order of their table. Raises ValidationError."""
        match kind.name:
            case "agent":
                self._agents[record["id"]] = record["name"]
                record["capabilities"] = encode(record["capabilities"]).decode()
            case "session":
                self._take_session(record, line)
            case "channel":
                self._take_channel(record)
                row = tuple(record.values())
                return (*row[:-1], 0, row[-1])  # `retained` is counted when all messages are there
            case "removed":
                self._take_removed(record)
            case "subscription":
                self._require_session(record["session"])
                self._channel(record["channel"])
                _require(
                    record["confirmed"] <= record["handed_off"], "confirmed is above handed_off"
                )
                self._require_committed("handed_off", record["handed_off"])
            case "message":
                return self._message_row(record)
            case "receipt":
                # Of an operation without an idempotency key the session's, else the agent's.
                if record["session"] not in self._agents:
                    self._require_session(record["session"])
                record["result"] = encode(record["result"])
            case "delivery":
                self._direct.take_delivery(record)
            case "intervention":
                self._direct.take_intervention(record)
            case "presented":
                self._direct.take_presented(record)
            case "notice_shown":
                self._direct.take_notice_shown(record)
            case _:  # consultation
                self._direct.take_consultation(record)
        return tuple(record.values())

    def end(self) -> tuple[str, int | None] | None:
        """What is missing when all were read: the problem, and the line that it is of if any."""
        for parent, line in self._parents.items():
            if parent not in self._sessions:
                return f"session: parent {parent!r} is no session of the export", line
        general = self._named.get(DEFAULT_CHANNEL)
        if general is None or general.kind != "ordinary":
            return f"the export has no ordinary channel {DEFAULT_CHANNEL!r}", None
        for name, channel in self._named.items():
            if channel.removed_to != channel.removed_through:
                return f"channel {name!r} has no record of all that was removed from it", None
        missing = self._direct.missing()
        return None if missing is None else (missing, None)

    def _take_session(self, record: dict[str, Any], line: int) -> None:
        _require(record["agent"] in self._agents, "agent is no agent of the export")
        _require(
            record["generation"] <= self._last_generation,
            "generation is above last_generation of the header",
        )
        for name in ("used_sequence", "seen_sequence"):
            self._require_committed(name, record[name])
        self._sessions.add(record["id"])
        if record["parent"] is not None:
            self._parents.setdefault(record["parent"], line)

    def _take_channel(self, record: dict[str, Any]) -> None:
        for name in ("created_sequence", "newest", "removed_through"):
            self._require_committed(name, record[name])
        if record["kind"] == "inbox":
            agent = record["name"].lstrip(INBOX_PREFIX)
            _require(
                record["name"].startswith(INBOX_PREFIX)
                and any(name.lstrip(INBOX_PREFIX) == agent for name in self._agents.values()),
                f"an inbox is named {INBOX_PREFIX} and the name of an agent of the export",
            )
        channel = _Channel(
            record["id"],
            record["kind"],
            record["created_sequence"],
            record["newest"],
            record["removed_through"],
        )
        self._channels[channel.channel_id] = channel
        self._named[record["name"]] = channel

    def _take_removed(self, record: dict[str, Any]) -> None:
        channel = self._channel(record["channel"])
        first, last = record["from_sequence"], record["to_sequence"]
        _require(first <= last, "from_sequence is above to_sequence")
        _require(first > channel.created_sequence, "from_sequence is from before its channel")
        _require(first > channel.removed_to, "from_sequence must be above the range before")
        _require(last <= channel.removed_through, "to_sequence is above removed_through")
        channel.removed_to = last

    def _message_row(self, record: dict[str, Any]) -> tuple[Any, ...]:
        envelope = record["envelope"]
        check_envelope(envelope, record["sent_at_us"])
        self._require_session(record["session"])
        channel = self._named.get(envelope["channel"])
        if channel is None:
            raise ValidationError("envelope.channel is no channel of the export")
        _require(
            envelope["channel_kind"] == channel.kind, "envelope.channel_kind is not its channel's"
        )
        sequence = envelope["sequence"]
        tombstoned_at_us, ended_sequence = record["tombstoned_at_us"], record["ended_sequence"]
        _require(sequence > self._last_message, "envelope.sequence must be above the one before")
        _require(
            channel.created_sequence < sequence <= channel.newest,
            "envelope.sequence is not between created_sequence and newest of its channel",
        )
        _require(
            (tombstoned_at_us is None) == (ended_sequence is None),
            "tombstoned_at_us and ended_sequence go together",
        )
        if channel.kind != "memory":
            _require(
                record["position"] == sequence
                and envelope["revision"] == 1
                and tombstoned_at_us is None,
                "an ordinary message has one revision, which stands at its own sequence and never "
                "ends",
            )
            _require(
                sequence > channel.removed_through, "envelope.sequence was removed from its channel"
            )
        else:
            self._take_revision(record, channel)
        if channel.kind == "inbox":
            self._direct.take_message(envelope)
        self._last_message = sequence
        return (
            sequence,
            envelope["message_id"],
            envelope["revision"],
            channel.channel_id,
            record["position"],
            record["session"],
            record["sent_at_us"],
            envelope.get("thread"),
            envelope.get("reply_to"),
            channel.kind == "memory",
            tombstoned_at_us,
            ended_sequence,
            encode(envelope),
        )

    def _take_revision(self, record: dict[str, Any], channel: _Channel) -> None:
        envelope, position = record["envelope"], record["position"]
        sequence, revision = envelope["sequence"], envelope["revision"]
        memory_id, ended_sequence = envelope["message_id"], record["ended_sequence"]
        _require(channel.created_sequence < position, "position is from before its channel")
        _require(position <= sequence, "position is above envelope.sequence")
        if ended_sequence is not None:
            self._require_committed("ended_sequence", ended_sequence)
            _require(ended_sequence > sequence, "ended_sequence is not above envelope.sequence")
        place = (channel.channel_id, position, record["session"])
        known = self._memories.get(memory_id)
        _require(
            revision > 1 or position == sequence, "a first revision stands at its own sequence"
        )
        if known is None:
            _require(position not in self._positions, "position is that of another memory")
            self._positions.add(position)
        else:
            _require(known.place == place, "its memory was made at another place")
            _require(known.revision < revision, "envelope.revision must be above the one before")
            if known.ended_sequence is None:
                raise ValidationError("its memory has two revisions that live")
            _require(known.ended_sequence <= sequence, "the revision before ends behind it")
        self._memories[memory_id] = _Memory(place, revision, ended_sequence)

    def _channel(self, channel_id: int) -> _Channel:
        _require(channel_id in self._channels, "channel is no channel of the export")
        return self._channels[channel_id]

    def _require_session(self, session_id: str) -> None:
        _require(session_id in self._sessions, "session is no session of the export")

    def _require_committed(self, name: str, sequence: int) -> None:
        _require(sequence <= self._last_sequence, f"{name} is above last_sequence of the header")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValidationError(problem)
