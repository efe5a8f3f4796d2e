"""A sender and a reader that live through crashes of the daemon, and the judge of what they saw.

The sender repeats a send that was not answered with its operation id. The reader does what an
adapter does: it hands off what it is given, reports that, and marks what may have been handed off
before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentbus.errors import BusError
from agentbus.ids import new_id
from tests.bus_fixture import BusSession, ThrowAwayBus

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Handed:
    """One message as a result carried it."""

    sequence: int
    message_id: str
    redelivered: bool


class Reader:
    """One conversation; its daemon may go away at any time, itself it lives on.

    So it knows what it has handed off even where the daemon never heard of it.
    """

    def __init__(self, bus: ThrowAwayBus, agent: str = "Reader") -> None:
        self._bus = bus
        self._agent = agent
        self._conversation = new_id()
        self.handed: list[Handed] = []
        self.attach()

    def attach(self) -> None:
        self.session: BusSession = self._bus.attach(self._agent, conversation=self._conversation)
        (row,) = self.session.facts["subscriptions"]
        self._subscription = row["subscription"]
        self._reports = 0
        self._position = row["confirmed"]

    def hand_off_until(self, done: Callable[[list[Handed]], bool]) -> None:
        """Take deliveries as results until `done`; nothing is reported yet."""
        while not done(self.handed):
            delivery = self.session.wait_for("deliver")["delivery"]
            for position, record in delivery["records"]:
                known = max((one.sequence for one in self.handed), default=0)
                again = position <= max(delivery["redelivered_through"], known)
                self.handed.append(Handed(position, record["message_id"], again))
            self._position = delivery["through"]

    def report(self) -> Any:
        """Report everything as handed off; the answer comes after the commit."""
        self._reports += 1
        return self.session.request(
            "handoff",
            epoch=self.session.facts["epoch"],
            report=self._reports,
            positions=[[self._subscription, self._position]],
            expired=[],
        )

    def confirm(self) -> None:
        """The next call of the conversation; committed when this returns."""
        self.session.notify("used", confirms=self._reports, channels=[])
        self.report()


@dataclass
class Verdict:
    """What the judge found; an honest bus leaves all lists but `marked` empty."""

    lost: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    doubled_unmarked: list[str] = field(default_factory=list)
    out_of_order: list[int] = field(default_factory=list)
    marked: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.unexpected or self.doubled_unmarked or self.out_of_order)


def judge(accepted: list[str], handed: list[Handed]) -> Verdict:
    """Compare the message ids that were accepted with what was handed off."""
    verdict = Verdict()
    seen: set[str] = set()
    newest = 0
    for one in handed:
        if one.message_id in seen and not one.redelivered:
            verdict.doubled_unmarked.append(one.message_id)
        if one.message_id not in seen and one.sequence <= newest:
            verdict.out_of_order.append(one.sequence)
        if one.redelivered:
            verdict.marked.append(one.message_id)
        seen.add(one.message_id)
        newest = max(newest, one.sequence)
    verdict.lost = [message_id for message_id in accepted if message_id not in seen]
    verdict.unexpected = sorted(seen - set(accepted))
    return verdict


def attempt(call: Callable[[], T]) -> T | BusError:
    """The answer, or the error it was refused with."""
    try:
        return call()
    except BusError as error:
        return error
