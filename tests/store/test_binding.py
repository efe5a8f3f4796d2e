"""Attaching: agent, session, generation, display name, first subscription."""

from __future__ import annotations

from typing import Any

from agentbus.store.changes import BindSession, SubscriptionOpened
from tests.store.bus import Bus


def test_a_first_attach_makes_agent_session_and_a_subscription_of_general(bus: Bus) -> None:
    earlier = bus.attach("Kim", "c9")
    bus.store.apply([earlier.send(), earlier.send()])
    bound = bus.attach().bound
    assert bound.resumed is False
    assert bound.display_name == "Sam"
    (row,) = bound.subscriptions
    assert (row.channel, row.handed_off, row.confirmed) == ("general", 2, 2)
    assert bus.reader().subscriptions(bound.session_id) == bound.subscriptions


def test_the_first_subscription_is_a_fact_and_never_comes_back_by_itself(bus: Bus) -> None:
    sam = bus.attach()
    opened = bus.done(BindSession("Kim", sam.bound.identity, frozenset())).facts
    assert [type(fact) for fact in opened] == [SubscriptionOpened]
    bus.done(sam.unsubscribe("general"))
    assert bus.attach().bound.subscriptions == ()


def test_every_attach_gets_the_next_generation_of_the_whole_bus(bus: Bus) -> None:
    generations = [
        bus.attach(agent, conversation).bound.generation
        for agent, conversation in (("Sam", "c1"), ("Kim", "c2"), ("Sam", "c1"))
    ]
    assert generations == [1, 2, 3]
    assert bus.store.last_generation == 3
    bus.reopen()
    assert bus.attach().bound.generation == 4


def test_a_session_is_found_again_by_its_native_identity(bus: Bus) -> None:
    first = bus.attach().bound
    bus.reopen()
    again = bus.attach().bound
    assert again.resumed
    assert (again.session_id, again.agent_id) == (first.session_id, first.agent_id)
    others = [
        bus.attach(conversation="c2"),
        bus.attach(application="claude-code"),
        bus.attach(child="k"),
        bus.attach("Kim"),
    ]
    assert len({other.session_id for other in others} | {first.session_id}) == 5
    assert [other.bound.agent_id == first.agent_id for other in others] == [True, True, True, False]


def test_a_name_in_use_is_never_taken_and_the_old_one_comes_back_if_free(bus: Bus) -> None:
    bus.attach(conversation="c1")
    second = bus.attach(conversation="c2", in_use=frozenset({"Sam"}))
    assert second.bound.display_name == "Sam2"
    assert bus.attach(conversation="c2").bound.display_name == "Sam2"
    crowded = bus.attach(conversation="c2", in_use=frozenset({"Sam", "Sam2"}))
    assert crowded.bound.display_name == "Sam3"


def test_a_preferred_name_is_for_sessions_without_one(bus: Bus) -> None:
    assert bus.attach(conversation="c2", preferred_name="Sam7").bound.display_name == "Sam7"
    assert bus.attach(conversation="c2", preferred_name="Sam8").bound.display_name == "Sam7"


def test_a_child_is_named_after_its_parent_role_and_repository(bus: Bus) -> None:
    parent = bus.attach(in_use=frozenset({"Sam"}))
    fields: dict[str, Any] = {
        "parent": parent.session_id,
        "role": "implement804",
        "repository": "/home/u/src/tmi",
    }
    child = bus.attach(child="k1", **fields)
    assert child.bound.display_name == "Sam2-implement804 (tmi)"
    twin = bus.attach(child="k2", in_use=frozenset({child.bound.display_name}), **fields)
    assert twin.bound.display_name == "Sam2-implement804-2 (tmi)"


def test_what_a_resume_does_not_know_is_kept(bus: Bus) -> None:
    parent = bus.attach()
    bus.attach(child="k", parent=parent.session_id, role="review", repository="/src/tmi")
    again = bus.attach(child="k").bound
    assert (again.display_name, again.repository) == ("Sam-review (tmi)", "/src/tmi")
    moved = bus.attach(child="k", repository="/src/other").bound
    assert moved.repository == "/src/other"
    (row,) = (row for row in bus.reader().sessions() if row.child == "k")
    assert (row.parent, row.role, row.repository) == (parent.session_id, "review", "/src/other")


def test_a_child_of_an_unknown_parent_is_named_after_its_agent(bus: Bus) -> None:
    assert bus.attach(child="k").bound.display_name == "Sam-child"


def test_two_attaches_in_one_batch_see_each_other(bus: Bus) -> None:
    identity = bus.attach("Kim").bound.identity
    bind = BindSession("Sam", identity, frozenset())
    first, second = bus.store.apply([bind, bind])
    assert first.result.session_id == second.result.session_id  # type: ignore[union-attr]
    assert [first.result.resumed, second.result.resumed] == [False, True]  # type: ignore[union-attr]
