"""The frames of a connection that are not operations of an agent.

Client to daemon, requests: `hello`, `heartbeat`, `attach`, `detach`, `pull`, `handoff`,
`memories`, the operations of operations.py, of hooks `hook` and `wait`, and for people `status`,
`channels`, `sessions`, `stop`, `reset`.
Client to daemon, notifications: `credit`, `used`, `handing_off`, `cancel_pull`.
Daemon to client, notifications: `deliver`, `invalidate`, `notice`, `expired`, `readiness`,
`detached`, `evidence`, `stopping`.

Every frame of an attachment names it as `attachment: [session_id, generation]`. Sequences and
positions are those of the bus, `subscription` is a row id. See docs/protocol.md for the shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentbus.encoding import check_text, raw
from agentbus.errors import ValidationError
from agentbus.identity import Attachment, IdentitySource, SessionIdentity
from agentbus.ids import Generation, MessageId, Sequence, SessionId
from agentbus.limits import (
    JOB_APPLICATION,
    JOBS_AGENT,
    PEER_CAPABILITIES,
    PEER_ID_CHARACTERS,
    WHOLE_MAX,
)
from agentbus.protocol.fields import Text, check_name, describe
from agentbus.rules.names import reserved_prefix

CAPABILITY = Text(max_characters=PEER_ID_CHARACTERS, min_characters=1, printable=True)

IDENTITY_SOURCES = ("turn_metadata", "hook", "environment", "argument", "process")


# --- client to daemon ---


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a connection. `config_path`/`config_fingerprint` are absent for the CLI.

    `harness_pid`: the process that started the adapter, so that hooks of the same one find it.
    """

    protocol: int
    version: str
    pid: int
    config_path: str | None = None
    config_fingerprint: str | None = None
    harness_pid: int | None = None


