"""The adapter's one connection to the daemon: made lazily, kept alive, made again when lost.

Owns: finding or starting the daemon, hello, heartbeats, readiness, and which notification goes to
which attachment. Never: knows what a message is, retries an operation (conversation.py does), ends
the adapter because of a fault of the daemon. Used in the thread of the event loop only; what blocks
runs in threads that nobody waits for at exit.

Starting: a new adapter and a tool call may start a daemon. After an unexpected loss the adapter
reconnects by itself, a bounded number of times, and may start one too; after an intentional stop it
does nothing until the next tool call.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import agentbus
from agentbus.adapter.threads import in_thread
from agentbus.config import Config, load_config
from agentbus.errors import BusError, UnavailableError
from agentbus.identity import Attachment
from agentbus.ids import Generation, SessionId
from agentbus.launch import ensure_daemon
from agentbus.limits import HEARTBEAT_SECONDS, PROTOCOL_VERSION
from agentbus.protocol.jsonrpc import Notification
from agentbus.transport.async_client import AsyncClient
from agentbus.transport.client import NoAnswerError
from agentbus.transport.singleton import RuntimePaths

_log = logging.getLogger(__name__)

CONNECT_DEADLINE_S = 10.0
HELLO_TIMEOUT_S = 10.0
ATTACH_TIMEOUT_S = 30.0
RECONNECTS = 6
"""Attempts after an unexpected loss, before the next tool call is waited for."""

RECONNECT_PAUSE_S = 0.1
RECONNECT_PAUSE_MAX_S = 5.0


LISTENED = frozenset({"deliver", "invalidate", "notice", "expired", "peer_waiting", "detached"})
"""Notifications that name an attachment."""


class Listener(Protocol):
    """An attachment's holder, as the connection sees it."""

    def attached(self, attachment: Attachment, answer: dict[str, Any]) -> None: ...

    def notified(self, method: str, params: dict[str, Any]) -> None:
        """A frame for this attachment, one of `LISTENED`."""

    def readiness_changed(self, state: str, epoch: int) -> None: ...

    def connection_lost(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Session:
    """One connection after hello."""

    client: AsyncClient
    config: Config


class Link:
    """See the module."""

    def __init__(
        self, paths: RuntimePaths, config_path: Path | None, harness_pid: int | None = None
    ) -> None:
        self._paths = paths
        self._config_path = config_path
        self._harness_pid = harness_pid
        self.on_reconnected: Callable[[], None] = lambda: None
        """Called after the link came back by itself."""
        self.on_evidence: Callable[[dict[str, Any]], object] = lambda fields: None
        """Called with what a command hook told the daemon about this harness process."""
        self._session: Session | None = None
        self._connecting: asyncio.Task[Session] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: dict[Attachment, Listener] = {}
        self._early: list[tuple[Attachment, Notification]] = []
        self._until_ready: set[asyncio.Event] = set()
        self._attaches = 0
        self._stopped = False
        self.stops = 0
        """How many intentional stops were seen; a call does not outlive one."""
        self._closed = False
        self.state = "starting"
        self.epoch = 0

    @property
    def exposures_folder(self) -> Path:
        """Where adapters note what clients may have seen."""
        return self._paths.exposures

    def load_config(self) -> Config:
        """The configuration as its file is now. Raises ConfigError."""
        return load_config(self._config_path)

    def config_in_force(self) -> Config:
        """What this adapter goes by: as it told the daemon, or, before that, as the file is."""
        return self._session.config if self._session is not None else self.load_config()

    async def connect(self) -> AsyncClient:
        """A client that has said hello with the configuration as it is now; may start a daemon.

        Raises a BusError: `unavailable`, `version_mismatch`, or a configuration that cannot be
        used.
        """
        if self._session is not None:
            return await self._renewed(self._session)
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._connect_ended)
        return (await asyncio.shield(self._connecting)).client

    def start(self) -> None:
        """Connect in the background, so that the first call need not wait."""
        self._spawn(self._connect_quietly())

    async def attach(self, params: dict[str, Any], listener: Listener) -> None:
        """Attach a session; `listener.attached` is called before anything else is sent to it."""
        client = await self.connect()
        self._attaches += 1
        try:
            answer = await client.request("attach", params, timeout_s=ATTACH_TIMEOUT_S)
            if self._session is None or self._session.client is not client:
                raise NoAnswerError("attach: the connection was lost meanwhile", sent=True)
            attachment = Attachment(
                SessionId(answer["session_id"]), Generation(answer["generation"])
            )
            self._listeners[attachment] = listener
            listener.attached(attachment, answer)
            if self.epoch > answer["epoch"]:
                listener.readiness_changed(self.state, self.epoch)
            # The daemon may have begun to deliver before this task got its answer.
            early = [frame for owner, frame in self._early if owner == attachment]
            self._early = [entry for entry in self._early if entry[0] != attachment]
            for notification in early:
                self._dispatch(attachment, notification)
        finally:
            self._attaches -= 1
            if not self._attaches:
                self._early.clear()

    def tell(self, method: str, params: dict[str, Any]) -> None:
        """A request whose answer nobody needs; dropped when there is no connection."""
        if self._session is not None:
            self._spawn(self._tell(self._session.client, method, params))

    def client_of(self, attachment: Attachment) -> AsyncClient | None:
        """The connection of a live attachment."""
        if self._session is None or attachment not in self._listeners:
            return None
        return self._session.client

    def forget(self, attachment: Attachment) -> None:
        """Nothing more is to be dispatched for it."""
        self._listeners.pop(attachment, None)

    async def pause(self, pause_s: float, hint_s: float) -> None:
        """Before an attempt is repeated: `pause_s`. While the bus is not ready, at least `hint_s`,
        but not beyond the moment at which it says that it is."""
        if self.state == "ready":
            await asyncio.sleep(pause_s)
            return
        ready = asyncio.Event()
        self._until_ready.add(ready)
        with suppress(TimeoutError):
            try:
                await asyncio.wait_for(ready.wait(), max(pause_s, hint_s))
            finally:
                self._until_ready.discard(ready)

    def close(self) -> None:
        """Leave; the daemon sees the connection end and releases the attachments."""
        self._closed = True
        for task in (*self._tasks, *filter(None, [self._connecting])):
            task.cancel()
        if self._session is not None:
            self._session.client.close()
            self._session = None

    # --- connecting -------------------------------------------------------------------------------

    async def _connect(self) -> Session:
        config = self.load_config()

        def find() -> tuple[socket.socket, bytes]:
            found = ensure_daemon(self._paths, config.path, deadline_s=CONNECT_DEADLINE_S)
            unread = found.take_unread()
            return found.detach(), unread

        connected, unread = await in_thread(find, discard=lambda found: found[0].close())
        self._stopped = False  # from here on this daemon may say that it stops
        client = await AsyncClient.adopt(connected, self._notified, unread)
        try:
            await self._hello(client, config)
            if client.closed.done():
                raise UnavailableError(f"the daemon went away at once: {client.closed.result()}")
        except BaseException:
            client.close()
            raise
        self._session = Session(client, config)
        client.closed.add_done_callback(lambda _: self._lost(client))
        self._spawn(self._beat(client))
        return self._session

    def _connect_ended(self, task: asyncio.Task[Session]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # whoever waited has raised it; perhaps nobody waits any more

    async def _renewed(self, session: Session) -> AsyncClient:
        """Say hello again when the file says something else than it did."""
        config = self.load_config()
        if config.fingerprint() != session.config.fingerprint():
            await self._hello(session.client, config)
            self._session = Session(session.client, config)
        return session.client

    async def _hello(self, client: AsyncClient, config: Config) -> None:
        answer = await client.request(
            "hello",
            {
                "protocol": PROTOCOL_VERSION,
                "version": agentbus.__version__,
                "pid": os.getpid(),
                "harness_pid": self._harness_pid,
                "config_path": str(config.path),
                "config_fingerprint": config.fingerprint(),
            },
            timeout_s=HELLO_TIMEOUT_S,
        )
        self.state, self.epoch = answer["state"], answer["epoch"]

    async def _connect_quietly(self) -> None:
        try:
            await self.connect()
        except BusError as error:
            _log.info("no daemon yet: %s", error.message)

    def _lost(self, client: AsyncClient) -> None:
        if self._session is None or self._session.client is not client:
            return
        self._session = None
        self.state = "unreachable"
        listeners = tuple(self._listeners.values())
        self._listeners.clear()
        for listener in listeners:
            listener.connection_lost()
        if not self._stopped and not self._closed:
            self._spawn(self._reconnect())

    async def _reconnect(self) -> None:
        pause_s = RECONNECT_PAUSE_S
        for _ in range(RECONNECTS):
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(pause_s * 2, RECONNECT_PAUSE_MAX_S)
            if self._stopped:
                return
            try:
                await self.connect()
            except BusError as error:
                _log.info("not connected again: %s", error.message)
                if not error.retryable:
                    return
            else:
                self.on_reconnected()
                return

    # --- on the connection ------------------------------------------------------------------------

    async def _tell(self, client: AsyncClient, method: str, params: dict[str, Any]) -> None:
        try:
            await client.request(method, params, timeout_s=HEARTBEAT_SECONDS)
        except BusError as error:
            _log.info("%s: %s", method, error.message)

    async def _beat(self, client: AsyncClient) -> None:
        while not client.closed.done():
            await asyncio.wait([client.closed], timeout=HEARTBEAT_SECONDS)
            if client.closed.done():
                return
            try:
                answer = await client.request("heartbeat", {}, timeout_s=HEARTBEAT_SECONDS)
            except BusError as error:
                client.close(f"no heartbeat: {error.message}")
                return
            self._readiness(answer)

    def _notified(self, notification: Notification) -> None:
        method, params = notification.method, notification.params
        if method == "readiness":
            self._readiness(params)
        elif method == "stopping":
            self._stopped = bool(params["intentional"])
            self.stops += self._stopped
        elif method == "evidence":
            self.on_evidence(params)
        elif method in LISTENED:
            attachment = Attachment(params["session_id"], params["generation"])
            if attachment in self._listeners:
                self._dispatch(attachment, notification)
            elif self._attaches:
                self._early.append((attachment, notification))

    def _dispatch(self, attachment: Attachment, notification: Notification) -> None:
        listener = self._listeners[attachment]
        if notification.method == "detached":
            del self._listeners[attachment]
        listener.notified(notification.method, notification.params)

    def _readiness(self, params: dict[str, Any]) -> None:
        changed = (self.state, self.epoch) != (params["state"], params["epoch"])
        self.state, self.epoch = params["state"], params["epoch"]
        if self.state == "ready":
            for waiting in self._until_ready:
                waiting.set()
        if changed:
            for listener in tuple(self._listeners.values()):
                listener.readiness_changed(self.state, self.epoch)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a background task of the connection failed", exc_info=error)
