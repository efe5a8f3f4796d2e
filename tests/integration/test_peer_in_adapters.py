"""Directed work from the question to the late answer, through real adapters on a real daemon.

Ada asks Rob and Kim. Kim answers at once. Rob reports, asks a person before he acts, loses his
claim while his process stands still, and answers when that is overdue. The daemon is killed on the
way, and the person is at the command line.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agentbus.cli.entry import EXIT_OK
from agentbus.clock import SHIFT_VARIABLE
from agentbus.encoding import decode_strict
from agentbus.rules import peer as refusals
from agentbus.transport.singleton import holder_pid
from tests.adapter.adapter_process import AdapterProcess
from tests.bus_fixture import ThrowAwayBus, stop_daemon
from tests.cli.command import agentbus_admin
from tests.eventually import PATIENCE_S, eventually
from tests.signals import freeze, kill

LEASE_S = 5
DUE_S = 300
QUESTION = "Is the release ready? Name what speaks against it."
SHORT_ANSWER = "The manual is ready."
INSTRUCTIONS = "Only on the staging system."
LATE_ANSWER = "It is ready: staging has run all night."


class Agent:
    """An adapter, and the model that uses its tool `peer`."""

    def __init__(self, bus: ThrowAwayBus, name: str, capability: str) -> None:
        self.adapter = AdapterProcess(
            bus.environment,
            bus.config_path,
            agent=name,
            session=f"of {name}",
            options=["--capability", capability],
        )
        self.adapter.initialize()

    def peer(self, op: str, **args: Any) -> Any:
        answer = self._use(op, args)
        assert "error" not in answer, answer
        return answer

    def refused(self, op: str, **args: Any) -> Any:
        """The error of a call that must not succeed."""
        answer = self._use(op, args)
        assert "error" in answer, answer
        return answer["error"]

    def claim(self) -> Any:
        """The delivery that must come."""
        answer = self.peer("wait", timeout=PATIENCE_S)
        assert answer["delivery"] is not None, answer
        return answer["delivery"]

    def deliveries(self, message_id: str) -> dict[str, Any]:
        """What `status` knows of each recipient of the message."""
        status = self.peer("status", message_id=message_id)
        return {one["recipient"]["agent"]: one for one in status["deliveries"]}

    def _use(self, op: str, args: dict[str, Any]) -> Any:
        return self.adapter.use("peer", op=op, args=args, within_s=60.0)


class Scene:
    """A bus whose daemon the adapters start and whose wall clock the test sets; three agents."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._shift = folder / "shift"
        self.set_clock(0)
        self._bus = ThrowAwayBus(
            extra_environment={SHIFT_VARIABLE: str(self._shift)}, peer_lease_seconds=LEASE_S
        )
        stack.callback(self._bus.close)
        stack.callback(stop_daemon, self._bus.runtime)
        self.ada, self.rob, self.kim = (
            Agent(self._bus, name, capability)
            for name, capability in (("Ada", "asking"), ("Rob", "review"), ("Kim", "writing"))
        )
        for agent in (self.ada, self.rob, self.kim):
            stack.callback(agent.adapter.close)

    def person(self, *command: str) -> Any:
        """What a command of `agentbus-admin` prints as JSON."""
        done = agentbus_admin(self._bus, *command, "--json")
        assert done.returncode == EXIT_OK, done.stderr
        return decode_strict(done.stdout)

    def set_clock(self, shift_s: int) -> None:
        self._shift.write_text(str(shift_s))

    def kill_daemon(self) -> None:
        """Whoever calls next starts another one."""
        pid = holder_pid(self._bus.runtime.lock)
        assert pid is not None
        kill(pid)


