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
from agentbus.transport.client import Client, NoAnswerError

_log = logging.getLogger(__name__)

ANSWER_S: Final = 5.0
QUESTIONS_AT_ONCE: Final = IN_FLIGHT_PER_ATTACHMENT // 2
"""About callers; more would make the daemon refuse some, and they cost it next to nothing."""

ASKING_AT_ONCE: Final = QUESTIONS_AT_ONCE // 2
"""Until the daemon has committed them; what is asked waits for its end outside of this."""

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
        self._asking = asyncio.Semaphore(ASKING_AT_ONCE)
        self._told: dict[str, asyncio.Future[dict[str, Any]]] = {}  # by delegation

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

    async def depth_of(self, instance: str, session: str | None) -> int | None:
        """See `Callers`."""
        params = {"instance": instance, "session": session}
        async with self._turns:
            answer = await self._require_client().request("talk_caller", params, ANSWER_S)
        return int(answer["depth"]) if answer["may_be"] else None

    async def delegate(self, question: dict[str, Any]) -> dict[str, Any]:
        """What has become of a question to the agent of this instance, when the daemon tells it.

        `question` holds the parameters of `talk_ask`. Raises BusError, NoAnswerError among them:
        the connection was lost, and the same question may be asked again.
        """
        delegation_id = question["delegation_id"]
        told: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._told[delegation_id] = told
        try:
            async with self._asking:
                client = self._require_client()
                receipt = await client.request("talk_ask", question, ANSWER_S)
            _log.info("delegation %s is request %s", delegation_id, receipt["message_id"])
            await asyncio.wait((told, client.closed), return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                raise NoAnswerError("the connection to the daemon was lost", sent=True)
            return told.result()
        finally:
            del self._told[delegation_id]

    def _require_client(self) -> AsyncClient:
        if self._client is None:
            raise UnavailableError("there is no connection to the daemon")
        return self._client

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
        params = notification.params
        if notification.method == "stopping":
            self._stopped_on_purpose = bool(params.get("intentional"))
        elif notification.method == "talk_answered":
            told = self._told.get(params["delegation_id"])
            if told is not None and not told.done():
                told.set_result(params)