@dataclass(frozen=True, slots=True)
class HookEvent:
    """A command hook of a harness ran. `harness_pid`: the harness process that ran it."""

    application: str
    event: str
    conversation: str
    child: str | None = None
    role: str | None = None
    harness_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Answer when something waits for a session, after `wait_ms` at the latest.

    Whose: of `conversation` (and `application`, where it is known), else of what was attached last
    from the first of `harness_pids` that has something. `channels` empty: all of its subscriptions.
    `only_new`: leave out what an earlier wait of this kind has told already, so that nobody is
    woken twice for one message, and end with the conversation, or with the adapter that one of
    `harness_pids` has started.
    """

    wait_ms: int
    channels: tuple[str, ...] = ()
    application: str | None = None
    conversation: str | None = None
    harness_pids: tuple[int, ...] = ()
    only_new: bool = False


@dataclass(frozen=True, slots=True)
class Attach:
    """Bind a session to this connection and open its prefetch window.

    `proven`: the call itself shows the conversation, so that an idle holder gives way.
    `presence`: other agents may see that it is there. `capabilities`: what it says it can do.
    """

    agent: str
    identity: SessionIdentity
    identity_source: IdentitySource
    window_messages: int
    window_bytes: int
    parent_conversation: str | None = None
    role: str | None = None
    repository: str | None = None
    harness_pid: int | None = None
    proven: bool = False
    presence: bool = True
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Detach:
    attachment: Attachment


@dataclass(frozen=True, slots=True)
class Credit:
    """Room given back in the prefetch window."""

    attachment: Attachment
    messages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Used:
    """A call of the conversation was seen.

    `channels` is None for a call that is no receive, else the names that it reads (empty: all);
    these subscriptions are renewed. `confirms` is the newest handoff report that was settled before
    the call's request arrived; it and all earlier ones are confirmed. 0 confirms nothing.
    """

    attachment: Attachment
    confirms: int
    channels: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class HandingOff:
    """Told before the first byte of a result with messages leaves the adapter.

    `exposed`: subscription -> the highest sequence of which the client may have seen a byte from
    then on, whatever becomes of the result and of the adapter. The last word on a subscription
    counts, so a lower one takes back what did not leave. It moves no cursor while the attachment
    lives; what no report covers at its end is delivered again, marked.
    """

    attachment: Attachment
    exposed: dict[int, Sequence]


@dataclass(frozen=True, slots=True)
class HandoffReport:
    """A result left the adapter. Answered after the commit; stale ones are ignored and counted.

    `report` counts up from 1 per attachment. `positions`: subscription -> highest sequence handed
    off or passed over. `expired`: subscriptions whose expiry the result told.
    """

    attachment: Attachment
    epoch: int
    report: int
    positions: dict[int, Sequence] = field(default_factory=dict)
    expired: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Pull:
    """Ask for records of certain subscriptions at once, outside the window.

    `after`: subscription -> position to read from. Answered with a list of `Delivery` when there is
    something, else after `wait_ms` with an empty list. `number` names it for `cancel_pull`.
    """

    attachment: Attachment
    number: int
    after: dict[int, Sequence]
    count: int
    max_bytes: int
    wait_ms: int = 0
    include_own: bool = False


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """A memory that waits in an adapter, at a position of a subscription, in this revision."""

    subscription: int
    position: Sequence
    memory_id: MessageId
    revision: int


@dataclass(frozen=True, slots=True)
class CompareMemories:
    """Ask which of these are no longer so. Answered with how many were compared, and those that
    differ as `[subscription, position, envelope or null]`."""

    attachment: Attachment
    held: tuple[HeldMemory, ...]


@dataclass(frozen=True, slots=True)
class CancelPull:
    attachment: Attachment
    number: int


# --- daemon to client ---


@dataclass(frozen=True, slots=True)
class GapRange:
    """Messages that are gone, both ends inclusive."""

    from_sequence: Sequence
    to_sequence: Sequence
    cause: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one subscription has to show between two positions: `after` (exclusive) to `through`.

    Each record is a position and an envelope. The position is the envelope's sequence, of a memory
    the sequence of its creation, whichever revision the envelope is.

    `gaps` lie before or between the records by their sequences. Own messages are left out unless
    asked for, so `through` may be above the last record. Records up to `redelivered_through` were
    handed off before without being confirmed.
    """

    subscription: int
    channel: str
    after: Sequence
    through: Sequence
    redelivered_through: Sequence
    records: tuple[tuple[Sequence, bytes], ...]
    gaps: tuple[GapRange, ...] = ()
    oldest_retained: Sequence | None = None

    @property
    def size_bytes(self) -> int:
        """Of the envelopes."""
        return sum(len(envelope) for _, envelope in self.records)

    def as_data(self) -> dict[str, Any]:
        """For a frame; the envelopes are embedded as they were encoded by the ledger."""
        data: dict[str, Any] = {
            "subscription": self.subscription,
            "channel": self.channel,
            "after": self.after,
            "through": self.through,
            "redelivered_through": self.redelivered_through,
            "records": [[position, raw(envelope)] for position, envelope in self.records],
        }
        if self.gaps:
            data["gaps"] = [[gap.from_sequence, gap.to_sequence, gap.cause] for gap in self.gaps]
            data["oldest_retained"] = self.oldest_retained
        return data


# --- parsing ---


