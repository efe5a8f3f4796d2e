"""Direct work between agents as their models see it: real adapters, a real daemon."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from agentbus.ids import new_id
from tests.adapter.adapter_process import AdapterProcess
from tests.bus_fixture import ThrowAwayBus
from tests.eventually import eventually
from tests.signals import freeze, kill

LEASE_S = 5
"""The shortest that there is."""

Start = Callable[..., AdapterProcess]


@pytest.fixture(scope="module")
def peer_bus() -> Iterator[ThrowAwayBus]:
    """One daemon for the tests of this file; each of them has agents of its own."""
    with ThrowAwayBus(peer_lease_seconds=LEASE_S, max_message_kib=128) as bus:
        yield bus


@pytest.fixture
def start(peer_bus: ThrowAwayBus) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(agent: str, **options: Any) -> AdapterProcess:
            adapter = stack.enter_context(started(peer_bus, agent, **options))
            adapter.use("whoami")
            return adapter

        yield begin


def started(bus: ThrowAwayBus, agent: str, **options: Any) -> AdapterProcess:
    adapter = AdapterProcess(bus.environment, bus.config_path, agent=agent, **options)
    adapter.initialize()
    return adapter


def key() -> str:
    return new_id()


def ask(asker: AdapterProcess, to: list[str], body: str = "Look at this", **more: Any) -> Any:
    sent = asker.peer("send", to=to, body=body, kind="request", idempotency_key=key(), **more)
    assert sent["status"] == "accepted", sent
    return sent


def take(worker: AdapterProcess, **args: Any) -> Any:
    """The delivery that a wait gives."""
    told = worker.peer("wait", **{"timeout": 30, **args})
    assert told["delivery"] is not None, told
    return told["delivery"]


def decide(bus: ThrowAwayBus, delivery_id: str, action: str, **more: Any) -> None:
    """As a person does, about the work that rests."""
    with bus.client() as person:
        question = person.request("human_show", {"id": delivery_id}, 10.0)
        person.request(
            "human_decide",
            {
                "intervention_id": question["intervention_id"],
                "version": question["version"],
                "action": action,
                **more,
            },
            10.0,
        )


def test_an_exchange_from_discovery_to_a_late_answer(peer_bus: ThrowAwayBus, start: Start) -> None:
    """Discover, request, wait, progress, checkpoint, a person's decision, a lapsed lease, a reply
    that is repeated with its key, and a collection that goes on when the last answer is there."""
    ann = start("Ann-1")
    rob = start("Rob-1", options=["--capability", "review", "--capability", "review"])
    eve = start("Eve-1")

    found = ann.peer("discover", capability="review")
    (card,) = found["agents"]
    assert (card["agent"], card["state"], card["capabilities"]) == ("Rob-1", "ready", ["review"])
    assert found["has_more"] is False

    request = ask(ann, [card["agent_id"], "Eve-1"], "Review the change")
    assert len(request["recipients"]) == 2
    message_id = request["message_id"]

    work = take(rob)
    delivery_id = work["delivery_id"]
    assert work["envelope"]["body"] == "Review the change"
    assert work["envelope"]["from"]["agent"] == "Ann-1"
    assert (work["attempt"], work["state"]) == (1, "leased")
    again = take(rob, timeout=0)
    assert (again["delivery_id"], again["attempt"]) == (delivery_id, 1)

    said = {"delivery_id": delivery_id, "summary": "Reading", "idempotency_key": key()}
    assert rob.peer("progress", **said)["extension_count"] == 1
    assert rob.peer("progress", **said)["extension_count"] == 1, "a repeat extends nothing"
    status = ann.peer("status", message_id=message_id)
    assert {one["reply_state"] for one in status["deliveries"]} == {"awaiting"}

    risky = {
        "delivery_id": delivery_id,
        "summary": "Found a table nobody uses",
        "proposed_action": "Drop it",
        "action_type": "destructive",
        "idempotency_key": key(),
    }
    assert rob.peer("checkpoint", **risky)["status"] == "paused"
    refused = rob.peer("progress", delivery_id=delivery_id, summary="x", idempotency_key=key())
    assert refused["error"]["state"] == "paused"
    assert refused["error"]["reason"] == "HUMAN_REQUIRED"
    (card,) = ann.peer("discover", capability="review", available_only=False)["agents"]
    assert card["state"] == "waiting_for_user"
    decide(peer_bus, delivery_id, "redirect", instructions="Leave the table, report it")

    resumed = take(rob)
    assert resumed["delivery_id"] == delivery_id
    assert resumed["resume_context"]["instructions"] == "Leave the table, report it"
    assert resumed["envelope"]["parts"][0]["type"] == "caura_human_decision"

    freeze(rob.process.pid)
    try:
        eventually(
            lambda: _state(ann, message_id, "Rob-1") == "queued", 30.0, what="the lease lapses"
        )
    finally:
        rob.process.send_signal(signal.SIGCONT)
    answer = {
        "delivery_id": delivery_id,
        "body": "One table is unused",
        "idempotency_key": key(),
    }
    replied = rob.peer("reply", **answer)
    assert replied["status"] == "accepted", replied
    repeated = rob.peer("reply", **answer)
    assert repeated["message_id"] == replied["message_id"]
    assert repeated["duplicate"] is True
    changed = rob.peer("reply", **{**answer, "body": "Nothing"})
    assert changed["error"]["reason"] == "COLLABORATION_IDEMPOTENCY_KEY_REUSED"
    assert changed["error"]["status"] == 409

    first = ann.peer("collect", message_id=message_id, timeout=0)
    assert (first["outcome"], first["expected"]) == ("partial", 2)
    assert [one["body"] for one in first["answers"]] == ["One table is unused"]
    assert list(first["pending"]) == ["Eve-1"]
    late = take(eve)
    eve.peer("reply", delivery_id=late["delivery_id"], body="Agreed", idempotency_key=key())
    last = ann.peer("collect", message_id=message_id)
    assert last["outcome"] == "complete"
    assert [one.get("already_presented", False) for one in last["answers"]] == [True, False]
    assert last["answers"][1]["body"] == "Agreed"
    assert ann.peer("wait", timeout=0)["delivery"] is None, "both were shown by collect"


def _state(asker: AdapterProcess, message_id: str, agent: str) -> str:
    deliveries = asker.peer("status", message_id=message_id)["deliveries"]
    (state,) = [one["state"] for one in deliveries if one["recipient"]["agent"] == agent]
    return str(state)


@pytest.mark.parametrize("first", ["collect", "wait"])
def test_no_text_of_an_answer_is_shown_twice_however_soon_one_asks_again(
    start: Start, first: str
) -> None:
    ada, ben = start(f"Ada {first}"), start(f"Ben {first}")
    for number in range(4):  # as many as one may ask
        question = ask(ada, [f"Ben {first}"])["message_id"]
        work = take(ben)["delivery_id"]
        ben.peer("reply", delivery_id=work, body=f"answer {number}", idempotency_key=key())
        if first == "wait":
            response = take(ada)
            assert response["envelope"]["body"] == f"answer {number}"
        else:
            (answer,) = ada.peer("collect", message_id=question)["answers"]
            assert answer["body"] == f"answer {number}"
        for _ in range(2):
            (answer,) = ada.peer("collect", message_id=question)["answers"]
            assert (answer["body"], answer["already_presented"]) == (None, True)
        if first == "wait":
            ada.peer("ack", delivery_id=response["delivery_id"])


def test_a_holder_that_stood_still_finds_its_work_with_another_session(start: Start) -> None:
    ann = start("Ann-2")
    first, second = start("Rob-2", session="one"), start("Rob-2", session="two")
    request = ask(ann, ["Rob-2"])
    delivery_id = take(first)["delivery_id"]
    freeze(first.process.pid)
    try:
        taken = take(second, timeout=40)
    finally:
        first.process.send_signal(signal.SIGCONT)
    assert (taken["delivery_id"], taken["attempt"]) == (delivery_id, 2)
    lost = first.peer("reply", delivery_id=delivery_id, body="mine", idempotency_key=key())
    assert lost["error"]["state"] == "unavailable", lost
    done = second.peer("reply", delivery_id=delivery_id, body="ours", idempotency_key=key())
    assert done["status"] == "accepted"
    collected = ann.peer("collect", message_id=request["message_id"])
    assert [one["body"] for one in collected["answers"]] == ["ours"]
    late = first.peer("ack", delivery_id=delivery_id)
    assert late["state"] == "acked", "what is finished is so for every session of the agent"


def test_an_adapter_that_was_killed_leaves_its_work_to_the_next_one_of_its_session(
    start: Start,
) -> None:
    ann, rob = start("Ann-3"), start("Rob-3", session="work")
    request = ask(ann, ["Rob-3"])
    delivery_id = take(rob)["delivery_id"]
    kill(rob.process.pid)
    again = start("Rob-3", session="work")
    done = again.peer("reply", delivery_id=delivery_id, body="done", idempotency_key=key())
    assert done["status"] == "accepted", done
    collected = ann.peer("collect", message_id=request["message_id"])
    assert [one["body"] for one in collected["answers"]] == ["done"]


def test_a_restart_of_the_daemon_neither_loses_nor_doubles_held_work() -> None:
    with ThrowAwayBus() as bus, ExitStack() as stack:
        ann = stack.enter_context(started(bus, "Ann"))
        rob = stack.enter_context(started(bus, "Rob"))
        other = stack.enter_context(started(bus, "Rob", session="other"))
        rob.use("whoami")
        other.use("whoami")
        request = ask(ann, ["Rob"])
        delivery_id = take(rob)["delivery_id"]
        bus.kill()
        bus.start()
        assert other.peer("wait", timeout=1)["delivery"] is None
        again = take(rob, timeout=0)
        assert (again["delivery_id"], again["attempt"]) == (delivery_id, 1)
        said = rob.peer("progress", delivery_id=delivery_id, summary="on", idempotency_key=key())
        assert said["status"] == "leased", said
        done = rob.peer("reply", delivery_id=delivery_id, body="done", idempotency_key=key())
        assert done["status"] == "accepted"
        assert ann.peer("collect", message_id=request["message_id"])["outcome"] == "complete"


def test_new_instructions_come_before_an_answer_that_did_not_know_them(
    peer_bus: ThrowAwayBus, start: Start
) -> None:
    ann, rob = start("Ann-4"), start("Rob-4")
    ask(ann, ["Rob-4"])
    delivery_id = take(rob)["delivery_id"]
    assert rob.peer("human", delivery_id=delivery_id, reason="unsure")["status"] == "paused"
    blocked = rob.peer("wait", timeout=0)
    assert blocked["delivery"] is None
    assert "paused until a person decides" in blocked["blocked"]
    decide(peer_bus, delivery_id, "nudge", instructions="Be brief")
    told = rob.peer("reply", delivery_id=delivery_id, body="long", idempotency_key=key())
    assert told["error"]["state"] == "resumed", told
    assert told["error"]["detail"]["resume_context"]["instructions"] == "Be brief"
    done = rob.peer("reply", delivery_id=delivery_id, body="short", idempotency_key=key())
    assert done["status"] == "accepted"


def test_a_plain_approval_lets_an_answer_pass_at_once(peer_bus: ThrowAwayBus, start: Start) -> None:
    ann, rob = start("Ann-5"), start("Rob-5")
    ask(ann, ["Rob-5"])
    delivery_id = take(rob)["delivery_id"]
    rob.peer("human", delivery_id=delivery_id, reason="unsure")
    decide(peer_bus, delivery_id, "approve")
    done = rob.peer("reply", delivery_id=delivery_id, body="done", idempotency_key=key())
    assert done["status"] == "accepted", done


def test_work_that_a_person_rejects_is_unavailable(peer_bus: ThrowAwayBus, start: Start) -> None:
    ann, rob = start("Ann-6"), start("Rob-6")
    request = ask(ann, ["Rob-6"])
    delivery_id = take(rob)["delivery_id"]
    rob.peer("human", delivery_id=delivery_id, reason="unsure")
    decide(peer_bus, delivery_id, "reject")
    told = rob.peer("reply", delivery_id=delivery_id, body="done", idempotency_key=key())
    assert told["error"]["state"] == "unavailable"
    collected = ann.peer("collect", message_id=request["message_id"])
    assert collected["outcome"] == "no_reply"
    assert list(collected["closed"]) == ["Rob-6"]


def test_what_waits_is_counted_in_each_result_and_is_no_message(start: Start) -> None:
    ann, rob = start("Ann-7"), start("Rob-7")
    assert "peer" not in rob.use("whoami")
    ask(ann, ["Rob-7"])
    eventually(lambda: rob.use("whoami").get("peer") == 1, 20.0, what="the count of what waits")
    received = rob.use("receive")
    assert received["messages"] == []
    assert all(one["kind"] != "inbox" for one in rob.use("list_channels")["channels"])
    delivery_id = take(rob)["delivery_id"]
    rob.peer("ack", delivery_id=delivery_id)
    eventually(lambda: "peer" not in rob.use("whoami"), 20.0, what="nothing waits")


def test_a_wait_that_the_client_cancels_takes_nothing(start: Start) -> None:
    ann = start("Ann-8")
    one, two = start("Rob-8", session="one"), start("Rob-8", session="two")
    waiting = one.call("peer", op="wait", args={"timeout": 50})
    eventually(
        lambda: [
            entry
            for entry in ann.peer("discover", available_only=False)["agents"]
            if entry["agent"] == "Rob-8" and entry["state"] == "ready"
        ],
        20.0,
    )
    one.cancel(waiting)
    one.use("whoami")
    ask(ann, ["Rob-8"])
    taken = take(two)
    assert taken["attempt"] == 1
    two.peer("ack", delivery_id=taken["delivery_id"])


def test_a_wait_is_woken_by_what_arrives(start: Start) -> None:
    ann, rob = start("Ann-9"), start("Rob-9")
    waiting = rob.call("peer", op="wait", args={"timeout": 50})
    ask(ann, ["Rob-9"], "now")
    told = rob.answer(waiting)
    assert told["delivery"]["envelope"]["body"] == "now"
    assert told["waited_seconds"] < 40


def test_the_longest_body_goes_through_and_is_read_to_its_end(start: Start) -> None:
    ann, rob = start("Ann-10"), start("Rob-10")
    text = "".join(f"{number:07d}\n" for number in range(65_536 // 8))
    sent = ask(ann, ["Rob-10"], text)
    longer = {"to": ["Rob-10"], "body": text + "x", "idempotency_key": key()}
    assert ann.peer("send", **longer)["error"]["code"] == "validation"
    envelope = take(rob)["envelope"]
    read = envelope["body"]
    missing = envelope["truncated"]
    while missing is not None:
        page = rob.use("history", message_id=sent["message_id"], offset=len(read))
        read += page["message"]["content"]
        missing = page["next_offset"]
    assert read == text


def test_recipients_that_cannot_be_are_refused_before_anything_is_sent(start: Start) -> None:
    ann = start("Ann-11")
    me = ann.use("whoami")["session_id"]
    for to, code in (
        (["Nobody-11"], "not_found"),
        ([me], "validation"),
        (["human:ada"], "not_found"),
        (["*", "Ann-11"], "validation"),
    ):
        refused = ann.peer("send", to=to, body="hello", idempotency_key=key())
        assert refused["error"]["code"] == code, refused
    assert ann.peer("recent")["messages"] == []
    assert ann.peer("threads")["threads"] == []


def test_another_session_of_the_own_agent_can_be_asked_and_asks_nobody_twice(
    start: Start,
) -> None:
    one, two = start("Ann-12", session="one"), start("Ann-12", session="two")
    request = ask(one, ["Ann-12"])
    assert one.peer("wait", timeout=0)["delivery"] is None, "nobody claims what it sent itself"
    work = take(two)
    asked_back = two.peer(
        "send",
        to=[one.use("whoami")["session_id"]],
        body="and you?",
        kind="request",
        idempotency_key=key(),
    )
    assert asked_back["error"]["reason"] == "CONSULTATION_CYCLE"
    reply_to = work["envelope"]["id"]
    answer = {"to": ["Ann-12"], "body": "done", "kind": "response", "reply_to": reply_to}
    done = two.peer("send", **answer, idempotency_key=key())
    assert done["status"] == "accepted", done
    assert two.peer("ack", delivery_id=work["delivery_id"])["state"] == "acked"
    collected = one.peer("collect", message_id=request["message_id"])
    assert [entry["body"] for entry in collected["answers"]] == ["done"]


def test_presence_is_hidden_but_the_agent_can_still_be_asked(start: Start) -> None:
    ann = start("Ann-13")
    rob = start("Rob-13", options=["--no-presence", "--capability", "hide-and-seek"])
    assert ann.peer("discover", capability="hide-and-seek")["agents"] == []
    described = rob.peer("describe", description="Knows\nwhere things are")
    assert "error" not in described
    (known,) = [one for one in ann.peer("agents")["agents"] if one["agent"] == "Rob-13"]
    assert known["description"] == "Knows\nwhere things are"
    assert known["state"] == "offline"
    ask(ann, ["Rob-13"])
    assert take(rob)


def test_the_context_of_work_is_metadata_of_a_memory_as_it_is(start: Start) -> None:
    ann, rob = start("Ann-14"), start("Rob-14")
    sent = ask(ann, ["Rob-14"])
    delivery_id = take(rob)["delivery_id"]
    rob.peer("ack", delivery_id=delivery_id)
    context = rob.peer("memory_context", delivery_id=delivery_id)
    assert context["source"] == "caura-bus"
    assert context["message_id"] == sent["message_id"]
    assert {"you", "pending"}.isdisjoint(context)
    rob.use("create_channel", name="rulings-14", kind="memory")
    noted = rob.use("send", channel="rulings-14", content="It is so", metadata=context)
    memory = ann.use("get_memory", memory_id=noted["message_id"])["memory"]
    assert memory["metadata"] == context


def test_a_send_to_everybody_names_each_agent_but_the_sender() -> None:
    with ThrowAwayBus(peer_allow=["Kim", "Lee", "Ann"]) as bus, ExitStack() as stack:
        ann, kim, lee, max_ = (
            stack.enter_context(started(bus, name)) for name in ("Ann", "Kim", "Lee", "Max")
        )
        nobody = ann.peer("send", to=["*"], body="hello", idempotency_key=key())
        assert nobody["error"]["code"] == "not_found"
        for adapter in (kim, lee, max_):
            adapter.use("whoami")
        everybody = {"to": ["*"], "body": "hello", "idempotency_key": key()}
        sent = ann.peer("send", **everybody)
        assert len(sent["recipients"]) == 2, sent
        assert ann.peer("send", **everybody)["duplicate"] is True
        assert take(kim)["envelope"]["body"] == take(lee)["envelope"]["body"] == "hello"
        assert max_.peer("wait", timeout=0)["delivery"] is None
        told = ann.peer("send", to=["Max"], body="psst", idempotency_key=key())
        assert told["error"]["reason"] == "PEER_NOT_ALLOWED"


def test_what_is_no_secret_of_others_stays_with_its_participants(start: Start) -> None:
    ann, rob, eve = start("Ann-15"), start("Rob-15"), start("Eve-15")
    sent = ask(ann, ["Rob-15"])
    delivery_id = take(rob)["delivery_id"]
    for op, args in (
        ("status", {"message_id": sent["message_id"]}),
        ("collect", {"message_id": sent["message_id"], "timeout": 0}),
        ("ack", {"delivery_id": delivery_id}),
        ("memory_context", {"delivery_id": delivery_id}),
    ):
        assert eve.peer(op, **args)["error"]["code"] == "not_found", op
    assert eve.peer("recent")["messages"] == []
    listed = [one["message_id"] for one in ann.peer("requests")["requests"]]
    assert listed == [sent["message_id"]]
    assert rob.peer("requests")["requests"] == []
