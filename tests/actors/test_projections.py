"""A Redis that was told step by step, one that replays and one that is rebuilt are the same."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.projections import (
    ContentFact,
    memories,
    memory_changes,
    messages,
    messages_by_channel,
    projection_of,
)
from agentbus.ids import Sequence
from agentbus.projection import keys
from agentbus.projection.rebuild import clear, rebuild, replay
from agentbus.projection.streams import StreamWriter
from agentbus.store.changes import Done
from agentbus.store.reader import Reader
from tests.redis_fixture import PrivateRedis, private_redis, set_mark
from tests.store.bus import Bus, Speaker


@pytest.fixture(scope="module")
def redis_module() -> Iterator[PrivateRedis]:
    with private_redis() as running:
        yield running


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(["general", "facts", "plans"])),
        st.tuples(st.just("edit"), st.integers(0, 5)),
        st.tuples(st.just("delete"), st.integers(0, 5)),
        st.tuples(st.just("purge")),
    ),
    min_size=1,
    max_size=30,
)


def change_of(speaker: Speaker, step: Any, known: list[str]) -> Any:
    match step:
        case ("send", channel):
            return speaker.send(channel, channel, subject="s")
        case ("edit", number) if known:
            return speaker.edit(known[number % len(known)], f"edit {number}", subject=None)
        case ("delete", number) if known:
            return speaker.delete(known[number % len(known)])
        case _:
            return speaker.send("nothing to change")


def run(bus: Bus, speaker: Speaker, steps: list[Any]) -> list[ContentFact]:
    """Apply the steps; the facts of those that succeeded."""
    facts: list[ContentFact] = []
    known: list[str] = []
    for step in steps:
        if step == ("purge",):
            bus.clock.advance(hours=bus.config.tombstone_min_hours)
            bus.prune("tombstones", 2)
            continue
        (outcome,) = bus.store.apply([change_of(speaker, step, known)])
        if isinstance(outcome, Done):
            facts += [fact for fact in outcome.facts if isinstance(fact, ContentFact)]
            if step[0] == "send" and step[1] != "general":
                known.append(outcome.result["message_id"])
    return facts


def content(running: PrivateRedis) -> dict[bytes, Any]:
    """Everything but the marker."""
    client = running.client
    found: dict[bytes, Any] = {}
    for key in client.keys("*"):
        if key.startswith(b"c:"):
            if entries := client.xrange(key):
                found[key] = entries
        elif key.startswith(b"r:"):
            found[key] = client.get(key)
        elif key.startswith(b"m:"):
            found[key] = client.hgetall(key)
    return found


def marked(running: PrivateRedis) -> bytes | None:
    value = running.client.hget(keys.MARKER, keys.MARKER_SEQUENCE)
    assert value is None or isinstance(value, bytes)
    return value


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(steps=_STEPS, lost=st.integers(0, 30))
def test_however_redis_was_filled_it_holds_the_same(
    redis_module: PrivateRedis, steps: list[Any], lost: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bus = Bus(Path(folder), sqlite_synchronous="normal")
        try:
            speaker = bus.attach()
            for channel in ("facts", "plans"):
                bus.done(speaker.make(channel, "memory"))
            facts = run(bus, speaker, steps)
            with closing(Reader(bus.path)) as store:
                compare(redis_module, bus, store, facts, lost)
        finally:
            bus.close()


def compare(
    running: PrivateRedis, bus: Bus, store: Reader, facts: list[ContentFact], lost: int
) -> None:
    search = running.info.search
    writer = StreamWriter(running.client, search=search)
    through = bus.store.last_sequence

    def fill(told: list[ContentFact]) -> None:
        clear(running.client, lambda: None)
        set_mark(writer, bus.store.bus_id, Sequence(0))
        for fact in told:
            writer.project([projection_of(fact, search=search)], fact.sequence)

    fill(facts)
    step_by_step = content(running)

    known_until = facts[: len(facts) - lost] if lost < len(facts) else []
    after = known_until[-1].sequence if known_until else Sequence(0)
    if after >= store.purged_through():
        fill(known_until)
        replay(
            writer,
            memory_changes(store, after, search=search),
            messages(store, after, search=search),
            through,
            {},
            0,
            lambda done, total: None,
        )
        assert content(running) == step_by_step
        assert marked(running) == str(through).encode()

    clear(running.client, lambda: None)
    rebuild(
        writer,
        bus.store.bus_id,
        chain(
            memories(store, Sequence(0), search=search), messages_by_channel(store, search=search)
        ),
        through,
        {},
        0,
        lambda done, total: None,
    )
    assert content(running) == step_by_step
