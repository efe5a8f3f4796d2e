"""What is asked about jobs: `job_event` of an emitter's attachment, all else without one.

Owns the shapes of these requests and their strict parsing; whether an event is one is judged with
the library of jobs, which stands above this. Readers and parents need no attachment: they are the
user who owns the bus.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from agentbus.errors import ValidationError
from agentbus.identity import Attachment
from agentbus.limits import (
    CALLBACK_ATTEMPTS,
    CALLBACK_ATTEMPTS_MAX,
    CALLBACK_HOSTS_MAX,
    JOB_EVENTS_MAX,
    JOB_PAGE_MAX,
    JOB_REASON_CHARACTERS,
    JOB_WAIT_MS_MAX,
    NAME_BYTES,
)
from agentbus.protocol.fields import Check, Flag, Integer, Text, describe
from agentbus.protocol.requests import parse_request
from agentbus.protocol.session import Fields

_JOB_ID = Text(max_bytes=NAME_BYTES, min_characters=1)
_WAIT_MS = Integer(0, JOB_WAIT_MS_MAX)


# --- of an emitter ---


@dataclass(frozen=True, slots=True)
class EmitJobEvent:
    """An event of a job, checked. What its receipt compares: the same event again is no second."""

    job_id: str
    event: dict[str, Any]

    NAME: ClassVar[str] = "job_event"


@dataclass(frozen=True, slots=True)
class JobCallback:
    """Where the bus posts the events of a job. `max_retries`: attempts in all for one event."""

    url: str
    allowed_hosts: tuple[str, ...] = ()
    max_retries: int = CALLBACK_ATTEMPTS
    secret: str | None = field(default=None, repr=False)

    def as_data(self) -> dict[str, Any]:
        """For a frame or a row."""
        return {
            "url": self.url,
            "allowed_hosts": list(self.allowed_hosts),
            "max_retries": self.max_retries,
            "secret": self.secret,
        }


@dataclass(frozen=True, slots=True)
class JobEventFrame:
    """An event as it came: nothing in it is checked. Answered after its commit.

    `after`: the sequence of the event that must be the last one so far; any if left out.
    """

    attachment: Attachment
    event: Any
    callback: JobCallback | None = None
    after: int | None = None


def parse_job_event(params: Any) -> JobEventFrame:
    read = Fields("job_event", params, frozenset({"attachment", "event", "callback", "after"}))
    callback = params.get("callback")
    return JobEventFrame(
        read.attachment(),
        params.get("event"),
        None if callback is None else parse_callback(callback),
        read.optional_integer("after"),
    )


def parse_callback(value: Any) -> JobCallback:
    """The callback that JSON data is; its address is judged elsewhere."""
    read = Fields("callback", value, frozenset(JobCallback.__dataclass_fields__))
    hosts = read.optional_names("allowed_hosts") or ()
    attempts = read.integer("max_retries", 1, CALLBACK_ATTEMPTS)
    if attempts > CALLBACK_ATTEMPTS_MAX or len(hosts) > CALLBACK_HOSTS_MAX:
        raise ValidationError(
            f"callback: at most {CALLBACK_ATTEMPTS_MAX} max_retries and {CALLBACK_HOSTS_MAX} "
            "allowed_hosts"
        )
    return JobCallback(read.text("url"), hosts, attempts, read.optional_text("secret"))


# --- of people and parents ---


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs, the newest first; `open` leaves out those that have ended."""

    open: bool = False
    limit: int = 100

    NAME: ClassVar[str] = "job_list"
    FIELDS: ClassVar[dict[str, Check]] = {"open": Flag(), "limit": Integer(1, JOB_PAGE_MAX)}


@dataclass(frozen=True, slots=True)
class JobEvents:
    """Events of a job from a sequence on. With none there yet it waits, also for the job itself."""

    job_id: str
    from_: int = 0
    count: int = 100
    wait_ms: int = 0

    NAME: ClassVar[str] = "job_events"
    FIELDS: ClassVar[dict[str, Check]] = {
        "job_id": _JOB_ID,
        "from": Integer(0),
        "count": Integer(1, JOB_EVENTS_MAX),
        "wait_ms": _WAIT_MS,
    }


@dataclass(frozen=True, slots=True)
class JobCancel:
    """Ask a job to end. `ahead`: also one that the bus has not heard of yet."""

    job_id: str
    reason: str
    ahead: bool = False

    NAME: ClassVar[str] = "job_cancel"
    FIELDS: ClassVar[dict[str, Check]] = {
        "job_id": _JOB_ID,
        "reason": Text(max_characters=JOB_REASON_CHARACTERS, min_characters=1),
        "ahead": Flag(),
    }


@dataclass(frozen=True, slots=True)
class JobAwaitCancel:
    """Wait until somebody asks the job to end, or it has ended."""

    job_id: str
    wait_ms: int = 0

    NAME: ClassVar[str] = "job_await_cancel"
    FIELDS: ClassVar[dict[str, Check]] = {"job_id": _JOB_ID, "wait_ms": _WAIT_MS}


@dataclass(frozen=True, slots=True)
class DeadLettersList:
    """Callbacks that were given up, the oldest first."""

    limit: int = 100

    NAME: ClassVar[str] = "deadletters_list"
    FIELDS: ClassVar[dict[str, Check]] = {"limit": Integer(1, JOB_PAGE_MAX)}


@dataclass(frozen=True, slots=True)
class DeadLettersReplay:
    """Try dead letters again: one by its id, or all."""

    id: int | None = None
    all: bool = False

    NAME: ClassVar[str] = "deadletters_replay"
    FIELDS: ClassVar[dict[str, Check]] = {"id": Integer(1), "all": Flag()}

    def __post_init__(self) -> None:
        if (self.id is None) == (not self.all):
            raise ValidationError(
                f"deadletters_replay: give an id or all, not {describe((self.id, self.all))}"
            )


JobRequest: TypeAlias = (
    JobList | JobEvents | JobCancel | JobAwaitCancel | DeadLettersList | DeadLettersReplay
)

JOB_REQUESTS: dict[str, type[JobRequest]] = {
    cls.NAME: cls
    for cls in (JobList, JobEvents, JobCancel, JobAwaitCancel, DeadLettersList, DeadLettersReplay)
}


def parse_job_request(method: str, params: Any) -> JobRequest:
    """Check the parameters of one of `JOB_REQUESTS`. Raises ValidationError."""
    return parse_request(JOB_REQUESTS[method], params)
