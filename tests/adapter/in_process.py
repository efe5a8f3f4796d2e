"""An adapter without its stdio, in the test's event loop, against a scripted daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agentbus.adapter.binding import Binder
from agentbus.adapter.calls import Calls
from agentbus.adapter.conversation import Conversation, Profile
from agentbus.adapter.handoff import Outcome, current_delivery
from agentbus.adapter.link import Link
from agentbus.adapter.results import Answer
from tests.adapter.scripted_daemon import ScriptedDaemon


class Adapter:
    """An adapter process without its stdio: the test decides what becomes of the results."""

    def __init__(
        self,
        daemon: ScriptedDaemon,
        *,
        client_name: str = "tester",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.link = Link(daemon.paths, daemon.config_path)
        profile = Profile("Sam", None, None)
        self.calls = Calls(self.link, profile, Binder("conversation-1", environment or {}))
        self._client_name = client_name

    async def use(
        self, tool: str, *, outcome: Outcome = Outcome.HANDED_OFF, **arguments: Any
    ) -> Any:
        """Call a tool in a task of its own, as the SDK does, and settle its result."""
        return (await self.answer(tool, outcome=outcome, **arguments)).structured

    async def answer(
        self, tool: str, *, outcome: Outcome = Outcome.HANDED_OFF, **arguments: Any
    ) -> Answer:
        async def request() -> Answer:
            answer = await self.calls.call(tool, arguments, self._client_name, {})
            delivery = current_delivery.get()
            if delivery is not None:
                delivery.bytes_left = outcome is Outcome.HANDED_OFF
                delivery.settle(outcome)
            return answer

        return await asyncio.create_task(request())

    async def peer(self, op: str, *, outcome: Outcome = Outcome.HANDED_OFF, **args: Any) -> Any:
        """Call the tool `peer`."""
        return await self.use("peer", outcome=outcome, op=op, args=args)

    @property
    def conversation(self) -> Conversation:
        """The only one."""
        (conversation,) = self.calls._conversations.values()
        return conversation


def scenario(test: Callable[[ScriptedDaemon, Adapter], Awaitable[None]]) -> Callable[[], None]:
    """Run the test in an event loop with a scripted daemon and an adapter."""

    async def main() -> None:
        async with ScriptedDaemon() as daemon:
            adapter = Adapter(daemon)
            try:
                await test(daemon, adapter)
            finally:
                adapter.link.close()

    def run() -> None:
        asyncio.run(main())

    run.__name__ = test.__name__
    return run
