"""The events of a job: their types, their limits, and the strict way to and from JSON.

Owns the schema. Never redacts or cuts (text.py), never numbers events (emitter.py). Pure; any
thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, ClassVar, Final, NoReturn, TypeAlias

from agentbus.encoding import check_text, decode_strict, decode_trusted, encode, encode_canonical
from agentbus.errors import TooLargeError, ValidationError
from agentbus.limits import KIB, MIB, NAME_BYTES
from agentbus.rules.jobs import JOB_CHANNEL_PREFIX
from agentbus.rules.receipts import digest

JOB_ID_BYTES: Final = NAME_BYTES - len(JOB_CHANNEL_PREFIX)
"""So that every job has a channel of its name."""

SEQ_MAX: Final = 2**53 - 1
"""The largest whole number that every JSON reader keeps exact."""

MESSAGE_CHARACTERS: Final = 500
MESSAGE_BYTES: Final = 1500
"""Of progress and warnings. The bytes are those of 500 UTF-16 units, by which other emitters
count."""

FAILURE_CHARACTERS: Final = 2000
FAILURE_BYTES: Final = 6000
RESULT_BYTES: Final = MIB
"""Of the result as compact JSON; what is larger goes into an artifact."""

ADDRESS_BYTES: Final = 8 * KIB
"""Of a URL or the uri of an artifact."""

WORD_BYTES: Final = 128
"""Of a stage, a code or a content type."""

ARTIFACTS: Final = 64
EVENT_BYTES: Final = RESULT_BYTES + ARTIFACTS * (ADDRESS_BYTES + KIB) + 64 * KIB
"""No event that is valid is longer, so a receiver may stop reading there."""

CANCELLED: Final = "cancelled"
"""Code of the failure by which a job acknowledges a cancel."""

LOST: Final = "lost"
"""Code of the failure that is written for a job which ended without a terminal event."""

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_VISIBLE: Final = re.compile(r"[!-~]+")
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """Where a payload is that no event carries itself. `bytes` is its length."""

    uri: str
    sha256: str
    bytes: int
    content_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """What all have: the job, its sequence from 0, and when (ISO 8601, milliseconds, Z).

    `source_job_id` is the id that the tool itself gave, where a receiver knew better.
    """

    job_id: str
    seq: int
    ts: str
    source_job_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(_Event):
    """The job has begun, with what it was asked to work on."""

    TYPE: ClassVar = "accepted"
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(_Event):
    """Where the work is. `pct` is 0 to 100."""

    TYPE: ClassVar = "progress"
    stage: str
    pct: float | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(_Event):
    """Something a person should know, which did not end the job."""

    TYPE: ClassVar = "warning"
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded(_Event):
    """Terminal: the result, any JSON."""

    TYPE: ClassVar = "succeeded"
    result: Any
    artifacts: tuple[ArtifactRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(_Event):
    """Terminal: why not. `synthetic` when nobody in the job said so itself."""

    TYPE: ClassVar = "failed"
    code: str
    message: str
    synthetic: bool = False


Event: TypeAlias = Accepted | Progress | Warned | Succeeded | Failed
Terminal: TypeAlias = Succeeded | Failed


def is_terminal(event: Event) -> bool:
    """Whether nothing comes after it."""
    return isinstance(event, Succeeded | Failed)


def timestamp(wall_us: int) -> str:
    """Microseconds since the epoch as an event says it."""
    moment = datetime.fromtimestamp(wall_us / 1_000_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def event_data(event: Event) -> dict[str, Any]:
    """The event as JSON data; optional fields without a value are left out."""
    data: dict[str, Any] = {
        "job_id": event.job_id,
        "seq": event.seq,
        "ts": event.ts,
        "type": event.TYPE,
    }
    if event.source_job_id is not None:
        data["source_job_id"] = event.source_job_id
    match event:
        case Accepted():
            data["url"] = event.url
        case Progress():
            data["stage"] = event.stage
            if event.pct is not None:
                data["pct"] = event.pct
            if event.message is not None:
                data["message"] = event.message
        case Warned():
            data["message"] = event.message
        case Succeeded():
            data["result"] = event.result
            if event.artifacts:
                data["artifacts"] = [artifact_data(ref) for ref in event.artifacts]
        case Failed():
            data["code"], data["message"] = event.code, event.message
            if event.synthetic:
                data["synthetic"] = True
    return data


def artifact_data(ref: ArtifactRef) -> dict[str, Any]:
    """The reference as JSON data."""
    return {
        "uri": ref.uri,
        "sha256": ref.sha256,
        "bytes": ref.bytes,
        "content_type": ref.content_type,
    }


def encode_event(event: Event) -> bytes:
    """Compact JSON that a receiver will not refuse. Raises ValidationError or TooLargeError."""
    data = event_data(event)
    parse_event(data)
    document = encode(data)
    if isinstance(event, Succeeded):  # a tool may put anything there
        _refuse_not_finite(event.result)
        decode_event(document)
    return document


def decode_event(document: bytes | str) -> Event:
    """The event that a document from outside is. Raises ValidationError or TooLargeError."""
    if len(document) > EVENT_BYTES:
        raise TooLargeError(f"an event of {len(document)} bytes; at most {EVENT_BYTES}")
    return parse_event(decode_strict(document))


def fingerprint(event: Event) -> bytes:
    """The same for the same event, whatever the order of its keys when it came."""
    return digest(encode_canonical(event_data(event)))


def parse_event(data: Any) -> Event:
    """The event that JSON data is; nothing unknown, nothing missing, nothing out of range."""
    if not isinstance(data, dict):
        raise ValidationError(f"an event is an object, not {type(data).__name__}")
    fields = _Fields(data)
    kind = fields.take("type", _text("type", WORD_BYTES))
    common = {
        "job_id": fields.take("job_id", check_job_id),
        "seq": fields.take("seq", _whole("seq", SEQ_MAX)),
        "ts": fields.take("ts", _time),
        "source_job_id": fields.take_if_given("source_job_id", check_job_id),
    }
    event: Event
    match kind:
        case "accepted":
            event = Accepted(**common, url=fields.take("url", _text("url", ADDRESS_BYTES)))
        case "progress":
            event = Progress(
                **common,
                stage=fields.take("stage", _text("stage", WORD_BYTES)),
                pct=fields.take_if_given("pct", check_pct),
                message=fields.take_if_given("message", _message),
            )
        case "warning":
            event = Warned(**common, message=fields.take("message", _message))
        case "succeeded":
            event = Succeeded(
                **common,
                result=fields.take("result", check_result),
                artifacts=fields.take_if_given("artifacts", _artifacts) or (),
            )
        case "failed":
            event = Failed(
                **common,
                code=fields.take("code", _text("code", WORD_BYTES)),
                message=fields.take("message", _failure),
                synthetic=fields.take_if_given("synthetic", _flag) or False,
            )
        case _:
            raise ValidationError(f"type {kind[:40]!r} is none of an event")
    fields.end()
    return event


def check_job_id(value: Any) -> str:
    """1 to 124 visible ASCII characters, no slash: it names channels, paths and header values."""
    text = _text("job_id", JOB_ID_BYTES)(value)
    if not _VISIBLE.fullmatch(text) or "/" in text or text in (".", ".."):
        _refuse("job_id", "visible ASCII characters without slashes", value)
    return text


def check_content_type(value: Any) -> str:
    """Up to 128 printable ASCII characters: it goes into a header."""
    text = _text("content_type", WORD_BYTES)(value)
    if not text.isascii() or not text.isprintable():
        _refuse("content_type", "printable ASCII characters", value)
    return text


def check_pct(value: Any) -> float:
    """A share in percent."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not isfinite(value) or not 0 <= value <= 100:
        _refuse("pct", "a number from 0 to 100", value)
    return value  # type: ignore[no-any-return]  # an int stays one, so that bytes are stable


