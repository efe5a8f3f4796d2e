"""Who can be asked, as agents see each other: states, pages, capabilities, who hides."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentbus.errors import DiscoveryDisabledError, ValidationError
from agentbus.limits import NOT_LISTENING_SECONDS, PEER_CAPABILITIES
from agentbus.transport.client import Client
from tests.eventually import PATIENCE_S, eventually
from tests.integration.in_process import InProcessBus, in_process_bus
from tests.peer_sessions import PeerSession


@pytest.fixture
def bus() -> Iterator[InProcessBus]:
    with in_process_bus(capabilities=["review"]) as bus:
        yield bus


def attach(
    bus: InProcessBus, agent: str, conversation: str | None = None, **changes: Any
) -> PeerSession:
    return PeerSession(bus.attach(agent, conversation or f"{agent}-1", **changes))


def agents(answer: dict[str, Any]) -> dict[str, str]:
    return {one["agent"]: one["state"] for one in answer["agents"]}


def states(session: PeerSession) -> dict[str, str]:
    return agents(session.peer("discover", available_only=False))


def test_the_directory_tells_what_each_agent_is_doing(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    attach(bus, "Leo").session.close()
    eventually(lambda: states(sam) == {"Kim": "ready", "Leo": "offline"})
    assert agents(sam.peer("discover")) == {"Kim": "ready"}
    sam.ask("Kim", body="work")
    held = kim.claim()["delivery_id"]
    assert states(sam)["Kim"] == "busy"
    kim.peer("human", delivery_id=held, reason="unsure")
    assert states(sam)["Kim"] == "waiting_for_user"
    assert agents(sam.peer("discover")) == {}
    assert agents(sam.peer("agents")) == {"Kim": "waiting_for_user", "Leo": "offline"}


def test_who_has_not_called_for_long_does_not_listen_unless_a_wait_is_armed(
    bus: InProcessBus,
) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")

    def pass_without_calls(seconds: float) -> None:
        for _ in range(round(seconds / 10)):
            bus.clock.advance(10)
            for session in (sam, kim):
                session.session.client.request("heartbeat", {}, PATIENCE_S)

    pass_without_calls(NOT_LISTENING_SECONDS - 10)
    assert states(sam)["Kim"] == "ready"
    pass_without_calls(10)
    assert states(sam)["Kim"] == "not_listening"
    with Client.connect(bus.paths.socket, PATIENCE_S) as client, ThreadPoolExecutor(1) as pool:
        question = {"wait_ms": 1_000, "conversation": "Kim-1"}
        wait = pool.submit(client.request, "wait", question, PATIENCE_S)
        eventually(lambda: states(sam)["Kim"] == "ready", what="somebody would wake it")
        bus.clock.advance(1)
        wait.result(PATIENCE_S)
    assert states(sam)["Kim"] == "not_listening"
    kim.peer("threads")
    assert states(sam)["Kim"] == "ready"


def test_the_directory_comes_in_pages_by_name(bus: InProcessBus) -> None:
    sam = attach(bus, "Sam")
    names = [f"agent-{n:02}" for n in range(7)]
    for name in names:
        attach(bus, name)
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = sam.peer("agents", limit=3, **cursor)
        seen += [one["agent"] for one in page["agents"]]
        if not page["has_more"]:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert (seen, page["next_cursor"]) == (names, None)


def test_a_page_has_all_that_it_may_however_many_are_passed_over(bus: InProcessBus) -> None:
    sam = attach(bus, "Sam")
    for n in range(6):
        busy = attach(bus, f"busy-{n}")
        sam.peer("send", to=[busy.agent], body="work", idempotency_key=busy.agent)
        busy.claim()
    for name, capabilities in (("ready", ["sql"]), ("ready too", ["sql"])):
        attach(bus, name, capabilities=capabilities, repository="parser")
    for wanted in (
        {},
        {"capability": "sql", "available_only": False},
        {"fleet_id": "parser", "available_only": False},
    ):
        first = sam.peer("discover", limit=1, **wanted)
        assert (agents(first), first["has_more"]) == ({"ready": "ready"}, True)
        second = sam.peer("discover", limit=1, cursor=first["next_cursor"], **wanted)
        assert (agents(second), second["has_more"]) == ({"ready too": "ready"}, False)


def test_an_agent_is_busy_while_nothing_that_is_sent_to_it_would_be_taken(
    bus: InProcessBus,
) -> None:
    sam, one, two = attach(bus, "Sam"), attach(bus, "Kim", "Kim-1"), attach(bus, "Kim", "Kim-2")

    def kim() -> tuple[str, list[str]]:
        (entry,) = sam.peer("discover", available_only=False)["agents"]
        assert entry["available"] is (entry["state"] == "ready")
        return entry["state"], [session["state"] for session in entry["sessions"]]

    sam.ask(one.session.facts["session_id"], body="for you alone")
    held = one.claim()["delivery_id"]
    assert kim() == ("ready", ["busy", "ready"])
    one.peer("ack", delivery_id=held)
    sam.ask("Kim", body="for any of you")
    held = one.claim()["delivery_id"]
    assert kim() == ("busy", ["busy", "ready"])
    sam.ask("Kim", body="later")
    assert "keeps later ones back" in two.peer("wait", timeout=0)["blocked"]
    one.peer("human", delivery_id=held, reason="unsure")
    assert kim() == ("waiting_for_user", ["waiting_for_user", "ready"])
    assert sam.peer("discover")["agents"] == []


@pytest.mark.parametrize("op", ["discover", "agents"])
def test_a_cursor_that_no_page_gave_is_refused(bus: InProcessBus, op: str) -> None:
    sam = attach(bus, "Sam")
    for cursor in ("abc", "0", "Sa"):
        with pytest.raises(ValidationError, match=f"^peer {op}: cursor is no cursor"):
            sam.peer(op, cursor=cursor)


@pytest.mark.parametrize(("name", "shown"), [(119, 119), (120, 120), (121, 120), (128, 120)])
def test_a_session_says_who_it_is_and_where_it_runs(
    bus: InProcessBus, name: int, shown: int
) -> None:
    sam = attach(bus, "Sam")
    attach(bus, "k" * name, "Kim-1")
    (entry,) = sam.peer("discover")["agents"]
    (session,) = entry["sessions"]
    assert entry["agent"] == "k" * name
    assert session["display_name"] == "k" * shown
    assert session["host"] == socket.gethostname()[:255]


@pytest.mark.parametrize(("name", "shown"), [(63, 63), (64, 64), (65, 64), (128, 64)])
def test_the_runtime_of_a_session_is_shown_within_its_bound(
    bus: InProcessBus, name: int, shown: int
) -> None:
    sam = attach(bus, "Sam")
    attach(bus, "Kim", application="c" * name)
    (entry,) = sam.peer("discover")["agents"]
    assert [one["runtime"] for one in entry["sessions"]] == ["c" * shown]


def test_a_directory_that_is_switched_off_says_so_and_names_still_work() -> None:
    with in_process_bus(discovery_enabled=False) as bus:
        sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
        for op in ("discover", "agents"):
            with pytest.raises(DiscoveryDisabledError):
                sam.peer(op)
        sam.ask("Kim", body="hello")
        assert kim.claim()["envelope"]["body"] == "hello"


def test_a_session_that_hides_is_not_shown_but_can_be_written_to(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim", presence=False)
    assert states(sam) == {"Kim": "offline"}
    assert agents(sam.peer("discover")) == {}
    sam.ask("Kim", body="hello")
    assert kim.claim()["envelope"]["body"] == "hello"


def test_a_session_does_not_see_itself_but_others_of_its_agent(bus: InProcessBus) -> None:
    sam = attach(bus, "Sam")
    assert states(sam) == {}
    other = attach(bus, "Sam", "Sam-2")
    (entry,) = sam.peer("discover")["agents"]
    assert [one["session_id"] for one in entry["sessions"]] == [other.session.facts["session_id"]]
    assert agents(sam.peer("agents")) == {}


def test_capabilities_of_the_session_and_of_the_configuration_are_found(
    bus: InProcessBus,
) -> None:
    sam = attach(bus, "Sam")
    kim = attach(bus, "Kim", capabilities=["sql", "review", "art"])
    (entry,) = sam.peer("discover", capability="sql")["agents"]
    assert (entry["agent"], entry["capabilities"]) == ("Kim", ["art", "review", "sql"])
    assert agents(sam.peer("discover", capability="SQL")) == {}
    assert agents(kim.peer("discover", capability="review")) == {"Sam": "ready"}


def test_capabilities_are_as_many_as_they_may_be(bus: InProcessBus) -> None:
    most = [f"c{n:02}" for n in range(PEER_CAPABILITIES - 1)]  # and one of the configuration
    attach(bus, "Lee", capabilities=most[1:])
    attach(bus, "Sam", capabilities=most)
    with pytest.raises(ValidationError, match=f"at most {PEER_CAPABILITIES}"):
        attach(bus, "Kim", capabilities=[*most, "one more"])


@pytest.mark.parametrize("label", ["", "x" * 81, "sql\x1b[31m", "s\x9bql", "a\rb"])
def test_a_capability_is_a_short_printable_text(bus: InProcessBus, label: str) -> None:
    with pytest.raises(ValidationError, match="a capability must"):
        attach(bus, "Kim", capabilities=[label])


def test_a_description_outlives_its_session_and_can_be_cleared(bus: InProcessBus) -> None:
    sam, kim = attach(bus, "Sam"), attach(bus, "Kim")
    kim.peer("describe", description="Knows the parser.")
    kim.session.close()
    eventually(lambda: states(sam) == {"Kim": "offline"})
    (entry,) = sam.peer("agents")["agents"]
    assert entry["description"] == "Knows the parser."
    attach(bus, "Kim").peer("describe", description=None)
    (entry,) = sam.peer("agents")["agents"]
    assert entry["description"] is None


def test_a_fleet_is_who_works_in_one_repository(bus: InProcessBus) -> None:
    sam = attach(bus, "Sam", repository="parser")
    attach(bus, "Kim", repository="parser")
    attach(bus, "Leo", repository="lexer")
    for op in ("discover", "agents"):
        assert agents(sam.peer(op, fleet_id="parser")) == {"Kim": "ready"}
        assert agents(sam.peer(op, fleet_id="nowhere")) == {}
