"""An agent answers over talk: on a whole bus, from the question to the late answer."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator

import pytest

from agentbus.encoding import decode_strict
from agentbus.errors import ForbiddenError, ValidationError
from agentbus.limits import IN_FLIGHT_PER_ATTACHMENT, PEER_BODY_CHARACTERS
from agentbus.talk.client import TalkError, TalkReply
from tests.bus_fixture import ThrowAwayBus, stop_daemon
from tests.cli.command import agentbus, agentbus_admin
from tests.eventually import PATIENCE_S, eventually
from tests.peer_sessions import PeerSession
from tests.talk.serving import Serving, client

HASTY_S = 2
"""Time of a question on the bus where nobody answers; the first of them makes an inbox."""

MANY = IN_FLIGHT_PER_ATTACHMENT + 8


@pytest.fixture(scope="module")
def bus() -> Iterator[ThrowAwayBus]:
    """One whose messages may be twice as large as the longest text."""
    with ThrowAwayBus(talk_peers="*", max_message_kib=128) as bus:
        yield bus


@pytest.fixture(scope="module")
def worker(bus: ThrowAwayBus) -> Iterator[Serving]:
    with Serving(bus, "worker", peer=True) as serving:
        yield serving


@pytest.fixture
def agent(bus: ThrowAwayBus, worker: Serving) -> Iterator[PeerSession]:
    """The live session of the agent that answers."""
    with PeerSession(bus.attach("worker")) as session:
        yield session


@pytest.fixture(scope="module")
def hasty_bus() -> Iterator[ThrowAwayBus]:
    with ThrowAwayBus(talk_peers="*", talk_timeout_seconds=HASTY_S) as bus:
        yield bus


@pytest.fixture(scope="module")
def hasty_worker(hasty_bus: ThrowAwayBus) -> Iterator[Serving]:
    with Serving(hasty_bus, "worker", peer=True) as serving:
        yield serving


class Question:
    """One that is under way, in a thread."""

    def __init__(
        self,
        bus: ThrowAwayBus,
        prompt: str = "Verified?",
        *,
        to: str = "worker",
        caller: str = "reviewer",
        depth: int = 0,
        key: str | None = None,
        within_s: float = 50.0,
    ) -> None:
        self._reply: TalkReply | TalkError | None = None
        self._asked = (client(bus, caller, within_s), to, prompt, depth, key)
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        asking, to, prompt, depth, key = self._asked
        try:
            self._reply = asking.ask(to, prompt, depth=depth, idempotency_key=key)
        except TalkError as error:
            self._reply = error

    def text(self) -> str:
        reply = self._ended()
        assert isinstance(reply, TalkReply), reply
        return reply.text

    def error(self) -> TalkError:
        reply = self._ended()
        assert isinstance(reply, TalkError), reply
        return reply

    def _ended(self) -> TalkReply | TalkError | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self._reply


def result_of(bus: ThrowAwayBus, message_id: str) -> tuple[int, str]:
    shown = agentbus(bus, "talk", "result", message_id)
    return shown.returncode, shown.stdout


def test_prompt_becomes_a_request_whose_first_reply_is_the_text(
    bus: ThrowAwayBus, agent: PeerSession
) -> None:
    question = Question(bus, "Is 42 right?")
    delivery = agent.claim()
    envelope = delivery["envelope"]
    assert (envelope["kind"], envelope["body"], envelope["depth"]) == ("request", "Is 42 right?", 1)
    assert envelope["from"]["agent"] == "talk:reviewer"
    agent.reply(delivery["delivery_id"], "Partly.", ack=False)
    assert question.text() == "Partly."
    agent.reply(delivery["delivery_id"], "It is.")
    assert result_of(bus, envelope["id"]) == (0, "Partly.\n")


def test_empty_prompt_and_the_longest_one_arrive(bus: ThrowAwayBus, agent: PeerSession) -> None:
    for prompt in ("", "x" * PEER_BODY_CHARACTERS):
        question = Question(bus, prompt)
        delivery = agent.claim()
        assert delivery["envelope"]["body"] == prompt
        agent.reply(delivery["delivery_id"], "Seen.")
        assert question.text() == "Seen."


def test_many_questions_at_once_get_each_its_own_answer(
    bus: ThrowAwayBus, agent: PeerSession
) -> None:
    """More than a connection to the daemon may have requests under way."""
    questions = [Question(bus, f"Is {number} right?") for number in range(MANY)]
    for _ in questions:
        delivery = agent.claim()
        agent.reply(delivery["delivery_id"], f"To {delivery['envelope']['body']}: yes.")
    for number, question in enumerate(questions):
        assert question.text() == f"To Is {number} right?: yes."


def test_prompt_that_no_message_holds_is_too_large(bus: ThrowAwayBus, agent: PeerSession) -> None:
    error = Question(bus, "x" * (PEER_BODY_CHARACTERS + 1)).error()
    assert (error.code, error.retryable) == ("request_too_large", False)
    assert str(PEER_BODY_CHARACTERS) in error.message
    # As many characters, and more bytes than `max_message_kib` allows.
    assert Question(bus, "\u20ac" * 50_000).error().code == "request_too_large"


def test_name_that_no_sender_can_have_is_refused(bus: ThrowAwayBus, agent: PeerSession) -> None:
    error = Question(bus, caller="r" * 128).error()
    assert (error.code, error.retryable) == ("invalid_request", False)


def test_nobody_is_asked_who_is_not_there(bus: ThrowAwayBus) -> None:
    with Serving(bus, "Absent", peer=True):
        error = Question(bus, to="Absent").error()
        assert (error.code, error.retryable) == ("instance_unavailable", True)
        with PeerSession(bus.attach("Absent")) as later:
            assert later.peer("wait", timeout=0)["delivery"] is None, "nothing was queued"


def test_depth_is_carried_on_and_ends(bus: ThrowAwayBus, agent: PeerSession) -> None:
    question = Question(bus, depth=1)
    delivery = agent.claim()
    assert delivery["envelope"]["depth"] == 2
    # The agent's own conversation asks on, and says nothing of how deep it is.
    assert Question(bus, to="worker", caller="worker").error().code == "max_depth_exceeded"
    agent.reply(delivery["delivery_id"], "Done.")
    assert question.text() == "Done."
    assert Question(bus, depth=2).error().code == "max_depth_exceeded"


def test_work_that_is_held_makes_what_its_holder_asks_deeper(
    bus: ThrowAwayBus, agent: PeerSession
) -> None:
    with Serving(bus, "Deeper", peer=True), PeerSession(bus.attach("Deeper")) as deeper:
        first = Question(bus)
        held = agent.claim()
        second = Question(bus, to="Deeper", caller="worker")
        asked = deeper.claim()
        assert asked["envelope"]["from"]["agent"] == "talk:worker"
        assert asked["envelope"]["depth"] == 2
        deeper.reply(asked["delivery_id"], "Fine.")
        agent.reply(held["delivery_id"], second.text())
        assert first.text() == "Fine."


@pytest.mark.timeout(180)  # two starts of a daemon
def test_question_outlives_daemon_and_server_and_its_repeat_gets_the_first_answer() -> None:
    with ThrowAwayBus(talk_peers="*", talk_timeout_seconds=180) as own_bus:
        with Serving(own_bus, "worker", peer=True):
            agent = PeerSession(own_bus.attach("worker", conversation="c"))
            question = Question(own_bus, key="k", within_s=170.0)
            repeat = Question(own_bus, key="k", within_s=170.0)
            delivery = agent.claim()
            own_bus.kill()
            eventually(lambda: own_bus.state() == "ready", what="a daemon that the server started")
            token = agent.token
            with PeerSession(own_bus.attach("worker", conversation="c")) as agent:
                agent.token = token
                agent.reply(delivery["delivery_id"], "Once.")
                assert (question.text(), repeat.text()) == ("Once.", "Once.")
                assert Question(own_bus, "Another?", key="k").error().code == "invalid_request"
                other = Question(own_bus, key="k", caller="somebody")
                agent.reply(agent.claim()["delivery_id"], "Twice.")
                assert other.text() == "Twice."
        try:
            with Serving(own_bus, "worker", peer=True):  # and the agent is not even there
                assert Question(own_bus, key="k").text() == "Once."
        finally:
            stop_daemon(own_bus.runtime)


def test_agent_that_is_silent_is_a_timeout_and_its_late_answer_can_be_read(
    hasty_bus: ThrowAwayBus, hasty_worker: Serving
) -> None:
    with PeerSession(hasty_bus.attach("worker")) as agent:
        error = Question(hasty_bus, key="k").error()
        assert (error.code, error.retryable) == ("timeout", True)
        assert "has not taken it up" in error.message
        delivery = agent.claim()
        (message_id,) = re.findall("talk result ([0-9a-f-]+)", error.message)
        assert delivery["envelope"]["id"] == message_id
        assert result_of(hasty_bus, message_id) == (75, "")
        assert f"is orphaned as request {message_id}" in hasty_worker.log()
        shown = agentbus_admin(hasty_bus, "requests", "--json")
        assert message_id in [row["message_id"] for row in decode_strict(shown.stdout)["requests"]]
        agent.reply(delivery["delivery_id"], "Sorry.")
        assert result_of(hasty_bus, message_id) == (0, "Sorry.\n")
        assert Question(hasty_bus, key="k").text() == "Sorry."


def test_caller_that_goes_away_leaves_its_question_to_be_answered(
    bus: ThrowAwayBus, worker: Serving, agent: PeerSession
) -> None:
    assert Question(bus, within_s=3.0).error().message == "worker gave no answer within 3 s"
    delivery = agent.claim()
    agent.reply(delivery["delivery_id"], "Too late?")
    message_id = delivery["envelope"]["id"]
    eventually(lambda: "answered; orphaned, its caller has gone" in worker.log())
    assert f"is request {message_id}" in worker.log()
    assert result_of(bus, message_id) == (0, "Too late?\n")


@pytest.mark.parametrize("action", ["reject", "cancel"])
def test_person_ends_a_question(bus: ThrowAwayBus, agent: PeerSession, action: str) -> None:
    question = Question(bus)
    agent.peer("human", delivery_id=agent.claim()["delivery_id"], reason="May I?")
    shown = agentbus_admin(bus, "human", "list", "--json")
    (waiting,) = decode_strict(shown.stdout)["interventions"]
    decided = agentbus_admin(bus, "human", "decide", waiting["intervention_id"], action)
    assert decided.returncode == 0, decided.stderr
    error = question.error()
    assert (error.code, error.retryable) == ("workflow_state", False)


def test_question_that_waits_for_a_person_waits_until_its_time_is_over(
    hasty_bus: ThrowAwayBus, hasty_worker: Serving
) -> None:
    with PeerSession(hasty_bus.attach("worker")) as agent:
        question = Question(hasty_bus)
        agent.peer("human", delivery_id=agent.claim()["delivery_id"], reason="May I?")
        error = question.error()
        assert error.code == "timeout"


def test_server_that_is_stopped_answers_what_is_under_way(bus: ThrowAwayBus) -> None:
    with (
        PeerSession(bus.attach("Ending")) as agent,
        Serving(bus, "Ending", peer=True) as ending,
    ):
        question = Question(bus, to="Ending")
        delivery = agent.claim()
        assert ending.end(signal.SIGTERM) == 0
        assert question.error().code == "instance_unavailable"
        agent.reply(delivery["delivery_id"], "For the record.")
        assert result_of(bus, delivery["envelope"]["id"]) == (0, "For the record.\n")


def test_callers_are_no_agents(bus: ThrowAwayBus, agent: PeerSession) -> None:
    with pytest.raises(ValidationError, match="must not begin with 'talk:'"):
        bus.attach("talk:reviewer")
    question = Question(bus)
    delivery = agent.claim()
    found = agent.peer("agents")["agents"]
    assert not [one for one in found if one["agent"].startswith("talk:")]
    context = agent.peer("memory_context", delivery_id=delivery["delivery_id"])
    assert context["peer_agent_ids"] == []
    agent.reply(delivery["delivery_id"], "Yes.")
    assert question.text() == "Yes."
    with pytest.raises(ForbiddenError, match="asks over talk"):
        agent.peer("send", to=["talk:reviewer"], body="By the way", idempotency_key="unasked")


def test_result_of_what_was_never_asked_is_refused(bus: ThrowAwayBus, agent: PeerSession) -> None:
    assert result_of(bus, "nothing") == (1, "")
    with PeerSession(bus.attach("Kim")) as kim:
        asked = kim.ask("worker", body="Not over talk.")
    assert result_of(bus, asked["message_id"]) == (1, "")
    agent.peer("ack", delivery_id=agent.claim()["delivery_id"])
