"""Replies that are not a connection: they tell an actor, or answer several.

All have the shape of `actors.base.Reply` and may be settled on any thread; they never block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from actors.base import Address, Reply
from agentbus.failpoints import reach

M = TypeVar("M")


class TellReply(Generic[M]):
    """Turns the answer into a message for `address`, so that no actor ever waits for another."""

    __slots__ = ("_address", "_done", "_failed")

    def __init__(
        self,
        address: Address[M],
        done: Callable[[Any], M],
        failed: Callable[[BaseException], M],
    ) -> None:
        self._address = address
        self._done = done
        self._failed = failed

    def set(self, value: Any) -> None:
        self._address.tell(self._done(value))

    def set_exception(self, error: BaseException) -> None:
        self._address.tell(self._failed(error))


class WhenRefused:
    """For a change whose success is told in another way, or to nobody."""

    __slots__ = ("_refused",)

    def __init__(self, refused: Callable[[BaseException], object]) -> None:
        self._refused = refused

    def set(self, value: Any) -> None:
        return None

    def set_exception(self, error: BaseException) -> None:
        self._refused(error)


class FlushReply:
    """Answers the handoff reports of one flush where it was committed, on the ledger's thread.

    So they are answered also when their attachment has ended meanwhile. `then` hears last.
    """

    __slots__ = ("_reports", "_then")

    def __init__(self, reports: Iterable[tuple[int, Reply]], then: Reply) -> None:
        self._reports = reports
        self._then = then

    def set(self, value: Any) -> None:
        reach("after_cursor_commit")
        for number, reply_to in self._reports:
            reply_to.set({"report": number})
        self._then.set(value)

    def set_exception(self, error: BaseException) -> None:
        for _, reply_to in self._reports:
            reply_to.set_exception(error)
        self._then.set_exception(error)
