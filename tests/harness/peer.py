"""Somebody else on the bus."""

from __future__ import annotations

from typing import Any

from tests.bus_fixture import ThrowAwayBus


class Peer:
    """Attaches for each call and leaves: nothing depends on how long the rest of a test takes."""

    def __init__(self, bus: ThrowAwayBus, agent: str) -> None:
        self._bus = bus
        self._agent = agent

    def call(self, operation: str, **arguments: Any) -> Any:
        """An operation of the agent, in a conversation of its own."""
        with self._bus.attach(self._agent) as session:
            return session.call(operation, **arguments)

    def send(self, channel: str, content: str) -> None:
        self.call("send", channel=channel, content=content)
