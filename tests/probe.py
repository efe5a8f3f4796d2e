"""A real actor that stands in for a neighbour and remembers what it was told."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, TypeVar

from pykka.messages import ProxyGetAttr

from actors.base import Address, BusActor, start_actor
from tests.eventually import PATIENCE_S

T = TypeVar("T")


class ProbeActor(BusActor[object]):
    """Keeps every message, in order, for the thread of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()
        self.messages: list[object] = []

    def receive(self, message: object) -> None:
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()


class Probe:
    """`with Probe() as probe:` … give `probe.address` to the actor under test, then `expect`."""

    def __init__(self, label: str = "") -> None:
        self._actor = ProbeActor()
        self.address: Address[Any] = start_actor(self._actor, label=label)

    def expect(self, kind: type[T], within: float = PATIENCE_S) -> T:
        """Remove and return the oldest message of this type, waiting at most `within` seconds."""
        deadline = time.monotonic() + within
        with self._actor.changed:
            while True:
                for index, message in enumerate(self._actor.messages):
                    if isinstance(message, kind):
                        del self._actor.messages[index]
                        return message
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    seen = [type(message).__name__ for message in self._actor.messages]
                    raise AssertionError(f"no {kind.__name__} within {within} s, only {seen}")
                self._actor.changed.wait(remaining)

    def expect_nothing_of(
        self,
        kind: type[object],
        *,
        through: tuple[Address[Any], ...] = (),
        within: float = PATIENCE_S,
    ) -> None:
        """No message of this type is there once the actors of `through` have handled theirs.

        `through` names the way a message would have come, in its order, for example the actor
        under test. No sleep: each of them in turn has handled what it was told before it answers.
        """
        settle(*through, self.address, within=within)
        with self._actor.changed:
            found = [message for message in self._actor.messages if isinstance(message, kind)]
        assert not found, f"expected no {kind.__name__}, got {len(found)}: {found}"

    def received(self) -> list[object]:
        """What was told and not yet expected, in order."""
        settle(self.address)
        with self._actor.changed:
            return list(self._actor.messages)

    def stop(self) -> None:
        self.address.ref.stop()

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def settle(*addresses: Address[Any], within: float = PATIENCE_S) -> None:
    """Wait until each actor, one after the other, has handled all it had been told by then."""
    for address in addresses:
        address.ref.ask(ProxyGetAttr(attr_path=("actor_urn",)), timeout=within)
