"""The parent's end of callbacks: an HTTP server that takes the events of the jobs it expects.

Owns the listening socket and the judgement of requests. The job is what the last segment of the
path says, never what the body says: a tool may have made up an id of its own. Runs on a thread of
its own between `start` and `close`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from agentbus.clock import Clock, SystemClock
from agentbus.errors import (
    BusError,
    ConflictError,
    ForbiddenError,
    JobClosedError,
    NotFoundError,
    TooLargeError,
    UnavailableError,
    ValidationError,
)
from agentbus.jobs.events import EVENT_BYTES, decode_event
from agentbus.jobs.inbox import JobInbox
from agentbus.jobs.signing import verify

LOOPBACK: Final = "127.0.0.1"
START_S: Final = 10.0
REQUEST_S: Final = 30
IDLE_S: Final = 10
IN_FLIGHT: Final = 64

_STATUS: Final[dict[type[BusError], int]] = {
    ForbiddenError: 401,
    ValidationError: 401,  # what cannot be read proves nothing about who sent it
    NotFoundError: 404,
    ConflictError: 409,
    JobClosedError: 409,
    TooLargeError: 413,
}


@dataclass(frozen=True, slots=True)
class _Expected:
    inbox: JobInbox
    secret: str | None = field(repr=False)


class CallbackReceiver:
    """Takes callbacks at `url(job_id)` for every job that is expected.

    with CallbackReceiver(secret) as receiver:
        inbox = receiver.expect(job_id)
        start_tool(callback_url=receiver.url(job_id))
        end = inbox.wait_terminal(600)
    """

    def __init__(
        self,
        secret: str | None,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        needs_timestamp: bool = False,
        welcome: Callable[[JobInbox], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`secret` is that of jobs which are expected without one of their own; None takes their
        callbacks unsigned. `needs_timestamp` refuses senders that sign the body alone. With
        `welcome` no job is unknown: it is called with the inbox of each that nobody expected, on
        the receiver's thread.
        """
        self._secret = secret
        self._needs_timestamp = needs_timestamp
        self._welcome = welcome
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._expected: dict[str, _Expected] = {}
        self._socket = _listen(host, port)
        self._host, self.port = host, int(self._socket.getsockname()[1])
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._serve,
                lifespan="off",
                interface="asgi3",
                ws="none",
                proxy_headers=False,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=1,
                limit_concurrency=IN_FLIGHT,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="callbacks", daemon=True
        )

    def __enter__(self) -> CallbackReceiver:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Returns when requests are answered."""
        self._thread.start()
        deadline_s = time.monotonic() + START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline_s:
                raise UnavailableError(f"the callback receiver on port {self.port} did not start")
            time.sleep(0.005)

    def close(self) -> None:
        """Answers what is under way, then stops."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def expect(self, job_id: str, secret: str | None = None) -> JobInbox:
        """From now on the job's callbacks are taken. The same inbox for the same job.

        With a secret of its own, no other job can speak for it.
        """
        with self._lock:
            known = self._expected.get(job_id)
            if known is None:
                known = _Expected(JobInbox(job_id), secret or self._secret)
                self._expected[job_id] = known
            return known.inbox

    def expect_into(self, inbox: JobInbox, secret: str) -> None:
        """The same for an inbox that is there already."""
        with self._lock:
            self._expected[inbox.job_id] = _Expected(inbox, secret)

    def forget(self, job_id: str) -> None:
        """From now on the job is unknown."""
        with self._lock:
            self._expected.pop(job_id, None)

    def url(self, job_id: str) -> str:
        """Where the job's callbacks go; to be given to the tool."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/jobs/{quote(job_id, safe='')}"

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._take(Request(scope, receive))
        await response(scope, receive, send)

    async def _take(self, request: Request) -> Response:
        if request.method != "POST":
            return JSONResponse({"error": "POST only"}, 405, {"allow": "POST"})
        job_id = request.scope["path"].rsplit("/", 1)[-1]
        try:
            expected = self._expected.get(job_id)
            if expected is None and self._welcome is None:
                raise NotFoundError("no such job is expected here")
            body = await _body(request)
            secret = self._secret if expected is None else expected.secret
            if secret is not None:
                now_s = self._clock.wall_us() // 1_000_000
                verify(secret, body, request.headers, now_s, needs_timestamp=self._needs_timestamp)
            event = decode_event(body)
            inbox = self._welcomed(job_id) if expected is None else expected.inbox
            inbox.put(event)
        except BusError as error:
            return JSONResponse(error.as_data(), _STATUS.get(type(error), 500))
        except TimeoutError:
            return JSONResponse({"error": f"no whole request in {REQUEST_S} s"}, 408)
        except ClientDisconnect:
            pass  # nobody reads the answer
        return Response(status_code=202)

    def _welcomed(self, job_id: str) -> JobInbox:
        inbox = self.expect(job_id)
        assert self._welcome is not None  # or the job would be unknown
        self._welcome(inbox)
        return inbox


async def _body(request: Request) -> bytes:
    """Raises TooLargeError before more than the limit is kept."""
    body = bytearray()
    async with asyncio.timeout(REQUEST_S):
        async for chunk in request.stream():
            body += chunk
            if len(body) > EVENT_BYTES:
                raise TooLargeError(f"an event has at most {EVENT_BYTES} bytes")
    return bytes(body)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UnavailableError(f"cannot listen on {host} port {port}: {error.strerror}") from None
