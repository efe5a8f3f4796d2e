"""Direct messages through the tools of channels: their participants find them, nobody else does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentbus.errors import BusError, NotFoundError, ValidationError
from agentbus.limits import NAME_BYTES
from tests.bus_fixture import BusSession
from tests.eventually import eventually
from tests.integration.in_process import InProcessBus, in_process_bus
from tests.peer_sessions import PeerSession

LONGEST_NAME = "k" * NAME_BYTES


@pytest.fixture(params=["redis", "sqlite"])
def bus(request: pytest.FixtureRequest) -> Iterator[InProcessBus]:
    with in_process_bus(search_engine=request.param) as bus:
        yield bus


def found(session: BusSession, **query: Any) -> list[str]:
    messages = session.call("search", **query)["messages"]
    return [message["content"] for message in messages]


def read(session: BusSession, channel: str) -> list[str]:
    messages = session.call("history", channel=channel)["messages"]
    return [message["content"] for message in messages]


def one(session: BusSession, message_id: str) -> dict[str, Any]:
    message: dict[str, Any] = session.call("history", message_id=message_id)["message"]
    return message


def refusal(session: BusSession, operation: str, **arguments: Any) -> BusError:
    with pytest.raises(BusError) as caught:
        session.call(operation, **arguments)
    return caught.value


def test_a_direct_message_is_found_by_its_participants_only(bus: InProcessBus) -> None:
    sam, kim, ann, eve = (bus.attach(name) for name in ("Sam", LONGEST_NAME, "Ann", "Eve"))
    inboxes = {"Ann": ann, LONGEST_NAME: kim}
    sent = PeerSession(sam).peer(
        "send",
        to=["Ann", LONGEST_NAME],
        body="the secret plan",
        thread_id="plans",
        idempotency_key="k",
    )
    message_id = sent["message_id"]
    eventually(lambda: found(sam, text="secret"), what="the index of it")
    for name, session in inboxes.items():
        assert found(session, text="secret") == ["the secret plan"]
        assert found(session, thread="plans", channel=f"@{name}") == ["the secret plan"]
        assert read(session, f"@{name}") == ["the secret plan"]
        assert one(session, message_id)["content"] == "the secret plan"
    assert found(sam, text="secret") == ["the secret plan"], "who sent it finds it, too"
    assert one(sam, message_id)["content"] == "the secret plan"

    for query in ({"text": "secret"}, {"thread": "plans"}, {"sender": "Sam"}, {"type": "info"}):
        assert found(eve, **query) == []
    for session in (*inboxes.values(), sam, eve):
        listed = [row["channel"] for row in session.call("list_channels")["channels"]]
        assert listed == ["general"]
    for name in inboxes:
        for operation in ("search", "history"):
            refused = refusal(eve, operation, channel=f"@{name}")
            absent = refusal(eve, operation, channel="@Eva")
            assert isinstance(refused, NotFoundError)
            assert refused.message.replace(name, "Eva") == absent.message
        for operation, more in (("send", {"content": "x"}), ("subscribe", {"from": "beginning"})):
            error = refusal(eve, operation, channel="@Ann", **more)
            assert isinstance(error, ValidationError)
    hidden = refusal(eve, "history", message_id=message_id)
    absent = refusal(eve, "history", message_id="never-was")
    assert isinstance(hidden, NotFoundError)
    assert hidden.message.replace(message_id, "never-was") == absent.message
    assert isinstance(refusal(eve, "get_memory", memory_id=message_id), NotFoundError)
    public = eve.call("send", channel="general", content="so?", reply_to=message_id)
    assert "thread" not in one(eve, public["message_id"]), "a guess at an id tells nothing"
