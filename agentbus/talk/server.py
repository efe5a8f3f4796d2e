"""The HTTP side of one instance: two routes, and the checks in the order that docs/talk.md gives.

Owns that order and the answers. Never runs a command, never asks the daemon itself: the handler and
`Callers` do. Runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agentbus.encoding import encode
from agentbus.errors import BusError, ConflictError, ValidationError
from agentbus.ids import new_id
from agentbus.rules.talk import TALK_CODE, Peers, is_off, is_peer, is_too_deep
from agentbus.settings import shown
from agentbus.talk.handler import Answered, Delegation, Handler, NotAnswered
from agentbus.talk.replays import Replays
from agentbus.talk.schema import (
    REQUEST_BYTES,
    TalkRequest,
    TalkResponse,
    encode_response,
    failure,
    parse_request,
)

_log = logging.getLogger(__name__)

TALK_PATH: Final = "/api/talk"
HEALTH_PATH: Final = "/api/health"
KIND: Final = "agentbus"
"""What health says that we are; old clients look for another word, see `--kind`."""

GRACE_S: Final = 5.0
"""What a handler may take beyond its time before the server answers in its place."""

_LOOPBACK: Final = re.compile(rb"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_ROUTES: Final = {("POST", TALK_PATH.encode()), ("GET", HEALTH_PATH.encode())}


class Callers(Protocol):
    """Who may call itself what, as the daemon knows it."""

    async def depth_of(self, instance: str, session: str | None) -> int | None:
        """The least depth at which the holder of this proof asks, from what it works on; None: it
        may not call itself so. Anybody may take a free name, and asks from nothing."""
        ...


@dataclass(frozen=True, slots=True)
class TalkSettings:
    """What one server needs to know. `read_peers` is asked on every request; it may raise
    ValidationError, and then talk is off."""

    instance: str
    secret: str
    kind: str
    max_depth: int
    timeout_s: float
    read_peers: Callable[[], Peers]


class _RefusedError(Exception):
    def __init__(self, code: str, error: str) -> None:
        super().__init__(error)
        self.code = code
        self.error = error


class TalkServer:
    """See the module. `app` is what uvicorn serves."""

    def __init__(
        self, settings: TalkSettings, handler: Handler, callers: Callers, replays: Replays
    ) -> None:
        self._settings = settings
        self._handler = handler
        self._callers = callers
        self._replays = replays
        self._authorization = b"Bearer " + settings.secret.encode()
        self.app = Starlette(
            routes=[
                Route(TALK_PATH, self._talk, methods=["POST"]),
                Route(HEALTH_PATH, self._health, methods=["GET"]),
            ],
            middleware=[Middleware(Doorkeeper, instance=settings.instance)],
        )

    async def _health(self, request: Request) -> Response:
        settings = self._settings
        return _json(
            200,
            encode(
                {
                    "kind": settings.kind,
                    "instance": settings.instance,
                    "status": "ok",
                    "pid": os.getpid(),
                }
            ),
        )

    async def _talk(self, request: Request) -> Response:
        began_s = time.monotonic()
        try:
            question = await self._admit(request)
        except ClientDisconnect:
            return Response()  # nobody reads it
        except _RefusedError as refused:
            return self._failure(refused.code, refused.error)
        delegation = Delegation(
            new_id(),
            question.from_instance,
            question.prompt,
            question.depth,
            self._settings.timeout_s,
            question.idempotency_key,
        )
        try:
            answered = await self._answer(question, delegation)
        except ConflictError as conflict:
            return self._failure("invalid_request", conflict.message)
        except Exception:
            _log.exception("delegation %s failed", delegation.delegation_id)
            error = f"a fault of the server; its log has delegation {delegation.delegation_id}"
            return self._failure("internal_error", error)
        duration_ms = round((time.monotonic() - began_s) * 1000)
        outcome, status, body = self._response(answered, duration_ms)
        gone = await request.is_disconnected()
        _log.log(
            logging.WARNING if gone else logging.INFO,
            "delegation %s from %s ended after %d ms: %s%s",
            delegation.delegation_id,
            shown(delegation.from_instance),
            duration_ms,
            outcome,
            "; orphaned, its caller has gone" if gone else "",
        )
        return _json(status, body)

    # --- the checks, in order ---

    async def _admit(self, request: Request) -> TalkRequest:
        body = await _read(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != (
            "application/json"
        ):
            raise _RefusedError("invalid_request", "content-type must be application/json")
        try:
            question = parse_request(body)
        except ValidationError as error:
            raise _RefusedError("invalid_request", error.message) from None
        peers = self._peers()
        if is_off(peers):
            raise _RefusedError("bus_disabled", "talk is switched off here")
        given = request.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, self._authorization):
            raise _RefusedError("auth_failed", "the secret of this instance is required")
        caller = shown(question.from_instance)
        if not is_peer(peers, question.from_instance):
            raise _RefusedError("peer_not_allowed", f"talk_peers here does not have {caller}")
        try:
            depth = await self._callers.depth_of(question.from_instance, question.session)
        except BusError as error:
            _log.warning("cannot ask who %s is: %s", caller, error.message)
            raise _RefusedError("internal_error", "cannot find out who asks; try again") from None
        if depth is None:
            error_text = (
                f"{caller} is an instance that is served here, and this is not it; take another "
                "name, or prove it by ext.session"
            )
            raise _RefusedError("peer_not_allowed", error_text)
        question = replace(question, depth=max(question.depth, depth))
        if is_too_deep(question.depth, self._settings.max_depth):
            raise _RefusedError(
                "max_depth_exceeded",
                f"depth {question.depth} is not below the limit of {self._settings.max_depth}",
            )
        return question

    def _peers(self) -> Peers:
        try:
            return self._settings.read_peers()
        except ValidationError as error:
            _log.warning("talk is off until this is corrected: %s", error.message)
            return ()

    # --- the answer ---

    async def _answer(
        self, question: TalkRequest, delegation: Delegation
    ) -> Answered | NotAnswered:
        async def ask() -> Answered | NotAnswered:
            caller = shown(delegation.from_instance)
            _log.info("delegation %s from %s", delegation.delegation_id, caller)
            try:
                async with asyncio.timeout(delegation.within_s + GRACE_S) as limit:
                    return await self._handler.answer(delegation)
            except TimeoutError:
                if not limit.expired():
                    raise
                return NotAnswered("timeout", f"no answer within {delegation.within_s:g} s")

        key = question.idempotency_key
        if key is None or self._handler.knows_repeats:
            return await ask()
        return await self._replays.once(question.from_instance, key, question.prompt, ask)

    def _response(self, answered: object, duration_ms: int) -> tuple[str, int, bytes]:
        """What to log, the status, and the body; a handler may return anything."""
        instance = self._settings.instance
        try:
            match answered:
                case Answered(text=str(text)):
                    response = TalkResponse(True, instance, text, duration_ms=duration_ms)
                    return "answered", 200, encode_response(response)
                case NotAnswered(code=str(code), error=str(error)) if code in TALK_CODE:
                    return code, 200, encode_response(failure(instance, code, error, duration_ms))
        except ValidationError:
            pass  # text that JSON cannot carry
        code = "invalid_handler_response"
        response = failure(instance, code, "what answers here gave no answer", duration_ms)
        return code, TALK_CODE[code].status, encode_response(response)

    def _failure(self, code: str, error: str) -> Response:
        body = encode_response(failure(self._settings.instance, code, error))
        return _json(TALK_CODE[code].status, body)


class Doorkeeper:
    """Lets in what names a loopback host, comes from no other page, and asks for a route exactly.

    The target is compared as it was written: no query, no trailing slash, no escapes.
    """

    def __init__(self, app: ASGIApp, instance: str) -> None:
        self._app = app
        self._instance = instance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._refusal(scope)
        await (self._app if answer is None else answer)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        origin = headers.get(b"origin")
        if _LOOPBACK.fullmatch(headers.get(b"host", b"")) is None:
            error = "the Host header must be this machine's loopback address"
        elif origin is not None and _LOOPBACK.fullmatch(_host_of(origin)) is None:
            error = "pages of other origins may not ask here"
        elif (scope["method"], scope["state"]["target"]) in _ROUTES:
            return None
        else:
            return _json(404, encode({"error": "Not found"}))
        return _json(403, encode_response(failure(self._instance, "invalid_request", error)))


def _host_of(origin: bytes) -> bytes:
    scheme, separator, host = origin.partition(b"://")
    return host if separator and scheme in (b"http", b"https") else b""


async def _read(request: Request) -> bytes:
    """The body. More is refused by what the head says, or as soon as more has come."""
    too_large = _RefusedError("request_too_large", f"the body is over {REQUEST_BYTES} bytes")
    if int(request.headers.get("content-length", 0)) > REQUEST_BYTES:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > REQUEST_BYTES:
            raise too_large
    return bytes(body)


def _json(status: int, body: bytes) -> Response:
    headers: dict[str, Any] = {"connection": "close"}  # one request per connection
    return Response(body, status, headers, "application/json")
