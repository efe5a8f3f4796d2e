"""What an attachment passes on of memories that change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.base import FutureReply
from actors.messages import CompareHeldMemories
from agentbus.encoding import decode_strict, encode
from agentbus.ids import MessageId, Sequence
from agentbus.protocol.session import HeldMemory
from tests.actors.stage import Stage, stage_on
from tests.eventually import PATIENCE_S
from tests.redis_fixture import PrivateRedis, private_redis
from tests.store.bus import Speaker


@pytest.fixture(scope="module")
def redis() -> Iterator[PrivateRedis]:
    with private_redis() as running:
        yield running


@pytest.fixture
def stage(tmp_path: Path, redis: PrivateRedis) -> Iterator[Stage]:
    with stage_on(tmp_path, redis) as stage:
        yield stage


@pytest.fixture
def facts(stage: Stage) -> Stage:
    """Sam is attached and subscribed to the memory channel `facts`; ada writes there."""
    stage.bus.done(stage.ada.make("facts", "memory"))
    stage.attach()
    stage.operate("subscribe", channel="facts")
    return stage


def create(stage: Stage, content: str = "first") -> tuple[str, int]:
    """A memory of ada's: its id and its position."""
    done = stage.bus.done(stage.ada.send(content, "facts"))
    stage.project(done)
    stage.settle()
    return done.result["message_id"], done.result["sequence"]


def edit(stage: Stage, memory_id: str, content: str, speaker: Speaker | None = None) -> None:
    stage.project(stage.bus.done((speaker or stage.ada).edit(memory_id, content)))
    stage.settle()


def compare(stage: Stage, *held: tuple[str, int]) -> Any:
    reply = FutureReply()
    asked = tuple(
        HeldMemory(7, Sequence(position), MessageId(memory_id), revision)
        for position, (memory_id, revision) in enumerate(held)
    )
    stage.tell(CompareHeldMemories(asked, reply))
    return decode_strict(encode(reply.get(PATIENCE_S)))


def test_what_was_sent_is_invalidated_with_its_new_text(facts: Stage) -> None:
    memory_id, position = create(facts)
    edit(facts, memory_id, "second")
    (told,) = facts.link.take("invalidate")
    assert (told["memory_id"], told["position"]) == (memory_id, position)
    assert told["subscription"] == facts.subscription("facts")
    assert told["envelope"]["content"] == "second"
    facts.project(facts.bus.done(facts.ada.delete(memory_id)))
    facts.settle()
    (told,) = facts.link.take("invalidate")
    assert told["envelope"] is None


def test_what_was_not_sent_yet_is_not_invalidated_and_comes_as_it_is(stage: Stage) -> None:
    stage.bus.done(stage.ada.make("facts", "memory"))
    stage.attach(window=(1, 1))
    stage.operate("subscribe", channel="facts")
    create(stage)
    waiting, position = create(stage, "waits for room")
    edit(stage, waiting, "second")
    assert stage.link.take("invalidate") == []
    stage.link.take("deliver")
    stage.grant(1, 1)
    (params,) = stage.deliveries()
    ((at, record),) = params["delivery"]["records"]
    assert (at, record["content"]) == (position, "second")


def test_a_notice_is_given_up_when_the_client_reads_slowly_but_no_invalidation_is(
    facts: Stage,
) -> None:
    memory_id, _ = create(facts)
    facts.link.queued_bytes = 1
    edit(facts, memory_id, "second")
    assert len(facts.link.take("invalidate")) == 1
    assert facts.link.take("notice") == []
    facts.link.queued_bytes = 0
    edit(facts, memory_id, "third")
    (told,) = facts.link.take("notice")
    assert (told["notice"]["revision"], told["notice"]["by"]) == (3, "Ada")


def test_nobody_is_noticed_of_an_own_edit(facts: Stage) -> None:
    memory_id, _ = create(facts)
    edit(facts, memory_id, "second", facts.sam)
    assert len(facts.link.take("invalidate")) == 1
    assert facts.link.take("notice") == []


def test_a_notice_moves_no_position(facts: Stage) -> None:
    memory_id, position = create(facts)
    edit(facts, memory_id, "second")
    facts.link.take("deliver")
    answer = facts.pull(position, "facts").get(PATIENCE_S)
    assert all(not delivery["records"] for delivery in answer["deliveries"])
    assert facts.positions("facts")[0] < position


def test_a_comparison_names_what_is_no_longer_so_as_the_ledger_has_it(facts: Stage) -> None:
    same, _ = create(facts)
    edited, _ = create(facts)
    deleted, _ = create(facts)
    facts.bus.done(facts.ada.edit(edited, "second"))  # committed, not projected yet
    facts.bus.done(facts.ada.delete(deleted))
    answer = compare(facts, (same, 1), (edited, 1), (deleted, 1), ("unknown", 1))
    assert answer["compared"] == 4
    changed = {position: envelope for _, position, envelope in answer["changed"]}
    assert sorted(changed) == [1, 2, 3]
    assert (changed[1]["content"], changed[1]["revision"]) == ("second", 2)
    assert changed[2] is None
    assert changed[3] is None
