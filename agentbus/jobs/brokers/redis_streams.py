"""Jobs over Redis Streams: one stream per job, the entry's id is the event's sequence.

Owns the keys `jobs.<job_id>.events` and `.control` of a Redis that the parent names; the bus's own
private Redis is never used for this. Event n is the entry `n+1-0`, so that Redis itself refuses a
repeat. The caller's thread; one more while a job listens for its cancel.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from agentbus.errors import ConflictError, ValidationError
from agentbus.jobs.brokers.base import (
    LOOK_S,
    RETENTION_S,
    cancel_reason,
    control_name,
    encode_cancel,
    events_name,
)
from agentbus.jobs.errors import SinkError

COMMAND_S: Final = 5.0
RETRIES: Final = 20
"""With pauses up to 2 s: half a minute, in which a Redis that restarts is back."""

FEW_RETRIES: Final = 1
"""Of who reads, as that looks by itself whether to go on."""

PATIENCE_S: Final = 30.0
"""How long a reader waits for a Redis that has gone."""

_FIELD: Final = b"event"
_CONTROL_ENTRIES: Final = 16
_READ_EVENTS: Final = 256


class RedisTransport:
    """A client of `redis://` or `rediss://`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._listeners: list[threading.Thread] = []
        try:
            self._client = self._connect(RETRIES)
        except ValueError as error:
            raise ValidationError(f"the broker URL cannot be used: {error}") from None

    def publish(self, job_id: str, seq: int, event: bytes, *, is_terminal: bool) -> None:
        key, entry = events_name(job_id), f"{seq + 1}-0"
        pipeline = self._client.pipeline(transaction=False)
        pipeline.xadd(key, {_FIELD: event}, id=entry)
        pipeline.expire(key, RETENTION_S)  # each time, because a job may end without a word
        with _errors(f"keep event {seq}"):
            refused, _ = pipeline.execute(raise_on_error=False)
            if not isinstance(refused, redis.RedisError):
                return
            if "equal or smaller" not in str(refused):
                raise refused
            self._check_repeat(key, entry, event, job_id, seq)

    def has_begun(self, job_id: str) -> bool:
        with _errors("show the job"), closing(self._connect(FEW_RETRIES)) as client:
            return bool(client.exists(events_name(job_id)))

    def follow(self, job_id: str, from_seq: int, stop: threading.Event) -> Iterator[bytes]:
        key, last, answered_s = events_name(job_id), f"{from_seq}-0", time.monotonic()
        with closing(self._connect(FEW_RETRIES)) as client:
            while not stop.is_set():
                with _errors(f"show {key}"):
                    try:
                        entries = _read(client, key, last)
                    except (redis.ConnectionError, redis.TimeoutError):
                        if time.monotonic() - answered_s > PATIENCE_S:
                            raise
                        stop.wait(LOOK_S)
                        continue
                answered_s = time.monotonic()
                for entry, fields in entries:
                    last = entry
                    yield fields.get(_FIELD, b"")  # of strangers; who reads it will say so

    def cancel(self, job_id: str, reason: str) -> None:
        with _errors("keep the cancel"):
            key = control_name(job_id)
            self._client.xadd(key, {_FIELD: encode_cancel(job_id, reason)}, maxlen=_CONTROL_ENTRIES)
            self._client.expire(key, RETENTION_S)

    def listen(self, job_id: str, cancelled: Callable[[str], None]) -> None:
        thread = threading.Thread(
            target=self._listen, args=(job_id, cancelled), name="job control", daemon=True
        )
        self._listeners.append(thread)
        thread.start()

    def close(self) -> None:
        self._stop.set()
        for thread in self._listeners:
            thread.join()
        with suppress(redis.RedisError, OSError):
            self._client.close()

    def _connect(self, retries: int) -> redis.Redis:
        return redis.Redis.from_url(
            self._url,
            socket_timeout=COMMAND_S,
            socket_connect_timeout=COMMAND_S,
            retry=Retry(ExponentialWithJitterBackoff(cap=2.0, base=0.05), retries),
        )

    def _check_repeat(self, key: str, entry: str, event: bytes, job_id: str, seq: int) -> None:
        kept: Any = self._client.xrange(key, entry, entry)
        if not kept or kept[0][1].get(_FIELD) != event:
            raise ConflictError(
                f"job {job_id} has another event with sequence {seq} or a later one; "
                "is its id in use twice?"
            )

    def _listen(self, job_id: str, cancelled: Callable[[str], None]) -> None:
        key, last = control_name(job_id), "0-0"
        client = self._connect(FEW_RETRIES)
        try:
            while not self._stop.is_set():
                try:
                    entries = _read(client, key, last)
                except redis.RedisError:
                    self._stop.wait(LOOK_S)  # no cancel comes from a broker that has gone
                    continue
                for entry, fields in entries:
                    last = entry
                    reason = cancel_reason(fields.get(_FIELD, b""))
                    if reason is not None:
                        cancelled(reason)
        finally:
            with suppress(redis.RedisError, OSError):
                client.close()


def _read(client: redis.Redis, key: str, last: str) -> list[tuple[str, dict[bytes, Any]]]:
    """The entries after `last`; none after a moment without any."""
    answer: Any = client.xread({key: last}, count=_READ_EVENTS, block=int(LOOK_S * 1000))
    streams = answer.items() if isinstance(answer, dict) else answer or ()
    entries: list[tuple[str, dict[bytes, Any]]] = []
    for _, found in streams:
        for batch in found if isinstance(answer, dict) else [found]:
            entries += [(entry.decode(), fields) for entry, fields in batch]
    return entries


@contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise SinkError(f"Redis did not {what}: {error}") from None
