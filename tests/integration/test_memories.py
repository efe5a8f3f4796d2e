"""Memories through a whole daemon: operations, delivery, notices, recovery, crashes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from agentbus.errors import NotFoundError, RateLimitedError, UnavailableError
from agentbus.ids import new_id
from agentbus.rules.memories import NOTICE_CONTENT_BYTES
from tests.bus_fixture import BusSession, ThrowAwayBus
from tests.eventually import PATIENCE_S, eventually
from tests.signals import kill


@pytest.fixture(scope="module")
def shared_bus() -> Iterator[ThrowAwayBus]:
    with ThrowAwayBus(send_messages_per_second=10_000) as bus:
        yield bus


class Speaker:
    """A session that keeps memories in one channel."""

    def __init__(self, session: BusSession, channel: str) -> None:
        self.session = session
        self.channel = channel

    def create(self, content: str, **fields: Any) -> str:
        answer = self.session.call("send", channel=self.channel, content=content, **fields)
        return str(answer["message_id"])

    def edit(self, memory_id: str, content: str, **fields: Any) -> dict[str, Any]:
        fields.setdefault("operation_id", new_id())
        return dict(
            self.session.call("edit_memory", memory_id=memory_id, content=content, **fields)
        )

    def delete(self, memory_id: str, **fields: Any) -> dict[str, Any]:
        fields.setdefault("operation_id", new_id())
        return dict(self.session.call("delete_memory", memory_id=memory_id, **fields))

    def get(self, memory_id: str) -> dict[str, Any]:
        return dict(self.session.call("get_memory", memory_id=memory_id)["memory"])

    def subscribe(self, from_: str = "now") -> int:
        arguments = {"channel": self.channel, "from": from_}
        answer = self.session.call("subscribe", **arguments)
        self.subscription = int(answer["subscription_id"])
        return int(answer["from_sequence"]) - 1

    def pull(self, after: int = 0, wait_ms: int = 0) -> list[tuple[int, str]]:
        """Positions and contents of what is there after a position."""
        deliveries = self.session.pull({self.subscription: after}, wait_ms=wait_ms)
        assert all("gaps" not in delivery for delivery in deliveries)
        return [(at, record["content"]) for d in deliveries for at, record in d["records"]]

    def pulled(self, *contents: str) -> list[tuple[int, str]]:
        """The same from the beginning, as soon as what was committed is projected."""

        def found() -> list[tuple[int, str]] | None:
            pulled = self.pull()
            return pulled if [content for _, content in pulled] == [*contents] else None

        return eventually(found, what=f"{contents}")


@pytest.fixture
def channel(shared_bus: ThrowAwayBus) -> str:
    """A memory channel of the test's own."""
    name = f"facts-{new_id()}"
    with shared_bus.attach("Maker") as maker:
        maker.call("create_channel", name=name, kind="memory")
    return name


@pytest.fixture
def sam(shared_bus: ThrowAwayBus, channel: str) -> Speaker:
    return Speaker(shared_bus.attach("Sam"), channel)


@pytest.fixture
def ann(shared_bus: ThrowAwayBus, channel: str) -> Speaker:
    return Speaker(shared_bus.attach("Ann"), channel)


def test_a_memory_is_created_read_edited_and_deleted(sam: Speaker, ann: Speaker) -> None:
    memory_id = sam.create("first", subject="s", tags=["x"])
    assert ann.get(memory_id)["content"] == "first"
    edited = ann.edit(memory_id, "second", tags=None, operation_id="k")
    assert edited["revision"] == 2
    assert edited["replaced"]["revision"] == 1
    assert edited["replaced"]["sender"]["agent"] == "Sam"
    memory = sam.get(memory_id)
    assert (memory["content"], memory["subject"], memory["revision"]) == ("second", "s", 2)
    assert "tags" not in memory
    again = ann.edit(memory_id, "second", tags=None, operation_id="k")
    assert again == {**edited, "duplicate": True}
    assert sam.delete(memory_id)["revision"] == 2
    for refused in (sam.get, sam.delete, lambda id_: sam.edit(id_, "x")):
        with pytest.raises(NotFoundError):
            refused(memory_id)


