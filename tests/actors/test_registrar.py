"""The registrar: one live attachment per session, who must give way, names, binds in turn."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from actors import registrar
from actors.attachment import Neighbours
from actors.base import FutureReply
from actors.channel import ChannelDirectory
from actors.messages import (
    CallSeen,
    CompareHeldMemories,
    DetachAsked,
    DirectoryAsked,
    Disconnected,
    Greeted,
    HookSeen,
    ReadinessChanged,
    Register,
    RollAsked,
    Submit,
    SubscriptionsExpired,
    SweepLiveness,
)
from actors.pool import Dispatcher
from actors.presence import Presences
from actors.registrar import LEAVE_SECONDS, RegistrarActor
from actors.routes import Routes
from actors.timer import Timer
from agentbus.config import Config
from agentbus.errors import (
    ConfigMismatchError,
    SessionAlreadyConnectedError,
    StaleAttachmentError,
    UnavailableError,
)
from agentbus.identity import Attachment, SessionIdentity
from agentbus.ids import BusId, RecoveryEpoch
from agentbus.limits import ATTACHMENT_EXPIRY_SECONDS, MIB
from agentbus.projection.connection import connect
from agentbus.projection.searching import RedisSearch
from agentbus.projection.streams import StreamReader
from agentbus.protocol.session import Attach, Hello, HookEvent, Used
from agentbus.store.changes import BindSession, MoveCursors, PruneSlice
from tests.actors.stage import RecordingLink, inboxes_around
from tests.eventually import PATIENCE_S
from tests.probe import Probe, settle
from tests.redis_fixture import PrivateRedis, private_redis
from tests.store.bus import Bus

EPOCH = RecoveryEpoch(1)
READY = ReadinessChanged("ready", EPOCH, 200)


@pytest.fixture(scope="module")
def redis() -> Iterator[PrivateRedis]:
    with private_redis() as running:
        yield running


@dataclass
class Desk:
    """A registrar; the test plays the ledger, the attachments that it starts are real."""

    bus: Bus
    redis: PrivateRedis
    ledger: Probe = field(default_factory=Probe)
    other: Probe = field(default_factory=Probe)
    waits: Probe = field(default_factory=Probe)
    crashes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.timer = Timer(self.bus.clock)
        self.dispatcher = Dispatcher(threads=2)
        self.routes = Routes()
        self.inboxes = inboxes_around(
            self.dispatcher, self.timer, self.bus.clock, self.other.address
        )
        actor = RegistrarActor(
            self._neighbours,
            self.ledger.address,
            self.routes,
            self.bus.config,
            BusId("bus"),
            self.bus.clock,
            self._crashed,
            self.waits.address,
            self.other.address,
        )
        self.registrar = self.dispatcher.start(actor, crashed=self._crashed)
        self.registrar.tell(READY)

    def _crashed(self, actor: str, error: BaseException) -> None:
        self.crashes.append(actor)

    def _neighbours(self) -> Neighbours:
        socket_path = self.redis.settings.socket_path
        return Neighbours(
            ledger=self.ledger.address,
            projector=self.other.address,
            registrar=self.registrar,
            channels=ChannelDirectory(self.dispatcher, self._crashed),
            inboxes=self.inboxes,
            presences=Presences(self.routes, self.bus.clock, lambda session_id: False),
            timer=self.timer,
            open_streams=lambda: StreamReader(connect(socket_path)),
            open_store=self.bus.reader,
            open_search=lambda: RedisSearch(connect(socket_path), threading.Lock()),
        )

    def link(self) -> RecordingLink:
        return RecordingLink(self.bus.clock.monotonic_s())

    def register(
        self,
        agent: str = "Sam",
        conversation: str = "c1",
        *,
        link: RecordingLink | None = None,
        source: Any = "argument",
        pid: int | None = None,
        config: tuple[str, str] | None = None,
        **fields: Any,
    ) -> FutureReply:
        """Ask to attach; the ledger is not played yet."""
        identity = SessionIdentity("codex", conversation, fields.pop("child", None))
        attach = Attach(agent, identity, source, 8, MIB, **fields)
        hello = Hello(1, "0", pid or os.getpid(), *(config or (None, None)))
        reply = FutureReply()
        self.registrar.tell(Register(attach, hello, link or self.link(), reply))
        return reply

    def bind(self) -> BindSession:
        """Commit the bind that is before the ledger."""
        submit = self.ledger.expect(Submit)
        assert isinstance(submit.change, BindSession)
        submit.reply_to.set(self.bus.done(submit.change).result)
        return submit.change

    def attach(self, agent: str = "Sam", conversation: str = "c1", **fields: Any) -> Any:
        reply = self.register(agent, conversation, **fields)
        self.bind()
        return reply.get(PATIENCE_S)

    def live(self) -> list[str]:
        reply = FutureReply()
        self.registrar.tell(RollAsked(reply))
        return [session.sender.display_name for session in reply.get(PATIENCE_S).sessions]

    def close(self) -> None:
        for route in self.routes.all():
            route.address.stop()
        for route in self.routes.all():
            route.address.ref.actor_stopped.wait(PATIENCE_S)
        self.dispatcher.stop(PATIENCE_S)
        self.timer.stop()
        self.ledger.stop()
        self.other.stop()
        self.waits.stop()


@pytest.fixture
def desk(tmp_path: Path, redis: PrivateRedis) -> Iterator[Desk]:
    bus = Bus(tmp_path)
    desk = Desk(bus, redis)
    yield desk
    desk.close()
    bus.close()


# --- attaching ---


def test_an_attach_binds_routes_and_answers(desk: Desk) -> None:
    link = desk.link()
    answer = desk.attach(link=link)
    assert answer["display_name"] == "Sam"
    assert answer["resumed"] is False
    assert answer["epoch"] == EPOCH
    assert [row["channel"] for row in answer["subscriptions"]] == ["general"]
    route = desk.routes.find(Attachment(answer["session_id"], answer["generation"]), link)
    assert route.address.alive
    assert desk.live() == ["Sam"]


def test_nobody_attaches_before_the_bus_is_ready(desk: Desk) -> None:
    desk.registrar.tell(ReadinessChanged("recovering", EPOCH, 123))
    with pytest.raises(UnavailableError, match="recovering") as refused:
        desk.register().get(PATIENCE_S)
    assert refused.value.retry_after_ms == 123


def test_a_second_attachment_of_a_session_is_refused_and_the_first_one_kept(desk: Desk) -> None:
    desk.attach()
    with pytest.raises(SessionAlreadyConnectedError, match="as Sam by process") as refused:
        desk.register().get(PATIENCE_S)
    assert refused.value.retry_after_ms is not None
    assert desk.live() == ["Sam"]


def test_two_conversations_of_one_agent_have_two_names(desk: Desk) -> None:
    assert desk.attach(conversation="c1")["display_name"] == "Sam"
    assert desk.attach(conversation="c2")["display_name"] == "Sam2"
    assert desk.attach("Ada", conversation="c1")["display_name"] == "Ada"


def test_a_name_is_free_again_when_its_holder_has_gone_and_comes_back_to_it(desk: Desk) -> None:
    first = desk.attach(conversation="c1")
    desk.attach(conversation="c2")
    desk.registrar.tell(
        DetachAsked(Attachment(first["session_id"], first["generation"]), FutureReply())
    )
    resumed = desk.attach(conversation="c1")
    assert resumed["resumed"] is True
    assert resumed["display_name"] == "Sam"
    assert resumed["generation"] > first["generation"]


def test_a_child_is_named_after_its_parent(desk: Desk) -> None:
    desk.attach(conversation="c1")
    answer = desk.attach(
        conversation="c1",
        child="kid",
        parent_conversation="c1",
        role="review",
        repository="bus",
    )
    assert answer["display_name"].startswith("Sam-review")
    assert answer["display_name"].endswith("(bus)")
    assert len(desk.live()) == 2


def test_binds_go_to_the_ledger_one_after_the_other(desk: Desk) -> None:
    replies = [desk.register(conversation=f"c{number}") for number in range(3)]
    settle(desk.registrar)
    assert len([m for m in desk.ledger.received() if isinstance(m, Submit)]) == 1
    names_in_use = [desk.bind().names_in_use for _ in range(3)]
    assert names_in_use == [frozenset(), {"Sam"}, {"Sam", "Sam2"}]
    names = [reply.get(PATIENCE_S)["display_name"] for reply in replies]
    assert names == ["Sam", "Sam2", "Sam3"]


def test_two_adapters_of_one_session_at_once_end_with_one_attachment(desk: Desk) -> None:
    first, second = desk.register(), desk.register()
    desk.bind()
    assert first.get(PATIENCE_S)["generation"] == 1
    with pytest.raises(SessionAlreadyConnectedError):
        second.get(PATIENCE_S)


def test_a_bind_that_failed_is_answered_and_the_next_one_follows(desk: Desk) -> None:
    first, second = desk.register(conversation="c1"), desk.register(conversation="c2")
    desk.ledger.expect(Submit).reply_to.set_exception(UnavailableError("no room"))
    with pytest.raises(UnavailableError, match="no room"):
        first.get(PATIENCE_S)
    desk.bind()
    assert second.get(PATIENCE_S)["display_name"] == "Sam"


def test_an_attachment_that_cannot_be_started_leaves_nothing_to_wait_for_at_a_stop(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    link = desk.link()
    with monkeypatch.context() as patch:
        patch.setattr(registrar, "start_actor", no_thread)
        desk.attach(link=link)
        settle(desk.registrar)
    assert link.reason == "no thread can be started for its attachment"
    assert desk.crashes == ["AttachmentActor"]
    assert desk.routes.all() == []
    assert desk.attach()["resumed"] is True


def test_who_has_gone_before_its_turn_is_passed_over(desk: Desk) -> None:
    gone = desk.link()
    desk.register(conversation="c0")
    desk.register(conversation="c1", link=gone)
    last = desk.register(conversation="c2")
    gone.close("gone")
    desk.bind()
    desk.bind()
    assert last.get(PATIENCE_S)["display_name"] == "Sam2"
    assert len(desk.live()) == 2


def test_who_has_gone_while_it_was_bound_leaves_nothing_behind(desk: Desk) -> None:
    gone = desk.link()
    desk.register(link=gone)
    settle(desk.registrar)
    gone.close("gone")
    desk.bind()
    assert desk.live() == []
    assert desk.attach()["resumed"] is True


def test_another_configuration_is_refused_with_both_paths(desk: Desk) -> None:
    config: Config = desk.bus.config
    good = (str(config.path), config.fingerprint())
    for path, fingerprint in (("/elsewhere.json", good[1]), (good[0], "f" * 64)):
        with pytest.raises(ConfigMismatchError, match="agentbus stop") as refused:
            desk.register(config=(path, fingerprint)).get(PATIENCE_S)
        assert path in refused.value.message
        assert good[0] in refused.value.message
    assert desk.attach(config=good)["display_name"] == "Sam"


# --- giving way ---


def test_a_silent_holder_is_released_after_30_s_and_not_before(desk: Desk) -> None:
    holder = desk.link()
    desk.attach(link=holder)
    desk.bus.clock.advance(ATTACHMENT_EXPIRY_SECONDS)
    with pytest.raises(SessionAlreadyConnectedError):
        desk.register().get(PATIENCE_S)
    desk.registrar.tell(SweepLiveness())
    settle(desk.registrar)
    assert not holder.closed
    desk.bus.clock.advance(0.001)
    desk.registrar.tell(SweepLiveness())
    assert "silent for 30 s" in holder.wait_closed()
    desk.registrar.tell(Disconnected(holder))
    assert desk.live() == []


def test_a_newcomer_need_not_wait_for_the_sweep(desk: Desk) -> None:
    holder = desk.link()
    first = desk.attach(link=holder)
    desk.bus.clock.advance(ATTACHMENT_EXPIRY_SECONDS + 0.001)
    second = desk.attach()
    assert second["generation"] == first["generation"] + 1
    (told,) = holder.take("detached")
    assert (told["generation"], told["code"]) == (first["generation"], "stale_attachment")
    with pytest.raises(StaleAttachmentError):
        desk.routes.find(Attachment(first["session_id"], first["generation"]), holder)


def test_a_holder_that_beats_is_kept_for_ever(desk: Desk) -> None:
    holder = desk.link()
    desk.attach(link=holder)
    for _ in range(10):
        desk.bus.clock.advance(20)
        holder.last_seen_s = desk.bus.clock.monotonic_s()
        desk.registrar.tell(SweepLiveness())
    settle(desk.registrar)
    assert not holder.closed


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_the_holder_whose_process_is_dead_gives_way_when_its_connection_has_been_read(
    desk: Desk,
) -> None:
    """What it sent last comes before the end of the connection, and is not lost."""
    holder = desk.link()
    first = desk.attach(pid=dead_process(), link=holder)
    newcomer = desk.register()
    settle(desk.registrar)
    desk.ledger.expect_nothing_of(Submit)
    (route,) = desk.routes.all()
    attachment = Attachment(first["session_id"], first["generation"])
    route.address.tell(CallSeen(Used(attachment, 0, ())))
    holder.close("its process has ended")
    desk.registrar.tell(Disconnected(holder))
    assert isinstance(desk.ledger.expect(Submit).change, MoveCursors)
    desk.bind()
    assert newcomer.get(PATIENCE_S)["generation"] == first["generation"] + 1


def test_a_connection_that_outlives_its_process_is_not_waited_for_any_longer(desk: Desk) -> None:
    desk.attach(pid=dead_process())
    newcomer = desk.register()
    settle(desk.registrar)
    desk.bus.clock.advance(LEAVE_SECONDS)
    desk.bind()
    assert newcomer.get(PATIENCE_S)["resumed"] is True


def test_an_idle_holder_gives_way_only_to_a_proven_newcomer(desk: Desk) -> None:
    holder = desk.link()
    desk.attach(link=holder)
    desk.bus.clock.advance(ATTACHMENT_EXPIRY_SECONDS)
    holder.last_seen_s = desk.bus.clock.monotonic_s()  # it beats, but makes no call
    for source in ("hook", "environment", "argument", "process"):
        with pytest.raises(SessionAlreadyConnectedError):
            desk.register(source=source).get(PATIENCE_S)
    assert desk.attach(source="turn_metadata", proven=True)["resumed"] is True


def test_a_busy_holder_is_not_reclaimed_even_by_a_proven_newcomer(desk: Desk) -> None:
    holder = desk.link()
    answer = desk.attach(link=holder)
    desk.bus.clock.advance(ATTACHMENT_EXPIRY_SECONDS)
    holder.last_seen_s = desk.bus.clock.monotonic_s()
    route = desk.routes.find(Attachment(answer["session_id"], answer["generation"]), holder)
    route.begin_wait()
    with pytest.raises(SessionAlreadyConnectedError):
        desk.register(source="turn_metadata", proven=True).get(PATIENCE_S)
    route.end_wait()
    route.last_call_s = desk.bus.clock.monotonic_s()
    with pytest.raises(SessionAlreadyConnectedError):
        desk.register(source="turn_metadata", proven=True).get(PATIENCE_S)


def test_the_same_connection_may_attach_its_session_again(desk: Desk) -> None:
    link = desk.link()
    first = desk.attach(link=link)
    assert desk.attach(link=link)["generation"] == first["generation"] + 1


# --- leaving ---


def test_a_lost_connection_ends_all_its_attachments_and_no_others(desk: Desk) -> None:
    link = desk.link()
    desk.attach(conversation="c1", link=link)
    desk.attach(conversation="c2", link=link)
    desk.attach("Ada", conversation="c3")
    desk.registrar.tell(Disconnected(link))
    assert desk.live() == ["Ada"]


def test_a_conversation_ends_where_its_own_harness_says_so(desk: Desk) -> None:
    link = desk.link()
    desk.registrar.tell(Greeted(link, 4711))
    desk.attach(link=link)
    desk.attach(conversation="c1", child="k", link=link)
    desk.attach("Ada", conversation="c1")  # by an adapter whose harness is not known
    desk.attach("Kim", conversation="c2", link=link)

    def ended(conversation: str, harness_pid: int | None) -> None:
        event = HookEvent("codex", "SessionEnd", conversation, harness_pid=harness_pid)
        desk.registrar.tell(HookSeen(event, FutureReply()))

    ended("c1", 4712)  # somebody else had resumed it, and was refused
    assert len(desk.live()) == 3
    ended("c1", 4711)
    assert desk.live() == ["Kim"]
    ended("c2", None)
    assert desk.live() == []


@pytest.mark.parametrize("way", ["same connection", "detached", "disconnected", "lapsed"])
def test_a_successor_is_bound_behind_the_last_word_of_the_one_before_it(
    desk: Desk, way: str
) -> None:
    link = desk.link()
    answer = desk.attach(link=link)
    attachment = Attachment(answer["session_id"], answer["generation"])
    (route,) = desk.routes.all()
    route.address.tell(CallSeen(Used(attachment, 0, ())))
    if way == "detached":
        desk.registrar.tell(DetachAsked(attachment, FutureReply()))
    elif way == "disconnected":
        desk.registrar.tell(Disconnected(link))
    elif way == "lapsed":
        desk.bus.clock.advance(ATTACHMENT_EXPIRY_SECONDS + 1)
    newcomer = desk.register(link=link if way == "same connection" else None)
    other = desk.register(conversation="c2")
    order = []
    for _ in range(3):
        submit = desk.ledger.expect(Submit)
        bound = isinstance(submit.change, BindSession)
        order.append(submit.change.identity.conversation if bound else "last word")
        submit.reply_to.set(desk.bus.done(submit.change).result)
    assert order.index("last word") < order.index("c1")
    assert newcomer.get(PATIENCE_S)["generation"] > answer["generation"]
    assert other.get(PATIENCE_S)["display_name"].startswith("Sam")


def test_a_successor_does_not_wait_for_ever_and_nobody_else_waits(desk: Desk) -> None:
    desk.attach()
    (route,) = desk.routes.all()
    blocked, release = threading.Event(), threading.Event()

    class Blocking:
        def set(self, value: Any) -> None:
            blocked.set()
            assert release.wait(PATIENCE_S)

        def set_exception(self, error: BaseException) -> None:
            self.set(None)

    route.address.tell(CompareHeldMemories((), Blocking()))
    assert blocked.wait(PATIENCE_S)
    desk.registrar.tell(DetachAsked(route.attachment, FutureReply()))
    newcomer, other = desk.register(), desk.register(conversation="c2")
    desk.bind()
    assert other.get(PATIENCE_S)["display_name"] == "Sam"
    settle(desk.registrar)
    desk.ledger.expect_nothing_of(Submit)
    desk.bus.clock.advance(LEAVE_SECONDS)
    desk.bind()
    assert newcomer.get(PATIENCE_S)["display_name"] == "Sam2"
    release.set()


def test_an_attachment_that_fails_while_it_leaves_keeps_nobody_waiting(desk: Desk) -> None:
    link = desk.link()
    desk.attach(link=link)
    (route,) = desk.routes.all()
    route.address.tell("nonsense")  # type: ignore[arg-type]
    desk.registrar.tell(Disconnected(link))
    assert desk.attach()["resumed"] is True
    assert len(desk.routes.all()) == 1


def test_detaching_flushes_what_the_session_had_reported(desk: Desk) -> None:
    answer = desk.attach()
    attachment = Attachment(answer["session_id"], answer["generation"])
    (route,) = desk.routes.all()
    route.address.tell(CallSeen(Used(attachment, 0, ())))
    reply = FutureReply()
    desk.registrar.tell(DetachAsked(attachment, reply))
    assert reply.get(PATIENCE_S) == {}
    assert isinstance(desk.ledger.expect(Submit).change, MoveCursors)
    assert desk.live() == []


def test_detaching_an_older_generation_changes_nothing(desk: Desk) -> None:
    answer = desk.attach()
    stale = Attachment(answer["session_id"], answer["generation"] - 1)
    desk.registrar.tell(DetachAsked(stale, FutureReply()))
    assert desk.live() == ["Sam"]


def test_an_attachment_that_failed_takes_its_connection_along(desk: Desk) -> None:
    link = desk.link()
    desk.attach(link=link)
    (route,) = desk.routes.all()
    route.address.tell("nonsense")  # type: ignore[arg-type]
    assert link.wait_closed() == "its attachment failed"
    desk.registrar.tell(Disconnected(link))
    assert desk.live() == []
    assert desk.crashes == ["AttachmentActor-Sam"]
    assert desk.attach()["resumed"] is True


# --- telling ---


def test_expired_subscriptions_are_told_to_the_live_session(desk: Desk) -> None:
    link = desk.link()
    answer = desk.attach(link=link)
    desk.attach("Ada", conversation="c2")
    desk.bus.clock.advance(hours=73)
    result = desk.bus.done(PruneSlice("subscriptions", 10)).result
    desk.registrar.tell(SubscriptionsExpired(result.expired))
    settle(desk.registrar)
    settle(*[route.address for route in desk.routes.all()])
    (told,) = link.take("expired")
    assert told["session_id"] == answer["session_id"]
    assert told["channel"] == "general"


def test_the_directory_shows_the_living_and_filters_by_any_field(desk: Desk) -> None:
    desk.attach("Sam", conversation="c1", repository="broker")
    desk.attach("Ada", conversation="c2")

    def find(query: str) -> list[str]:
        reply = FutureReply()
        desk.registrar.tell(DirectoryAsked(query, reply))
        return [entry["display_name"] for entry in reply.get(PATIENCE_S)["sessions"]]

    assert find("") == ["Ada", "Sam"]
    assert find("BROK") == ["Sam"]
    assert find("codex") == ["Ada", "Sam"]
    assert find("nobody") == []
