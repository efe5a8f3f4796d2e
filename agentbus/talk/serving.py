"""`talk serve`: the process of one instance, from its socket to its end.

Owns the listening socket, the event loop's tasks and the signals. Never answers a question itself.
Runs on the main thread.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import uvicorn

from agentbus.clock import SystemClock
from agentbus.config import Config
from agentbus.descriptors import raise_descriptor_limit
from agentbus.errors import ConflictError, UnavailableError
from agentbus.limits import SHUTDOWN_GRACE_SECONDS
from agentbus.processes import start_mark
from agentbus.talk.handler import Handler
from agentbus.talk.http_guard import CONNECTIONS, Patience, guarded
from agentbus.talk.peers import read_peers
from agentbus.talk.registration import Connect, Registration
from agentbus.talk.registry import LOOPBACK, DaemonRegistry, answers_probe
from agentbus.talk.replays import Replays
from agentbus.talk.server import GRACE_S, TalkServer, TalkSettings

SECRET_BYTES: Final = 16

DESCRIPTORS: Final = 8 * CONNECTIONS
"""Of each connection one, of the command that answers it three pipes and a selector, and as many
again: half of them may belong to callers that have gone."""


@dataclass(frozen=True, slots=True)
class Service:
    """What to serve. `port` 0: the system chooses. `secret` None: a random one, in the registry."""

    instance: str
    kind: str
    port: int
    secret: str | None


def serve(
    service: Service,
    config: Config,
    make_handler: Callable[[Registration], Handler],
    connect: Connect,
    told: Callable[[int], None],
) -> None:
    """Until a signal ends it. `told` is called with the port when it can be reached.

    Raises ConflictError when the name or the port is taken, BusError when there is no daemon.
    """
    raise_descriptor_limit(DESCRIPTORS)
    with listen(service.port) as listener:
        port = listener.getsockname()[1]
        secret = service.secret or secrets.token_hex(SECRET_BYTES)
        registration = Registration(connect, _entry(service, port, secret))
        with closing(make_handler(registration)) as handler:
            serving = _Serving(service, config, secret, handler, registration)
            asyncio.run(serving.run(listener, lambda: told(port)))


class _Serving:
    def __init__(
        self,
        service: Service,
        config: Config,
        secret: str,
        handler: Handler,
        registration: Registration,
    ) -> None:
        self._service = service
        self._config = config
        self._secret = secret
        self._handler = handler
        self._registration = registration

    async def run(self, listener: socket.socket, told: Callable[[], None]) -> None:
        service, config, registration = self._service, self._config, self._registration
        config_path = config.path
        server = TalkServer(
            TalkSettings(
                instance=service.instance,
                secret=self._secret,
                kind=service.kind,
                max_depth=config.talk_max_depth,
                timeout_s=float(config.talk_timeout_seconds),
                read_peers=lambda: read_peers(config_path),
            ),
            self._handler,
            registration,
            Replays(config.dedup_retention_hours * 3600.0, SystemClock()),
        )
        http = http_server(server, service.instance, Patience(_answer_s(config)))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, http)
        await self._register(registration)
        keeping = asyncio.create_task(registration.keep())
        told()
        try:
            await http.serve(sockets=[listener])
        finally:
            keeping.cancel()
            registration.end()

    def _stop(self, http: uvicorn.Server) -> None:
        http.should_exit = True
        self._handler.stop()

    async def _register(self, registration: Registration) -> None:
        try:
            await registration.begin()
        except ConflictError:
            if not await asyncio.to_thread(_forget_dead, self._service.instance):
                raise
            await registration.begin()


def _entry(service: Service, port: int, secret: str) -> dict[str, Any]:
    """What the registry is told."""
    mark = start_mark(os.getpid())
    assert mark is not None
    entry = {
        "instance": service.instance,
        "port": port,
        "pid": os.getpid(),
        "started": mark,
        "kind": service.kind,
    }
    return entry if service.secret is not None else {**entry, "secret": secret}


def http_server(server: TalkServer, instance: str, patience: Patience) -> uvicorn.Server:
    """What answers connections for `server`, guarded, on the event loop that runs it."""
    return _HttpServer(
        uvicorn.Config(
            server.app,
            http=cast(Any, guarded(instance, patience)),
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=CONNECTIONS,
            timeout_graceful_shutdown=round(SHUTDOWN_GRACE_SECONDS),
        )
    )


class _HttpServer(uvicorn.Server):
    """Leaves the signals to us: uvicorn's own handling ends the process by the signal."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _forget_dead(instance: str) -> bool:
    """Whether who is registered under that name does not answer, and is forgotten now."""
    registry = DaemonRegistry()
    served = registry.find(instance, instance)
    if served is None or answers_probe(served):
        return served is None
    registry.forget(served)
    return True


def _answer_s(config: Config) -> float:
    """For the handler, what the server allows it beyond its time, and the client to read."""
    return config.talk_timeout_seconds + 3 * GRACE_S


def listen(port: int) -> socket.socket:
    """A socket on loopback that takes connections. Raises UnavailableError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(CONNECTIONS)
    except OSError as error:
        listener.close()
        raise UnavailableError(
            f"cannot listen on {LOOPBACK}:{port}: {error.strerror}; choose another --port"
        ) from None
    return listener
