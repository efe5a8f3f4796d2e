"""The supervisor's table: which state follows which event, and who hears of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from actors.base import FutureReply
from actors.messages import (
    Fence,
    ReadinessChanged,
    SearchWith,
    StartRedis,
    Unfence,
)
from actors.pool import Dispatcher
from actors.supervisor import (
    RETRY_AFTER_MAX_MS,
    RETRY_AFTER_MS,
    RETRY_PAUSES_S,
    Outlets,
    SupervisorActor,
    Wiring,
)
from actors.supervisor_messages import (
    CatchUpFailed,
    CatchUpProgressed,
    CaughtUp,
    Crashed,
    HealthAsked,
    ProjectionLost,
    RedisRefused,
    RedisStarted,
    StopAsked,
    SupervisorMessage,
)
from actors.timer import Timer
from agentbus.ids import RecoveryEpoch
from agentbus.projection.errors import RedisUnusableError
from tests.clock import FakeClock
from tests.eventually import PATIENCE_S, eventually
from tests.probe import Probe, settle


def epoch(number: int) -> RecoveryEpoch:
    return RecoveryEpoch(number)


class Office:
    """A supervisor between probes; what it does to the process is written down."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.timer = Timer(self.clock)
        self.dispatcher = Dispatcher(threads=1)
        self.ledger, self.registrar, self.cleanup = Probe(), Probe(), Probe()
        self.projector, self.waits = Probe(), Probe()
        self.announced: list[tuple[str, int]] = []
        self.stops: list[StopAsked] = []
        self.gave_up: list[str] = []
        self.refused: list[Exception] = []
        wiring = Wiring(
            self.ledger.address,
            self.projector.address,
            self.registrar.address,
            self.cleanup.address,
            self.waits.address,
            Outlets(self._announce, self.stops.append, self.gave_up.append, self.refused.append),
        )
        actor = SupervisorActor(wiring, self.timer, self.clock)
        self.address = self.dispatcher.start(actor)
        self.projector.expect(StartRedis)

    def _announce(self, change: ReadinessChanged) -> None:
        self.announced.append((change.state, change.epoch))

    def tell(self, *messages: SupervisorMessage) -> None:
        for message in messages:
            self.address.tell(message)
        settle(self.address)

    def health(self) -> dict[str, Any]:
        reply = FutureReply()
        self.tell(HealthAsked(reply))
        health: dict[str, Any] = reply.get(PATIENCE_S)
        return health

    def state(self) -> tuple[str, int]:
        health = self.health()
        return health["state"], health["epoch"]

    def wait_for(self, state: str, number: int) -> None:
        eventually(lambda: self.state() == (state, number), what=f"{state} {number}")

    def ready(self) -> None:
        self.tell(CaughtUp(epoch(1), {"engine": "redis"}))

    def close(self) -> None:
        self.dispatcher.stop(PATIENCE_S)
        self.timer.stop()
        for probe in (self.ledger, self.projector, self.registrar, self.cleanup):
            probe.stop()


@pytest.fixture
def early() -> Iterator[Office]:
    """Redis has not started yet."""
    office = Office()
    yield office
    office.close()


@pytest.fixture
def office(early: Office) -> Office:
    early.tell(RedisStarted("redis"))
    return early


def test_until_redis_has_started_it_says_so_and_counts_no_epoch(early: Office) -> None:
    assert early.state() == ("starting", 0)
    assert early.health()["work"] == "starting Redis"
    assert early.ledger.received() == []
    early.tell(RedisStarted("sqlite"))
    assert early.state() == ("starting", 1)
    search_with, fence = early.ledger.received()
    assert search_with == SearchWith("sqlite", early.address)
    assert isinstance(fence, Fence)


def test_a_redis_that_cannot_be_had_refuses_the_start(early: Office) -> None:
    error = RedisUnusableError("install one")
    early.tell(RedisRefused(error))
    assert early.refused == [error]


def test_a_stop_while_redis_starts_is_not_undone_by_its_start(early: Office) -> None:
    early.tell(StopAsked(FutureReply()), RedisStarted("redis"))
    assert early.state() == ("stopping", 0)
    assert early.ledger.received() == []


def test_it_starts_fenced_in_epoch_one(office: Office) -> None:
    assert office.state() == ("starting", 1)
    assert office.ledger.expect(Fence).epoch == 1


def test_ready_is_announced_after_the_ledger_was_told_to_accept(office: Office) -> None:
    office.ready()
    kinds = [type(message) for message in office.ledger.received()]
    assert kinds == [SearchWith, Fence, Unfence]
    assert office.announced == [("starting", 1), ("ready", 1)]
    for probe in (office.registrar, office.cleanup):
        states = [m.state for m in probe.received() if isinstance(m, ReadinessChanged)]
        assert states == ["starting", "ready"]
    health = office.health()
    assert health["redis"] == {"engine": "redis"}
    assert health["progress"] is None
    assert health["errors"] == []


def test_a_lost_projection_begins_a_new_epoch_behind_a_fence(office: Office) -> None:
    office.ready()
    office.tell(ProjectionLost("redis is gone"))
    assert office.state() == ("recovering", 2)
    office.ledger.expect(Unfence)
    fences = [m.epoch for m in office.ledger.received() if isinstance(m, Fence)]
    assert fences == [1, 2]
    assert office.health()["errors"][-1]["what"] == "projection lost: redis is gone"
    office.tell(CaughtUp(epoch(2)))
    assert office.state() == ("ready", 2)


