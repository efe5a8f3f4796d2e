"""One reader on the daemon's own protocol that lives through crashes of the daemon.

It does what an adapter does: it hands off what it is given, reports that, and marks what may have
been handed off before. For tests that need to choose when each of these happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from agentbus.errors import BusError
from agentbus.ids import new_id
from tests.bus_fixture import BusSession, ThrowAwayBus
from tests.crash import audit
from tests.crash.attempts import Attempt
from tests.crash.history import Handed, History, Operation, Subscribed, mark_of
from tests.crash.judge import judge
from tests.crash.truth import Truth, Verdict

T = TypeVar("T")


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
                mark, message_id = mark_of(record["content"]), record["message_id"]
                number = len(self.handed)
                self.handed.append(
                    Handed("reader", 1, "general", mark, message_id, position, again, number, 0.0)
                )
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

    def verdict(self, accepted: dict[str, Any]) -> Verdict:
        """On itself and on what the database holds; `accepted` has the answer to each mark."""
        history = History(
            operations=[
                Operation(
                    "sender", "send", mark, mark, "general", None, [Attempt(0, 0, "ok")], [answer]
                )
                for mark, answer in accepted.items()
            ],
            subscriptions=[Subscribed("reader", "general", 1, 1)],
            handed=self.handed,
        )
        truth = Truth(rows=[])
        audit.read(self._bus.data_directory / "agentbus.sqlite3", truth)
        return judge(history, truth)


def attempt(call: Callable[[], T]) -> T | BusError:
    """The answer, or the error it was refused with."""
    try:
        return call()
    except BusError as error:
        return error
