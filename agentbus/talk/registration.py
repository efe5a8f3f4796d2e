"""A served instance's place in the daemon's registry, kept as long as the server runs.

Owns one connection to the daemon and its renewal: it says what is served again at every heartbeat,
and after a daemon that was lost to the next one. Lives on the server's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any, Final

from agentbus import __version__
from agentbus.errors import BusError, UnavailableError
from agentbus.limits import HEARTBEAT_SECONDS, IN_FLIGHT_PER_ATTACHMENT, PROTOCOL_VERSION
from agentbus.protocol.jsonrpc import Notification
from agentbus.transport.async_client import AsyncClient
from agentbus.transport.client import Client

_log = logging.getLogger(__name__)

ANSWER_S: Final = 5.0
QUESTIONS_AT_ONCE: Final = IN_FLIGHT_PER_ATTACHMENT // 2
"""About callers; more would make the daemon refuse some, and they cost it next to nothing."""

RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
"""Between two attempts to be in the registry again; twice as long after each."""

Connect = Callable[[bool], Client]
"""A connection to the daemon; True allows it to start one. Blocks. Raises BusError."""


class Registration:
    """See the module. `entry` is what `talk_serve` is told; it implements `Callers`."""

    def __init__(self, connect: Connect, entry: dict[str, Any]) -> None:
        self._connect = connect
        self._entry = entry
        self._client: AsyncClient | None = None
        self._stopped_on_purpose = False
        self._pause_s = RETRY_S
        self._turns = asyncio.Semaphore(QUESTIONS_AT_ONCE)

    async def begin(self) -> None:
        """Be in the registry. Raises BusError, ConflictError when the name is served already."""
        client = await asyncio.to_thread(self._connect, not self._stopped_on_purpose)
        unread = client.take_unread()
        link = await AsyncClient.adopt(client.detach(), self._notified, unread)
        try:
            greeting = {"protocol": PROTOCOL_VERSION, "version": __version__, "pid": os.getpid()}
            await link.request("hello", greeting, ANSWER_S)
            await link.request("talk_serve", self._entry, ANSWER_S)
        except BaseException:
            link.close()
            raise
        self._client = link
        self._stopped_on_purpose = False
        self._pause_s = RETRY_S

    async def keep(self) -> None:
        """Stay in it. Runs until it is cancelled."""
        while True:
            if self._client is None:
                await self._begin_again()
                continue
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await asyncio.shield(self._client.closed)
            except TimeoutError:
                await self._renew(self._client)
            else:
                self._client = None

    def end(self) -> None:
        """Leave it."""
        if self._client is not None:
            self._client.close()

    async def may_be(self, instance: str, session: str | None) -> bool:
        """See `Callers`."""
        params = {"instance": instance, "session": session}
        async with self._turns:
            if self._client is None:
                raise UnavailableError("there is no connection to the daemon")
            answer = await self._client.request("talk_caller", params, ANSWER_S)
        return bool(answer["may_be"])

    async def _renew(self, client: AsyncClient) -> None:
        try:
            await client.request("talk_serve", self._entry, ANSWER_S)
        except BusError as error:
            _log.warning("the daemon does not take what is served: %s", error.message)
            client.close()

    async def _begin_again(self) -> None:
        try:
            await self.begin()
        except (BusError, OSError) as error:
            _log.info("not in the registry, next attempt in %g s: %s", self._pause_s, error)
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, RETRY_MAX_S)

    def _notified(self, notification: Notification) -> None:
        if notification.method == "stopping":
            self._stopped_on_purpose = bool(notification.params.get("intentional"))
