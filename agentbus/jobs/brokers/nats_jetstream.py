"""Jobs over NATS JetStream: for jobs that run on many machines.

Owns one connection, on an event loop in a thread of its own, and the stream `JOBS` where no other
stream has the subjects. A publish is done when JetStream acknowledged it; its id makes a repeat
within two minutes one message, and readers compare sequences beyond that.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from agentbus.errors import (
    BusError,
    ConflictError,
    TooLargeError,
    UnavailableError,
    ValidationError,
)
from agentbus.jobs.brokers.base import (
    LOOK_S,
    RETENTION_S,
    cancel_reason,
    control_name,
    encode_cancel,
    events_name,
)
from agentbus.jobs.errors import SinkError
from agentbus.jobs.events import decode_event

try:
    import nats
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.errors import Error as NatsError
    from nats.errors import MaxPayloadError, NoRespondersError
    from nats.js import JetStreamContext
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, PubAck, StreamConfig
    from nats.js.errors import NoStreamResponseError, NotFoundError
except ImportError:
    raise UnavailableError(
        "a nats:// broker needs the package nats-py: pip install 'agentbus-broker[nats]'"
    ) from None

STREAM: Final = "JOBS"
SUBJECTS: Final = ("jobs.*.events", "jobs.*.control")
REPEAT_WINDOW_S: Final = 120.0
"""Within which JetStream itself drops a repeat."""

CONNECT_S: Final = 5.0
ACKNOWLEDGE_S: Final = 5.0
PATIENCE_S: Final = 30.0
"""How long a server may be away: a publish is repeated meanwhile, well within the window."""

GRACE_S: Final = 5.0
"""Beyond its own limits, for a call that the loop's thread answers."""

_PAUSE_S: Final = 0.1
_READ_EVENTS: Final = 256
_UNFIT: Final = frozenset(".*>")

T = TypeVar("T")


class NatsTransport:
    """A client of `nats://` or `tls://`. Connects with its first call."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nats", daemon=True)
        self._thread.start()
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._listening: set[asyncio.Task[None]] = set()

    def publish(self, job_id: str, seq: int, event: bytes, *, is_terminal: bool) -> None:
        subject = events_name(_fit(job_id))
        with _errors(f"keep event {seq}"):
            publishing = self._publish_event(subject, event, f"{job_id}:{seq}")
            self._run(publishing, PATIENCE_S + CONNECT_S)

    def has_begun(self, job_id: str) -> bool:
        subject = events_name(_fit(job_id))
        with _errors("show the job"):
            return self._run(self._has_begun(subject), CONNECT_S + ACKNOWLEDGE_S)

    def follow(self, job_id: str, from_seq: int, stop: threading.Event) -> Iterator[bytes]:
        subject = events_name(_fit(job_id))
        reader = _Reader(self, subject)
        try:
            while not stop.is_set():
                with _errors(f"show {subject}"):
                    events = self._run(reader.read(), CONNECT_S + ACKNOWLEDGE_S)
                for event in events:
                    if from_seq == 0 or _is_wanted(event, from_seq):
                        yield event
        finally:
            with suppress(SinkError), _errors("forget its reader"):
                self._run(reader.close(), ACKNOWLEDGE_S)

    def cancel(self, job_id: str, reason: str) -> None:
        subject = control_name(_fit(job_id))
        with _errors("keep the cancel"):
            document = encode_cancel(job_id, reason)
            self._run(self._publish(subject, document, f"{job_id}:cancel"), PATIENCE_S + CONNECT_S)

    def listen(self, job_id: str, cancelled: Callable[[str], None]) -> None:
        subject = control_name(_fit(job_id))

        def begin() -> None:
            self._listening.add(self._loop.create_task(self._listen(subject, cancelled)))

        self._loop.call_soon_threadsafe(begin)

    def close(self) -> None:
        with suppress(SinkError), _errors("close"):
            self._run(self._close(), ACKNOWLEDGE_S)
        with suppress(SinkError), _errors("end"):
            self._run(_end_tasks(), ACKNOWLEDGE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T], within_s: float) -> T:
        """Run on the loop's thread; whatever happens there, this returns."""
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result(within_s + GRACE_S)
        except TimeoutError:
            running.cancel()
            raise
        except CancelledError:
            raise SinkError("the connection to NATS was closed meanwhile") from None

    async def jetstream(self) -> JetStreamContext:
        """Connected, with a stream for the subjects."""
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                client = nats.connect(
                    self._url,
                    max_reconnect_attempts=-1,  # also within this first connect
                    reconnect_time_wait=_PAUSE_S,
                    error_cb=_ignore,
                )
                self._client = await asyncio.wait_for(client, CONNECT_S)
                await _ensure_stream(self._client.jetstream())
        return self._client.jetstream(timeout=ACKNOWLEDGE_S)

    async def _has_begun(self, subject: str) -> bool:
        stream = await self.jetstream()
        try:
            name = await stream.find_stream_name_by_subject(subject)
            await stream.get_last_msg(name, subject)
        except NotFoundError:
            return False
        return True

    async def _publish_event(self, subject: str, event: bytes, message_id: str) -> None:
        """JetStream drops by the id alone; whether that was a repeat is seen in what it kept."""
        kept = await self._publish(subject, event, message_id)
        if kept.duplicate:
            stream = await self.jetstream()
            if (await stream.get_msg(kept.stream, kept.seq)).data != event:
                raise ConflictError(
                    f"another event was published as {message_id}; is its job id in use twice?"
                )

    async def _publish(self, subject: str, payload: bytes, message_id: str) -> PubAck:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                stream = await self.jetstream()
                return await stream.publish(subject, payload, headers={"Nats-Msg-Id": message_id})
            except MaxPayloadError:
                raise TooLargeError(
                    f"an event of {len(payload)} bytes is more than the NATS server takes "
                    "(max_payload); a result can be stored as an artifact"
                ) from None
            except (NatsError, OSError) as error:
                if time.monotonic() >= deadline_s:
                    raise
                if isinstance(error, NoStreamResponseError | NoRespondersError):
                    with suppress(NatsError, OSError):
                        await _ensure_stream(stream)
                await asyncio.sleep(_PAUSE_S)

    async def _listen(self, subject: str, cancelled: Callable[[str], None]) -> None:
        reader = _Reader(self, subject)
        while True:
            try:
                documents = await reader.read()
            except (NatsError, OSError):
                await asyncio.sleep(LOOK_S)
                continue
            for document in documents:
                reason = cancel_reason(document)
                if reason is not None:
                    cancelled(reason)

    async def _close(self) -> None:
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
        if self._client is not None:
            await self._client.close()


