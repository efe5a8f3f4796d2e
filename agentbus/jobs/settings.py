"""Which sink a tool uses, from environment variables under a prefix of the tool's choice.

Owns the names and defaults of the variables, and the making of an emitter by them. Reads them once.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from agentbus.errors import ValidationError
from agentbus.jobs.brokers import open_transport
from agentbus.jobs.emitter import Cancellation, JobEmitter
from agentbus.jobs.events import check_job_id
from agentbus.jobs.sinks.base import Sink
from agentbus.jobs.sinks.broker import BrokerSink
from agentbus.jobs.sinks.file import FileSink
from agentbus.jobs.sinks.stdout import StdoutSink, claim_stdout
from agentbus.jobs.text import Redactor, redact
from agentbus.limits import CALLBACK_ATTEMPTS, CALLBACK_ATTEMPTS_MAX
from agentbus.protocol.fields import is_whole
from agentbus.protocol.jobs import JobCallback

if TYPE_CHECKING:
    from agentbus.jobs.delivery import Destination

Transport: TypeAlias = Literal["stdout", "events", "file", "callback", "broker"]

PREFIX: Final = "AGENTBUS_"

VARIABLES: Final[Mapping[str, str]] = {
    "TRANSPORT": "`stdout` (only the result), `events` (every event on stdout), `file`, `callback` "
    "or `broker`; `stdout` if left out",
    "JOB_ID": "id of the job; a random one if left out",
    "EVENTS_PATH": "the file of the transport `file`; `/tmp/<prefix>-events.ndjson` if left out",
    "CALLBACK_URL": "where the transport `callback` posts to, or the local bus as a broker",
    "CALLBACK_SECRET": "signs callbacks; unsigned if left out",
    "CALLBACK_ALLOWED_HOSTS": "hosts that the callback URL may name, with commas; any if left out",
    "CALLBACK_MAX_RETRIES": "attempts in all to deliver one event; "
    f"{CALLBACK_ATTEMPTS} if left out",
    "BROKER_URL": "the broker of the transport `broker`: `agentbus:` (the local bus), `redis://`, "
    "`rediss://`, `nats://`",
}
"""Suffixes, in the order in which people read them."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What the environment says. `prefix` is only for messages."""

    transport: Transport
    job_id: str
    events_path: Path
    callback_url: str | None = None
    callback_secret: str | None = field(default=None, repr=False)
    callback_allowed_hosts: tuple[str, ...] = ()
    callback_max_retries: int = CALLBACK_ATTEMPTS
    broker_url: str | None = field(default=None, repr=False)
    prefix: str = PREFIX


def job_settings(environment: Mapping[str, str] | None = None, prefix: str = PREFIX) -> JobSettings:
    """Raises ValidationError that names the variable. An empty one counts as left out."""
    environ = os.environ if environment is None else environment

    def given(suffix: str) -> str | None:
        return environ.get(prefix + suffix) or None

    transport = given("TRANSPORT") or "stdout"
    if transport not in get_args(Transport):
        raise ValidationError(
            f"{prefix}TRANSPORT is {transport!r}; known are {', '.join(get_args(Transport))}"
        )
    try:
        job_id = check_job_id(given("JOB_ID") or str(uuid.uuid4()))
    except ValidationError as error:
        raise ValidationError(f"{prefix}JOB_ID: {error.message}") from None
    hosts = (given("CALLBACK_ALLOWED_HOSTS") or "").split(",")
    return JobSettings(
        transport=transport,  # type: ignore[arg-type]  # checked above
        job_id=job_id,
        events_path=Path(given("EVENTS_PATH") or _default_path(prefix)),
        callback_url=given("CALLBACK_URL"),
        callback_secret=given("CALLBACK_SECRET"),
        callback_allowed_hosts=tuple(host.strip() for host in hosts if host.strip()),
        callback_max_retries=_attempts(given("CALLBACK_MAX_RETRIES"), prefix),
        broker_url=given("BROKER_URL"),
        prefix=prefix,
    )


def open_sink(settings: JobSettings, cancellation: Cancellation) -> Sink:
    """The sink that the settings name, checked and ready. Raises ValidationError or SinkError."""
    match settings.transport:
        case "stdout":
            return StdoutSink("final", claim_stdout())
        case "events":
            return StdoutSink("ndjson", claim_stdout())
        case "file":
            return FileSink(settings.events_path)
        case "callback":
            from agentbus.jobs.sinks.callback import CallbackSink

            to = _destination(settings, _needed(settings, "CALLBACK_URL", settings.callback_url))
            return CallbackSink(to, settings.callback_max_retries)
        case "broker":
            url = _needed(settings, "BROKER_URL", settings.broker_url)
            callback = _callback(settings)
            try:
                transport = open_transport(url, callback)
            except ValidationError as error:
                raise ValidationError(f"{settings.prefix}BROKER_URL: {error.message}") from None
            return BrokerSink(transport, settings.job_id, cancellation)


def open_job(
    prefix: str = PREFIX,
    environment: Mapping[str, str] | None = None,
    *,
    redactor: Redactor = redact,
    redact_results: bool = False,
) -> JobEmitter[Any, Any, Any]:
    """The emitter of the job that this process is, as its environment says.

    Annotate what it is assigned to, and its calls are checked:
    `job: JobEmitter[Recipe, Stage, Code] = open_job("RECIPE_")`. SIGTERM asks the job to end where
    this runs on the main thread.
    """
    settings = job_settings(environment, prefix)
    cancellation = Cancellation()
    cancellation.on_signal()
    return JobEmitter(
        open_sink(settings, cancellation),
        settings.job_id,
        redactor=redactor,
        redact_results=redact_results,
        cancellation=cancellation,
    )


def _callback(settings: JobSettings) -> JobCallback | None:
    """What a broker may post to in our place. Raises ValidationError as the callback sink does."""
    if settings.callback_url is None:
        return None
    to = _destination(settings, settings.callback_url)
    hosts = settings.callback_allowed_hosts
    return JobCallback(to.target.url, hosts, settings.callback_max_retries, to.secret)


def _destination(settings: JobSettings, url: str) -> Destination:
    from agentbus.jobs.delivery import destination

    hosts, prefix = settings.callback_allowed_hosts, settings.prefix
    try:
        return destination(url, hosts, settings.callback_secret)
    except ValidationError as error:
        names = f"{prefix}CALLBACK_URL" + (f", {prefix}CALLBACK_ALLOWED_HOSTS" if hosts else "")
        raise ValidationError(f"{names}: {error.message}") from None


def _default_path(prefix: str) -> str:
    return f"/tmp/{prefix.strip('_').lower().replace('_', '-') or 'job'}-events.ndjson"


def _attempts(given: str | None, prefix: str) -> int:
    if given is None:
        return CALLBACK_ATTEMPTS
    if is_whole(given, CALLBACK_ATTEMPTS_MAX) and int(given) >= 1:
        return int(given)
    raise ValidationError(
        f"{prefix}CALLBACK_MAX_RETRIES is {given!r}; it must be a whole number from 1 to "
        f"{CALLBACK_ATTEMPTS_MAX}"
    )


def _needed(settings: JobSettings, suffix: str, value: str | None) -> str:
    if value is None:
        raise ValidationError(
            f"{settings.prefix}{suffix} is not set; the transport {settings.transport} needs it"
        )
    return value