class Fields:
    """Reads the parameters of one frame, strictly; errors name the method and the key."""

    def __init__(self, method: str, params: Any, known: frozenset[str]) -> None:
        if not isinstance(params, dict):
            raise ValidationError(f"{method}: the parameters must be an object")
        unknown = set(params) - known
        if unknown:
            raise ValidationError(f"{method}: unknown parameter {min(unknown)!r}")
        self._method = method
        self._params: dict[str, Any] = params

    def attachment(self) -> Attachment:
        value = self._params.get("attachment")
        if (
            not isinstance(value, list)
            or len(value) != 2
            or not isinstance(value[0], str)
            or type(value[1]) is not int
        ):
            raise self._bad("attachment", "[session_id, generation]", value)
        return Attachment(SessionId(value[0]), Generation(value[1]))

    def integer(self, key: str, minimum: int, default: int | None = None) -> int:
        value = self._params.get(key, default)
        if type(value) is not int or not minimum <= value <= WHOLE_MAX:
            raise self._bad(key, f"a whole number of at least {minimum}", value)
        return value

    def optional_integer(self, key: str) -> int | None:
        return self.integer(key, 0) if self._params.get(key) is not None else None

    def flag(self, key: str) -> bool:
        value = self._params.get(key, False)
        if not isinstance(value, bool):
            raise self._bad(key, "true or false", value)
        return value

    def text(self, key: str) -> str:
        if not self._params.get(key):
            raise self._bad(key, "text that is not empty", self._params.get(key))
        return self.any_text(key)

    def any_text(self, key: str) -> str:
        """It may be empty, but not be left out."""
        value = self._params.get(key)
        if not isinstance(value, str):
            raise self._bad(key, "text", value)
        check_text(value, f"{self._method}: {key}")
        return value

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if self._params.get(key) is not None else None

    def name(self, key: str) -> str:
        try:
            return check_name(self.text(key))
        except ValidationError as error:
            raise ValidationError(f"{self._method}: {key} {error.message}") from None

    def positions(self, key: str) -> dict[int, Sequence]:
        """`[[subscription, sequence], ...]`."""
        value = self._params.get(key, [])
        result: dict[int, Sequence] = {}
        if not isinstance(value, list):
            raise self._bad(key, "a list of [subscription, sequence]", value)
        for item in value:
            if (
                not isinstance(item, list)
                or len(item) != 2
                or type(item[0]) is not int
                or type(item[1]) is not int
                or item[1] < 0
            ):
                raise self._bad(key, "a list of [subscription, sequence]", item)
            result[item[0]] = Sequence(item[1])
        return result

    def held_memories(self, key: str) -> tuple[HeldMemory, ...]:
        """`[[subscription, position, memory id, revision], ...]`."""
        value = self._params.get(key)
        if not isinstance(value, list):
            raise self._bad(key, "a list of held memories", value)
        for item in value:
            kinds = [type(part) for part in item] if isinstance(item, list) else None
            if kinds != [int, int, str, int]:
                raise self._bad(key, "[subscription, position, memory_id, revision]", item)
        return tuple(HeldMemory(*item) for item in value)

    def integers(self, key: str) -> tuple[int, ...]:
        value = self._params.get(key, [])
        if not isinstance(value, list) or any(type(item) is not int for item in value):
            raise self._bad(key, "a list of whole numbers", value)
        return tuple(value)

    def optional_names(self, key: str) -> tuple[str, ...] | None:
        value = self._params.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
            raise self._bad(key, "a list of names", value)
        return tuple(value)

    def choice(self, key: str, words: tuple[str, ...]) -> str:
        value = self._params.get(key)
        if value not in words:
            raise self._bad(key, f"one of {', '.join(words)}", value)
        return str(value)

    def mapping(self, key: str) -> dict[str, Any]:
        value = self._params.get(key, {})
        if not isinstance(value, dict):
            raise self._bad(key, "an object", value)
        return value

    def _bad(self, key: str, expected: str, value: Any) -> ValidationError:
        return ValidationError(f"{self._method}: {key} must be {expected}, not {describe(value)}")


_HELLO = frozenset(
    {"protocol", "version", "pid", "config_path", "config_fingerprint", "harness_pid"}
)
_HOOK = frozenset({"application", "event", "conversation", "child", "role", "harness_pid"})
_WAIT = frozenset(
    {"wait_ms", "channels", "application", "conversation", "harness_pids", "only_new"}
)
_ATTACH = frozenset(
    {
        "agent",
        "application",
        "conversation",
        "child",
        "identity_source",
        "window_messages",
        "window_bytes",
        "parent_conversation",
        "role",
        "repository",
        "harness_pid",
        "proven",
        "presence",
        "capabilities",
    }
)


def parse_hello(params: Any) -> Hello:
    read = Fields("hello", params, _HELLO)
    return Hello(
        protocol=read.integer("protocol", 1),
        version=read.text("version"),
        pid=read.integer("pid", 1),
        config_path=read.optional_text("config_path"),
        config_fingerprint=read.optional_text("config_fingerprint"),
        harness_pid=read.optional_integer("harness_pid"),
    )


def parse_hook(params: Any) -> HookEvent:
    read = Fields("hook", params, _HOOK)
    return HookEvent(
        application=read.name("application"),
        event=read.name("event"),
        conversation=read.name("conversation"),
        child=read.optional_text("child"),
        role=read.optional_text("role"),
        harness_pid=read.optional_integer("harness_pid"),
    )