class _Reader:
    """One subject from its first message on. Makes its consumer anew where the server forgot it."""

    def __init__(self, transport: NatsTransport, subject: str) -> None:
        self._transport = transport
        self._subject = subject
        self._last = 0
        self._answered_s = time.monotonic()
        self._consumer: JetStreamContext.PullSubscription | None = None

    async def read(self) -> list[bytes]:
        """What has come; none after a moment without any, also while the server is away.

        Raises when it has been away for `PATIENCE_S`.
        """
        try:
            if self._consumer is None:
                self._consumer = await self._begin()
            messages = await self._fetch(self._consumer)
        except (NatsError, OSError):
            self._consumer = None  # a server that came back may have forgotten it
            if time.monotonic() - self._answered_s > PATIENCE_S:
                raise
            await asyncio.sleep(_PAUSE_S)
            return []
        self._answered_s = time.monotonic()
        if messages:
            self._last = messages[-1].metadata.sequence.stream
        return [message.data for message in messages]

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.unsubscribe()

    async def _begin(self) -> JetStreamContext.PullSubscription:
        stream = await self._transport.jetstream()
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._last + 1,
            inactive_threshold=300,
        )
        return await stream.pull_subscribe(self._subject, durable=None, config=config)

    async def _fetch(self, consumer: JetStreamContext.PullSubscription) -> list[Msg]:
        try:
            return await consumer.fetch(_READ_EVENTS, timeout=LOOK_S)
        except TimeoutError:
            await consumer.consumer_info()  # silence is also what a server without it answers
            return []


async def _ensure_stream(stream: JetStreamContext) -> None:
    for subject in SUBJECTS:
        try:
            await stream.find_stream_name_by_subject(subject)
        except NotFoundError:
            await stream.add_stream(
                StreamConfig(
                    name=STREAM,
                    subjects=list(SUBJECTS),
                    max_age=RETENTION_S,
                    duplicate_window=REPEAT_WINDOW_S,
                )
            )
            return


async def _end_tasks() -> None:
    """What the client leaves behind when its server has gone would be complained of at exit."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _ignore(error: Exception) -> None:
    """Each call reports its own trouble; the client would print it as well."""


def _is_wanted(event: bytes, from_seq: int) -> bool:
    try:
        return decode_event(event).seq >= from_seq
    except BusError:  # a stranger's; who reads it will say so
        return True


def _fit(job_id: str) -> str:
    if not _UNFIT.isdisjoint(job_id):
        raise ValidationError(
            f"job id {job_id!r} holds one of . * > and cannot be a NATS subject; choose another"
        )
    return job_id


@contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except (NatsError, OSError) as error:
        raise SinkError(f"NATS did not {what}: {str(error) or 'no answer in time'}") from None