def check_result(value: Any) -> Any:
    """Any JSON, up to 1 MiB of it."""
    size_bytes = len(encode(value))
    if size_bytes > RESULT_BYTES:
        raise TooLargeError(
            f"the result is {size_bytes} bytes of JSON, at most {RESULT_BYTES} fit an event; "
            "store it as an artifact and refer to that"
        )
    return value


def plain_result(value: Any) -> Any:
    """The JSON data that the encoder makes of a result, which may hold dataclasses and the like."""
    _refuse_not_finite(value)
    return decode_trusted(encode(value))


def _refuse_not_finite(value: Any) -> None:
    """Of what would become `null` without a word."""
    if isinstance(value, float):
        if not isfinite(value):
            raise ValidationError(
                f"the result holds {value}, which is not JSON; give it as text or leave it out"
            )
    elif isinstance(value, dict):
        for item in value.values():
            _refuse_not_finite(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_not_finite(item)
    elif is_dataclass(value):
        for name in value.__dataclass_fields__:
            _refuse_not_finite(getattr(value, name))


class _Fields:
    """The fields of one object, each taken once; what is left over is an error."""

    def __init__(self, data: dict[str, Any], what: str = "the event") -> None:
        self._left = dict(data)
        self._what = what

    def take(self, name: str, check: Callable[[Any], Any]) -> Any:
        if name not in self._left:
            raise ValidationError(f"{self._what} has no {name!r}")
        return check(self._left.pop(name))

    def take_if_given(self, name: str, check: Callable[[Any], Any]) -> Any:
        return check(self._left.pop(name)) if name in self._left else None

    def end(self) -> None:
        if self._left:
            raise ValidationError(f"{self._what} has an unknown field {next(iter(self._left))!r}")


def _text(what: str, max_bytes: int) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or not value:
            _refuse(what, "text that is not empty", value)
        check_text(value, what)
        if len(value.encode()) > max_bytes:
            _refuse(what, f"at most {max_bytes} bytes", value)
        return str(value)

    return check


def _bounded(what: str, characters: int, max_bytes: int) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str):
            _refuse(what, "text", value)
        check_text(value, what)
        if len(value) > characters or len(value.encode()) > max_bytes:
            _refuse(what, f"at most {characters} characters and {max_bytes} bytes", value)
        return str(value)

    return check