@pytest.fixture
def scene(short_folder: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(short_folder, stack)


@pytest.mark.timeout(180)
def test_a_request_goes_all_the_way_to_its_late_answer(scene: Scene) -> None:
    _discover(scene)
    question = _request(scene)
    delivery_id = _claim(scene, question)
    _report_and_collect_early(scene, question, delivery_id)
    _ask_a_person(scene, question, delivery_id)
    _decide(scene, delivery_id)
    _lose_the_lease_and_claim_again(scene, question, delivery_id)
    _become_overdue(scene, question, delivery_id)
    _reply_twice_and_collect(scene, question, delivery_id)
    _remember(scene, question, delivery_id)


def _discover(scene: Scene) -> None:
    """What somebody can do finds them, their own words say what they know."""
    scene.rob.peer("describe", description="Knows the release.")
    scene.kim.peer("describe", description="Knows the manual.")
    (found,) = scene.ada.peer("discover", capability="review")["agents"]
    assert (found["agent"], found["state"], found["available"]) == ("Rob", "ready", True)
    assert found["description"] == "Knows the release."
    known = [one["agent"] for one in scene.ada.peer("agents")["agents"]]
    assert known == ["Kim", "Rob"]


def _request(scene: Scene) -> str:
    """Accepted once, however often it is sent; its id."""
    known = {one["agent"]: one["agent_id"] for one in scene.ada.peer("agents")["agents"]}
    request = {
        "to": [known["Rob"], known["Kim"]],
        "body": QUESTION,
        "kind": "request",
        "idempotency_key": "ready-1",
        "expect_reply_within_seconds": DUE_S,
    }
    sent = scene.ada.peer("send", **request)
    again = scene.ada.peer("send", **request)
    assert (sent["status"], sent["duplicate"], again["duplicate"]) == ("accepted", False, True)
    assert again["message_id"] == sent["message_id"]
    reused = scene.ada.refused("send", **{**request, "body": "Something else."})
    assert (reused["reason"], reused["status"]) == (refusals.KEY_REUSED, 409)
    return str(sent["message_id"])


def _claim(scene: Scene, question: str) -> str:
    """Each has a delivery of its own, and a session gets its own again; Rob's id."""
    for agent in (scene.rob, scene.kim):
        envelope = agent.claim()["envelope"]
        assert (envelope["id"], envelope["body"]) == (question, QUESTION)
        assert envelope["from"]["agent"] == "Ada"
    work = scene.rob.claim()
    assert (work["attempt"], work["state"]) == (1, "leased")
    (busy,) = scene.ada.peer("discover", capability="review", available_only=False)["agents"]
    assert busy["state"] == "busy"
    return str(work["delivery_id"])


def _report_and_collect_early(scene: Scene, question: str, delivery_id: str) -> None:
    """Progress is no reply, and who answers first is not kept back by who does not."""
    progress = {
        "delivery_id": delivery_id,
        "summary": "Reading the changes.",
        "idempotency_key": "ready-1-reading",
    }
    for _ in range(2):
        assert scene.rob.peer("progress", **progress)["extension_count"] == 1
    finished = scene.kim.claim()["delivery_id"]
    scene.kim.peer(
        "reply", delivery_id=finished, body=SHORT_ANSWER, idempotency_key="ready-1-manual"
    )
    states = {name: one["reply_state"] for name, one in scene.ada.deliveries(question).items()}
    assert states == {"Rob": "awaiting", "Kim": "replied"}
    early = scene.ada.peer("collect", message_id=question, timeout=1)
    assert early["outcome"] == "partial"
    (answer,) = early["answers"]
    assert (answer["recipient"], answer["body"], answer["late"]) == ("Kim", SHORT_ANSWER, False)
    assert early["pending"].keys() == {"Rob"}


def _ask_a_person(scene: Scene, question: str, delivery_id: str) -> None:
    """A checkpoint that may go on, then one that may not: then nothing goes."""
    checkpoint = {"delivery_id": delivery_id, "proposed_action": "Read the log of the build."}
    permitted = scene.rob.peer(
        "checkpoint", summary="The changes are fine.", idempotency_key="ready-1-log", **checkpoint
    )
    assert (permitted["status"], permitted["extension_count"]) == ("leased", 2)
    checkpoint["proposed_action"] = "Deploy it."
    risky = scene.rob.peer(
        "checkpoint",
        summary="The build is fine.",
        action_type="external",
        idempotency_key="ready-1-deploy",
        **checkpoint,
    )
    assert risky["status"] == "paused"
    stopped = scene.rob.refused(
        "reply", delivery_id=delivery_id, body="Deployed.", idempotency_key="ready-1-hasty"
    )
    assert (stopped["reason"], stopped["state"]) == (refusals.HUMAN_REQUIRED, "paused")
    nothing = scene.rob.peer("wait", timeout=0)
    assert nothing["delivery"] is None
    assert nothing["blocked"]
    (waiting,) = scene.ada.peer("discover", capability="review", available_only=False)["agents"]
    assert waiting["state"] == "waiting_for_user"
    assert scene.ada.deliveries(question)["Rob"]["state"] == "paused"


def _decide(scene: Scene, delivery_id: str) -> None:
    """A person sees what is proposed and says otherwise; that comes before any further step."""
    (row,) = scene.person("human", "list")["interventions"]
    assert (row["delivery_id"], row["source"]) == (delivery_id, "checkpoint")
    whole = scene.person("human", "show", row["intervention_id"])
    assert whole["detail"]["proposed_action"] == "Deploy it."
    scene.person("human", "decide", delivery_id, "redirect", "--instructions", INSTRUCTIONS)

    progress = {"delivery_id": delivery_id, "summary": "Deployed.", "idempotency_key": "ready-1-p"}
    changed = scene.rob.refused("progress", **progress)
    assert (changed["reason"], changed["state"]) == (refusals.INSTRUCTIONS_CHANGED, "resumed")
    context = changed["detail"]["resume_context"]
    assert (context["action"], context["instructions"]) == ("redirect", INSTRUCTIONS)
    progress |= {"summary": "On staging.", "idempotency_key": "ready-1-staging"}
    assert scene.rob.peer("progress", **progress)["extension_count"] == 1


def _lose_the_lease_and_claim_again(scene: Scene, question: str, delivery_id: str) -> None:
    """An adapter that stands still renews nothing; when it goes on, it has the work back."""
    pid = scene.rob.adapter.process.pid
    freeze(pid)
    eventually(
        lambda: scene.ada.deliveries(question)["Rob"]["state"] == "queued",
        LEASE_S + PATIENCE_S,
        what="the end of the lease",
    )
    os.kill(pid, signal.SIGCONT)
    progress = {"delivery_id": delivery_id, "summary": "Half.", "idempotency_key": "ready-1-half"}
    assert scene.rob.peer("progress", **progress)["extension_count"] == 2
    assert scene.rob.claim()["attempt"] == 1


def _become_overdue(scene: Scene, question: str, delivery_id: str) -> None:
    """A clock that jumps makes nothing late; after a restart it is how time has passed."""
    scene.set_clock(DUE_S + 1)
    assert scene.ada.deliveries(question)["Rob"]["reply_state"] == "awaiting"
    scene.kill_daemon()
    (notice,) = scene.ada.peer("wait", timeout=PATIENCE_S)["notices"]
    assert (notice["delivery_id"], notice["reply_state"]) == (delivery_id, "overdue")
    assert scene.ada.peer("wait", timeout=0)["notices"] == []
    (request,) = scene.ada.peer("requests", state="overdue")["requests"]
    assert request["message_id"] == question


def _reply_twice_and_collect(scene: Scene, question: str, delivery_id: str) -> None:
    """A collect that waits ends with the late answer, which is one answer however often it is sent
    with its key, and is shown once."""
    args = {"message_id": question, "timeout": 45}
    collecting = scene.ada.adapter.call("peer", op="collect", args=args)
    reply = {"delivery_id": delivery_id, "body": LATE_ANSWER, "idempotency_key": "ready-1-answer"}
    sent = scene.rob.peer("reply", **reply)
    again = scene.rob.peer("reply", **reply)
    assert (sent["duplicate"], again["duplicate"]) == (False, True)
    assert again["message_id"] == sent["message_id"]

    collected = scene.ada.adapter.answer(collecting, within_s=60.0)
    assert (collected["outcome"], collected["expected"]) == ("complete", 2)
    answers = {one["recipient"]: one for one in collected["answers"]}
    assert answers["Kim"]["already_presented"]
    assert (answers["Rob"]["body"], answers["Rob"]["late"]) == (LATE_ANSWER, True)
    assert answers["Rob"]["message_id"] == sent["message_id"]
    assert (collected["pending"], collected["closed"], collected["excluded"]) == ({}, {}, 0)

    seen = scene.ada.peer("wait", timeout=0)
    assert (seen["delivery"], seen["notices"]) == (None, [])
    tracked = scene.ada.deliveries(question)["Rob"]
    assert (tracked["state"], tracked["late"]) == ("acked", True)
    done = scene.rob.refused(
        "progress", delivery_id=delivery_id, summary="More.", idempotency_key="ready-1-more"
    )
    assert (done["reason"], done["state"]) == (refusals.DELIVERY_UNAVAILABLE, "unavailable")


def _remember(scene: Scene, question: str, delivery_id: str) -> None:
    """Where a memory of it comes from, the decision included."""
    context = scene.rob.peer("memory_context", delivery_id=delivery_id)
    assert (context["message_id"], context["kind"]) == (question, "request")
    decision = context["human_decision"]
    assert decision["action"] == "redirect"
    assert decision["decided_by"].startswith("human:")
    assert INSTRUCTIONS not in decision.values()
    ambiguous = scene.ada.refused("memory_context", message_id=question)
    assert (ambiguous["reason"], ambiguous["status"]) == (refusals.AMBIGUOUS_DELIVERY, 409)