def test_a_loss_during_recovery_begins_no_second_one(office: Office) -> None:
    office.ready()
    office.tell(ProjectionLost("a"), ProjectionLost("b"))
    assert office.state() == ("recovering", 2)


def test_answers_of_an_older_epoch_are_ignored(office: Office) -> None:
    office.ready()
    office.tell(ProjectionLost("a"), CaughtUp(epoch(1)), CatchUpFailed(epoch(1), "old"))
    office.tell(CatchUpProgressed(epoch(1), "filling Redis", 5, 10))
    assert office.state() == ("recovering", 2)
    assert office.health()["progress"] is None
    office.clock.advance(60)
    assert office.state() == ("recovering", 2)


def test_progress_is_shown_while_it_lasts(office: Office) -> None:
    office.tell(CatchUpProgressed(epoch(1), "clearing Redis"))
    assert office.health()["work"] == "clearing Redis"
    assert office.health()["progress"] is None
    office.tell(CatchUpProgressed(epoch(1), "filling Redis", 5, 10))
    assert office.health()["work"] == "filling Redis"
    assert office.health()["progress"] == {"done": 5, "total": 10}
    office.ready()
    assert office.health()["work"] is None
    assert office.health()["progress"] is None


def hints(office: Office) -> list[int]:
    office.health()
    received = office.registrar.received()
    return [m.retry_after_ms for m in received if isinstance(m, ReadinessChanged)]


def test_the_longer_it_will_take_the_later_callers_are_asked_to_come_back(office: Office) -> None:
    for done in (0, 1000, 2000, 90_000, 99_000):
        office.tell(CatchUpProgressed(epoch(1), "filling Redis", done, 100_000))
        office.clock.advance(1.0)
    assert hints(office) == [RETRY_AFTER_MS, RETRY_AFTER_MAX_MS, 333]
    office.ready()
    assert hints(office)[-1] == RETRY_AFTER_MS
    assert [state for state, _ in office.announced] == ["starting", "ready"]


def test_a_failed_recovery_is_tried_again_with_growing_pauses(office: Office) -> None:
    number = 1
    for pause_s in (*RETRY_PAUSES_S, RETRY_PAUSES_S[-1]):
        office.tell(CatchUpFailed(epoch(number), "still dead"))
        assert office.health()["work"] == "waiting to try again"
        assert office.health()["errors"][-1]["what"] == "recovery failed: still dead"
        office.clock.advance(pause_s / 2)
        assert office.state()[1] == number
        office.clock.advance(pause_s)
        number += 1
        office.wait_for("starting", number)
    office.tell(CaughtUp(epoch(number)))
    office.tell(ProjectionLost("again"))
    office.tell(CatchUpFailed(epoch(number + 1), "dead"))
    office.clock.advance(RETRY_PAUSES_S[0] * 1.1)  # the pauses begin anew
    office.wait_for("recovering", number + 2)


@pytest.mark.parametrize("actor", ["AttachmentActor-Sam", "ChannelActor-7"])
def test_what_others_replace_does_not_end_the_daemon(office: Office, actor: str) -> None:
    office.ready()
    office.tell(Crashed(actor, ValueError("secret text")))
    assert office.state() == ("ready", 1)
    assert office.gave_up == []
    assert office.health()["errors"][-1]["what"] == f"{actor} failed: ValueError"


def test_after_a_failed_channel_attachments_are_told_to_watch_anew(office: Office) -> None:
    office.ready()
    office.tell(Crashed("ChannelActor-7", ValueError()))
    assert office.announced[-2:] == [("ready", 1), ("ready", 1)]


@pytest.mark.parametrize(
    "actor",
    ["ReceiptLedgerActor", "RedisProjectorActor", "RegistrarActor", "ReporterActor", "timer"],
)
def test_any_other_failure_ends_the_daemon(office: Office, actor: str) -> None:
    office.ready()
    office.tell(Crashed(actor, ValueError("secret text")))
    assert office.gave_up == [f"{actor} failed: ValueError"]


def test_errors_name_no_texts_and_only_the_last_are_kept(office: Office) -> None:
    for number in range(30):
        office.tell(Crashed(f"AttachmentActor-{number}", ValueError("secret text")))
    errors = office.health()["errors"]
    assert len(errors) == 20
    assert "secret" not in str(errors)
    assert "AttachmentActor-29" in errors[-1]["what"]


def test_a_stop_is_announced_and_nothing_leads_out_of_it(office: Office) -> None:
    office.ready()
    stop = StopAsked(FutureReply())
    office.tell(stop)
    assert office.stops == [stop]
    assert office.announced[-1] == ("stopping", 1)
    office.tell(ProjectionLost("redis stopped"), CaughtUp(epoch(1)))
    assert office.state() == ("stopping", 1)
    second = StopAsked(FutureReply(), reset=True)
    office.tell(second)
    assert office.stops == [stop, second]
    assert office.announced.count(("stopping", 1)) == 1


def test_a_stop_during_the_start_is_not_undone_by_its_end(office: Office) -> None:
    office.tell(StopAsked(FutureReply()), CaughtUp(epoch(1)))
    assert office.state() == ("stopping", 1)
    office.tell(CatchUpFailed(epoch(1), "dead"))
    office.clock.advance(60)
    assert office.state() == ("stopping", 1)