_message: Final = _bounded("message", MESSAGE_CHARACTERS, MESSAGE_BYTES)
_failure: Final = _bounded("message", FAILURE_CHARACTERS, FAILURE_BYTES)


def _whole(what: str, maximum: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
            _refuse(what, f"a whole number from 0 to {maximum}", value)
        return int(value)

    return check


def _time(value: Any) -> str:
    if isinstance(value, str) and _TIME.fullmatch(value):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            pass  # the thirtieth of February
        else:
            return value
    _refuse("ts", "ISO 8601 with milliseconds and Z", value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        _refuse("synthetic", "true or false", value)
    return value


def _artifacts(value: Any) -> tuple[ArtifactRef, ...]:
    if not isinstance(value, list) or len(value) > ARTIFACTS:
        _refuse("artifacts", f"a list of at most {ARTIFACTS}", value)
    return tuple(parse_artifact(item) for item in value)


def parse_artifact(data: Any) -> ArtifactRef:
    """The reference that JSON data is."""
    if not isinstance(data, dict):
        _refuse("an artifact", "an object", data)
    fields = _Fields(data, "an artifact")
    ref = ArtifactRef(
        uri=fields.take("uri", _text("uri", ADDRESS_BYTES)),
        sha256=fields.take("sha256", _sha256),
        bytes=fields.take("bytes", _whole("bytes", SEQ_MAX)),
        content_type=fields.take("content_type", check_content_type),
    )
    fields.end()
    return ref


def _sha256(value: Any) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        _refuse("sha256", "64 lower-case hexadecimal digits", value)
    return value


def _refuse(what: str, wanted: str, value: Any) -> NoReturn:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    raise ValidationError(f"{what} must be {wanted}, not {shown}")
