"""What a served agent's handler makes of the bus: retries, refusals, time, how much at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentbus.errors import (
    BusError,
    CapacityExhaustedError,
    ConflictError,
    InspectionRejectedError,
    NotFoundError,
    TooLargeError,
    UnavailableError,
    UnknownOutcomeError,
    ValidationError,
)
from agentbus.talk import peer
from agentbus.talk.handler import Answered, Delegation, NotAnswered
from agentbus.talk.peer import PeerHandler, meaning_of
from agentbus.transport.client import NoAnswerError

QUESTION = Delegation("d1", "reviewer", "Verified?", 2, 30.0)
ANSWERED = {"message_id": "m", "state": "answered", "text": "Yes."}


class ScriptedBus:
    """Answers one question after the other as `script` says: an outcome, or an error."""

    def __init__(self, *script: dict[str, Any] | BusError) -> None:
        self._script = list(script)
        self.asked: list[dict[str, Any]] = []

    async def delegate(self, question: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(question)
        said = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(said, BusError):
            raise said
        return said


class SilentBus:
    """Never answers."""

    async def delegate(self, question: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError


def answer(bus: ScriptedBus, question: Delegation = QUESTION) -> Answered | NotAnswered:
    return asyncio.run(PeerHandler("worker", bus).answer(question))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "RETRY_S", 0.01)


def test_question_names_everybody_its_depth_and_a_key_of_its_own() -> None:
    bus = ScriptedBus(ANSWERED)
    assert answer(bus) == Answered("Yes.")
    (asked,) = bus.asked
    within_ms = asked.pop("within_ms")
    assert 28_000 < within_ms <= 29_000, "a second is left for the answer"
    assert asked == {
        "instance": "worker",
        "caller": "reviewer",
        "prompt": "Verified?",
        "depth": 2,
        "key": "d1",
        "delegation_id": "d1",
    }
    answer(bus, Delegation("d2", "reviewer", "Verified?", 2, 30.0, "k"))
    assert bus.asked[-1]["key"] == "k"


@pytest.mark.parametrize(
    "trouble",
    [
        UnavailableError("the bus recovers"),
        NoAnswerError("lost", sent=True),
        UnknownOutcomeError("perhaps"),
    ],
)
def test_trouble_that_passes_is_waited_for_with_the_same_key(trouble: BusError) -> None:
    bus = ScriptedBus(trouble, trouble, ANSWERED)
    assert answer(bus) == Answered("Yes.")
    assert [asked["key"] for asked in bus.asked] == ["d1", "d1", "d1"]
    assert bus.asked[2]["within_ms"] < bus.asked[0]["within_ms"]


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        (UnavailableError("the bus recovers"), "instance_unavailable"),
        (NoAnswerError("not even sent", sent=False), "instance_unavailable"),
        (NoAnswerError("lost", sent=True), "timeout"),
        (UnknownOutcomeError("perhaps"), "timeout"),
    ],
)
def test_trouble_that_lasts_says_whether_the_agent_may_have_been_asked(
    trouble: BusError, code: str
) -> None:
    question = Delegation("d1", "reviewer", "Verified?", 2, 0.2)
    refused = answer(ScriptedBus(trouble), question)
    assert isinstance(refused, NotAnswered)
    assert refused.code == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFoundError("not there"), "instance_unavailable"),
        (TooLargeError("too long"), "request_too_large"),
        (ValidationError("no such name"), "invalid_request"),
        (InspectionRejectedError("it holds a key"), "invalid_request"),
        (CapacityExhaustedError("full"), "internal_error"),
    ],
)
def test_refusal_has_the_code_that_fits(error: BusError, code: str) -> None:
    refused = answer(ScriptedBus(error))
    assert isinstance(refused, NotAnswered)
    assert refused.code == code
    assert error.message in refused.error


def test_key_of_another_prompt_is_for_the_server_to_refuse() -> None:
    with pytest.raises(ConflictError):
        answer(ScriptedBus(ConflictError("used for another prompt")))


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        ({"state": "pending", "delivery_state": "queued"}, "timeout", "has not taken it up"),
        ({"state": "pending", "delivery_state": "leased"}, "timeout", "is at it"),
        ({"state": "pending", "delivery_state": "paused"}, "timeout", "waits for a person"),
        ({"state": "pending", "delivery_state": "acked"}, "timeout", "without an answer"),
        ({"state": "ended", "delivery_state": "acked"}, "timeout", "never answered"),
        (
            {"state": "ended", "delivery_state": "rejected", "reason": "rejected: no"},
            "workflow_state",
            "rejected: no",
        ),
        ({"state": "ended", "delivery_state": "cancelled"}, "workflow_state", "was cancelled"),
        ({"state": "gone"}, "workflow_state", "retained no more"),
        ({"state": "unknown", "reason": "the disk"}, "internal_error", "the disk"),
    ],
)
def test_outcome_without_a_text(outcome: dict[str, Any], code: str, words: str) -> None:
    meant = meaning_of({"message_id": "m", **outcome})
    assert isinstance(meant, NotAnswered)
    assert meant.code == code
    assert words in meant.error


def test_only_so_many_questions_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "AT_ONCE", 2)

    async def check() -> None:
        handler = PeerHandler("worker", SilentBus())
        asked = [asyncio.ensure_future(handler.answer(QUESTION)) for _ in range(2)]
        await asyncio.sleep(0)
        refused = await handler.answer(QUESTION)
        assert isinstance(refused, NotAnswered)
        assert (refused.code, refused.error) == (
            "instance_unavailable",
            "2 questions are under way here",
        )
        handler.stop()
        for stopped in await asyncio.gather(*asked):
            assert stopped == NotAnswered(
                "instance_unavailable", "the server was stopped meanwhile"
            )

    asyncio.run(check())


def test_question_that_is_given_up_is_under_way_no_longer() -> None:
    async def check() -> None:
        handler = PeerHandler("worker", SilentBus())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await handler.answer(QUESTION)
        assert not handler._under_way

    asyncio.run(check())