def parse_wait(params: Any) -> Wait:
    read = Fields("wait", params, _WAIT)
    return Wait(
        wait_ms=read.integer("wait_ms", 0, 0),
        channels=read.optional_names("channels") or (),
        application=read.optional_text("application"),
        conversation=read.optional_text("conversation"),
        harness_pids=read.integers("harness_pids"),
        only_new=read.flag("only_new"),
    )


def parse_attach(params: Any) -> Attach:
    read = Fields("attach", params, _ATTACH)
    presence = params.get("presence") is None or read.flag("presence")
    agent = _agent_name(read.name("agent"))
    if agent == JOBS_AGENT and read.name("application") != JOB_APPLICATION:
        raise ValidationError(
            f"attach: agent {agent!r} is that of the emitters of jobs, whose application is "
            f"{JOB_APPLICATION!r}; choose another name"
        )
    return Attach(
        agent=agent,
        identity=SessionIdentity(
            application=read.name("application"),
            conversation=read.name("conversation"),
            child=read.name("child") if params.get("child") is not None else None,
        ),
        identity_source=read.choice("identity_source", IDENTITY_SOURCES),  # type: ignore[arg-type]
        window_messages=read.integer("window_messages", 1),
        window_bytes=read.integer("window_bytes", 1),
        parent_conversation=read.optional_text("parent_conversation"),
        role=read.optional_text("role"),
        repository=read.optional_text("repository"),
        harness_pid=read.optional_integer("harness_pid"),
        proven=read.flag("proven"),
        presence=presence,
        capabilities=_capabilities(read.optional_names("capabilities") or ()),
    )


def _agent_name(name: str) -> str:
    """Names that only the daemon gives are nobody's to take."""
    prefix = reserved_prefix(name)
    if prefix is not None:
        raise ValidationError(
            f"attach: agent must not begin with {prefix!r}, which marks a person, a caller "
            "over talk or an inbox; choose another name"
        )
    return name


def _capabilities(given: tuple[str, ...]) -> tuple[str, ...]:
    for label in given:
        try:
            CAPABILITY(label)
        except ValidationError as error:
            raise ValidationError(f"attach: a capability {error.message}") from None
    labels = tuple(sorted(set(given)))
    if len(labels) > PEER_CAPABILITIES:
        raise ValidationError(
            f"attach: capabilities must be at most {PEER_CAPABILITIES}, not {len(labels)}"
        )
    return labels


def parse_detach(params: Any) -> Detach:
    return Detach(Fields("detach", params, frozenset({"attachment"})).attachment())


def parse_credit(params: Any) -> Credit:
    read = Fields("credit", params, frozenset({"attachment", "messages", "bytes"}))
    return Credit(read.attachment(), read.integer("messages", 0), read.integer("bytes", 0))


def parse_used(params: Any) -> Used:
    read = Fields("used", params, frozenset({"attachment", "confirms", "channels"}))
    return Used(read.attachment(), read.integer("confirms", 0), read.optional_names("channels"))


def parse_handing_off(params: Any) -> HandingOff:
    read = Fields("handing_off", params, frozenset({"attachment", "exposed"}))
    return HandingOff(read.attachment(), read.positions("exposed"))


def parse_handoff(params: Any) -> HandoffReport:
    known = frozenset({"attachment", "epoch", "report", "positions", "expired"})
    read = Fields("handoff", params, known)
    return HandoffReport(
        read.attachment(),
        read.integer("epoch", 0),
        read.integer("report", 1),
        read.positions("positions"),
        read.integers("expired"),
    )


def parse_pull(params: Any) -> Pull:
    known = {"attachment", "number", "after", "count", "max_bytes", "wait_ms", "include_own"}
    read = Fields("pull", params, frozenset(known))
    return Pull(
        read.attachment(),
        read.integer("number", 0),
        read.positions("after"),
        read.integer("count", 1),
        read.integer("max_bytes", 1),
        read.integer("wait_ms", 0, 0),
        read.flag("include_own"),
    )


def parse_memories(params: Any) -> CompareMemories:
    read = Fields("memories", params, frozenset({"attachment", "held"}))
    return CompareMemories(read.attachment(), read.held_memories("held"))


def parse_cancel_pull(params: Any) -> CancelPull:
    read = Fields("cancel_pull", params, frozenset({"attachment", "number"}))
    return CancelPull(read.attachment(), read.integer("number", 0))