def test_edits_are_charged_like_sends() -> None:
    with ThrowAwayBus(send_messages_per_second=1) as bus:
        sam = Speaker(bus.attach("Sam"), "facts")
        sam.session.call("create_channel", name="facts", kind="memory")
        memory_id = sam.create("first")
        with pytest.raises(RateLimitedError):  # the disk may take the whole second for the first
            _ = [sam.edit(memory_id, f"too soon {number}") for number in range(20)]


def test_fifty_edits_at_once_are_fifty_revisions_and_one_is_live(
    shared_bus: ThrowAwayBus, channel: str, sam: Speaker
) -> None:
    memory_id = sam.create("first")
    editors = [Speaker(shared_bus.attach(f"Editor{n}"), channel) for n in range(10)]
    answers: list[dict[str, Any]] = []

    def edit(editor: Speaker, name: int) -> None:
        for number in range(5):
            answers.append(editor.edit(memory_id, f"{name}-{number}"))

    threads = [threading.Thread(target=edit, args=(e, n)) for n, e in enumerate(editors)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    by_sequence = sorted(answers, key=lambda answer: answer["sequence"])
    assert [answer["revision"] for answer in by_sequence] == [*range(2, 52)]
    assert [answer["replaced"]["revision"] for answer in by_sequence] == [*range(1, 51)]
    assert sam.get(memory_id)["revision"] == 51
    history = sam.session.call("history", channel=channel)
    assert [message["revision"] for message in history["messages"]] == [51]
    sam.subscribe("oldest")
    assert sam.session.call("list_channels", prefix=channel)["channels"][0]["retained"] == 1


def test_who_comes_later_gets_the_current_revision_once_at_its_place(
    sam: Speaker, ann: Speaker
) -> None:
    one, two, three = (sam.create(content) for content in ("one", "two", "three"))
    sam.edit(one, "one again")
    sam.delete(two)
    ann.subscribe("oldest")
    received = ann.pulled("one again", "three")
    positions = [position for position, _ in received]
    assert positions == sorted(positions)
    ann.session.call("whoami")
    assert ann.pull(after=positions[-1]) == []
    assert sam.get(three)["content"] == "three"


def test_what_was_pushed_is_invalidated_and_noticed(sam: Speaker, ann: Speaker) -> None:
    ann.subscribe()
    memory_id = sam.create("first")
    delivery = ann.session.wait_for("deliver")["delivery"]
    ((position, record),) = delivery["records"]
    assert record["content"] == "first"
    content = "ü" * NOTICE_CONTENT_BYTES
    sam.edit(memory_id, content, subject="headline")
    invalid = ann.session.wait_for("invalidate")
    assert (invalid["memory_id"], invalid["position"]) == (memory_id, position)
    assert invalid["subscription"] == ann.subscription
    assert invalid["envelope"]["content"] == content
    notice = ann.session.wait_for("notice")["notice"]
    assert notice["kind"] == "memory_edited"
    assert (notice["memory_id"], notice["revision"], notice["by"]) == (
        memory_id,
        2,
        sam.session.facts["display_name"],
    )
    assert notice["subject"] == "headline"
    assert content.startswith(notice["content"])
    assert len(notice["content"].encode()) <= NOTICE_CONTENT_BYTES
    assert notice["truncated"] is True
    sam.delete(memory_id)
    assert ann.session.wait_for("invalidate")["envelope"] is None
    assert ann.session.wait_for("notice")["notice"]["kind"] == "memory_deleted"


def test_an_editor_is_not_told_of_its_own_edit_but_what_it_holds_is_invalidated(
    sam: Speaker, ann: Speaker
) -> None:
    ann.subscribe()
    memory_id = sam.create("first")
    ann.session.wait_for("deliver")
    ann.edit(memory_id, "second")
    assert ann.session.wait_for("invalidate")["envelope"]["content"] == "second"
    other = sam.create("other")  # a later frame of the same connection
    assert ann.session.wait_for("deliver")["delivery"]["records"][0][1]["message_id"] == other
    assert not [n for n in ann.session.notifications if n.method == "notice"]


def test_who_comes_back_is_told_what_changed(
    shared_bus: ThrowAwayBus, channel: str, sam: Speaker
) -> None:
    conversation = new_id()
    ann = Speaker(shared_bus.attach("Ann", conversation=conversation), channel)
    ann.subscribe()
    edited, deleted = sam.create("one", subject="s"), sam.create("two")
    positions = [position for position, _ in ann.pull(wait_ms=2000)]
    while len(positions) < 2:
        positions += [position for position, _ in ann.pull(positions[-1], wait_ms=2000)]
    report = {"epoch": ann.session.facts["epoch"], "report": 1, "expired": []}
    handed_off = [[ann.subscription, positions[-1]]]
    ann.session.request("handoff", positions=handed_off, **report)
    ann.session.close()
    sam.edit(edited, "one again")
    sam.delete(deleted)
    with shared_bus.attach("Ann", conversation=conversation) as again:
        changes = again.facts["memory_changes"]
    assert [(c["kind"], c["memory_id"], c["revision"]) for c in changes] == [
        ("memory_edited", edited, 2),
        ("memory_deleted", deleted, 1),
    ]
    assert changes[0]["by"] == sam.session.facts["display_name"]
    assert changes[0]["subject"] == "s"


# --- recovery and crashes ---


def lose_redis(bus: ThrowAwayBus) -> None:
    pid = bus.redis_pid()
    assert pid is not None
    kill(pid)


def wait_recovered(bus: ThrowAwayBus, last_epoch: int) -> None:
    """Until the running daemon is ready in an epoch later than `last_epoch`."""
    with bus.client() as client:
        for _ in range(3000):
            answer = client.request("heartbeat", {}, PATIENCE_S)
            if answer["state"] == "ready" and answer["epoch"] > last_epoch:
                return
            time.sleep(0.01)
    raise AssertionError(f"no recovery:\n{bus.log()}")


@pytest.mark.parametrize("lost", ["redis", "daemon", "both"])
def test_after_a_recovery_memories_are_where_and_as_they_were(lost: str) -> None:
    with ThrowAwayBus() as bus:
        sam = Speaker(bus.attach("Sam"), "facts")
        sam.session.call("create_channel", name="facts", kind="memory")
        one, two, three = (sam.create(content) for content in ("one", "two", "three"))
        sam.edit(one, "one again")
        sam.delete(two)
        epoch = sam.session.facts["epoch"]
        if lost != "redis":
            bus.kill()
        if lost != "daemon":
            lose_redis(bus)
        if lost == "redis":
            with suppress(UnavailableError):  # it was found out already
                sam.edit(three, "three in passing")
            wait_recovered(bus, epoch)
        else:
            bus.start()
        ann = Speaker(bus.attach("Ann"), "facts")
        ann.edit(three, "three again")
        ann.subscribe("oldest")
        received = ann.pulled("one again", "three again")
        assert [position for position, _ in received] == [1, 3]
        assert ann.get(one)["revision"] == 2


@pytest.mark.parametrize("operation", ["edit_memory", "delete_memory"])
@pytest.mark.parametrize(
    ("failpoint", "committed"),
    [("before_commit", False), ("commit", False), ("after_commit", True)],
)
def test_killed_at_each_failpoint_an_operation_is_whole_or_not_there(
    operation: str, failpoint: str, committed: bool
) -> None:
    arguments = {"content": "second"} if operation == "edit_memory" else {}
    with ThrowAwayBus() as bus:
        sam = Speaker(bus.attach("Sam", conversation="c"), "facts")
        sam.session.call("create_channel", name="facts", kind="memory")
        memory_id = sam.create("first")
        bus.stop()
        bus.environment["AGENTBUS_TEST_FAILPOINT"] = failpoint
        bus.start()
        sam = Speaker(bus.attach("Sam", conversation="c"), "facts")
        with pytest.raises(UnavailableError):
            sam.session.call(operation, memory_id=memory_id, operation_id="k", **arguments)
        bus.wait_ended()
        del bus.environment["AGENTBUS_TEST_FAILPOINT"]
        bus.start()
        sam = Speaker(bus.attach("Sam", conversation="c"), "facts")
        sam.subscribe("oldest")
        answer = sam.session.call(operation, memory_id=memory_id, operation_id="k", **arguments)
        assert answer["duplicate"] is committed
        if operation == "edit_memory":
            assert sam.get(memory_id)["revision"] == 2
            history = sam.session.call("history", channel="facts")["messages"]
            assert [message["content"] for message in history] == ["second"]
        else:
            assert sam.session.call("history", channel="facts")["messages"] == []
