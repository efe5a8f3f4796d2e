"""A report comes in every state of the bus, also when somebody it asks does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from actors.base import FutureReply, start_actor, stop_actor
from actors.messages import HookHeard, LiveSession, Roll, RollAsked
from actors.reporter import PATIENCE_S, ReportAsked, ReporterActor, Sources
from actors.supervisor_messages import HealthAsked
from actors.timer import Timer
from agentbus.errors import UnavailableError
from agentbus.limits import PROTOCOL_VERSION
from agentbus.projection.connection import connect
from tests.probe import Probe, settle
from tests.redis_fixture import PrivateRedis, private_redis
from tests.store.bus import Bus


@pytest.fixture(scope="module")
def redis() -> Iterator[PrivateRedis]:
    with private_redis() as running:
        yield running


class Newsroom:
    """A reporter; the test plays the supervisor and the registrar."""

    def __init__(self, folder: Path, socket_path: Path) -> None:
        self.bus = Bus(folder)
        self.sam = self.bus.attach()
        self.timer = Timer(self.bus.clock)
        self.supervisor, self.registrar = Probe(), Probe()
        sources = Sources(
            supervisor=self.supervisor.address,
            registrar=self.registrar.address,
            open_store=self.bus.reader,
            connect_redis=lambda: connect(socket_path),
            actors=lambda: [self.supervisor.address.statistics()],
            exhausted=lambda: ("redis",),
            counters=lambda: {"transport": {"connections": 1}},
        )
        self.address = start_actor(
            ReporterActor(sources, self.timer, self.bus.config, self.bus.clock)
        )

    def ask(self, what: Literal["status", "channels", "sessions"] = "status") -> FutureReply:
        reply = FutureReply()
        self.address.tell(ReportAsked(what, reply))
        settle(self.address)
        return reply

    def tell_health(self, state: str = "ready", redis: dict[str, Any] | None = None) -> None:
        health = {"state": state, "epoch": 3, "progress": None, "redis": redis, "errors": []}
        self.supervisor.expect(HealthAsked).reply_to.set(health)

    def tell_sessions(self) -> None:
        session = LiveSession(
            self.sam.attachment, self.sam.sender, "c1", "argument", self.bus.clock.wall_us(), 42
        )
        heard = HookHeard("codex", "Stop", self.bus.clock.wall_us())
        self.registrar.expect(RollAsked).reply_to.set(Roll((session,), (heard,)))

    def close(self) -> None:
        stop_actor(self.address, PATIENCE_S)
        self.timer.stop()
        self.supervisor.stop()
        self.registrar.stop()
        self.bus.close()


@pytest.fixture
def newsroom(tmp_path: Path, redis: PrivateRedis) -> Iterator[Newsroom]:
    newsroom = Newsroom(tmp_path, redis.settings.socket_path)
    yield newsroom
    newsroom.close()


@pytest.mark.parametrize("state", ["starting", "recovering", "ready", "stopping"])
def test_a_status_names_everything_in_every_state(newsroom: Newsroom, state: str) -> None:
    newsroom.bus.done(newsroom.sam.send("hello"))
    reply = newsroom.ask()
    newsroom.tell_health(state, {"engine": "redis", "search_module": None})
    newsroom.tell_sessions()
    status = reply.get(PATIENCE_S)
    assert status["state"] == state
    assert status["epoch"] == 3
    assert status["versions"]["protocol"] == PROTOCOL_VERSION
    assert status["config"]["values"]["max_message_kib"] == 64
    assert status["redis"]["search_engine"] == "sqlite"
    assert status["redis"]["healthy"] is True
    assert status["budgets"]["sqlite"]["used_bytes"] == newsroom.bus.store.logical_bytes
    assert status["budgets"]["redis"]["used_bytes"] > 0
    assert [status["budgets"][name]["exhausted"] for name in ("sqlite", "redis")] == [False, True]
    assert status["budgets"]["binding"] in ("sqlite", "redis")
    assert status["store"]["messages"] == 1
    assert status["actors"][0]["name"] == "ProbeActor"
    assert status["transport"] == {"connections": 1}
    assert [(hook["application"], hook["event"]) for hook in status["hooks"]] == [("codex", "Stop")]
    (session,) = status["sessions"]
    assert session["display_name"] == "Sam"
    assert session["conversation"] == "c1"
    assert session["generation"] == newsroom.sam.attachment.generation
    assert session["subscriptions"] == [
        {"channel": "general", "handed_off": 0, "confirmed": 0, "lag": 1}
    ]


def test_a_status_comes_without_those_who_do_not_answer_in_time(newsroom: Newsroom) -> None:
    reply = newsroom.ask()
    newsroom.tell_health("recovering")
    settle(newsroom.address)
    newsroom.bus.clock.advance(PATIENCE_S)
    status = reply.get(PATIENCE_S)
    assert status["state"] == "recovering"
    assert status["sessions"] == []
    newsroom.tell_sessions()  # too late: nobody is answered twice
    settle(newsroom.address)


def test_a_status_comes_when_nobody_answers(newsroom: Newsroom) -> None:
    reply = newsroom.ask()
    newsroom.bus.clock.advance(PATIENCE_S)
    assert reply.get(PATIENCE_S)["state"] == "unknown"


def test_one_who_refuses_ends_the_wait_for_his_own_report_only(newsroom: Newsroom) -> None:
    first, second = newsroom.ask(), newsroom.ask()
    newsroom.supervisor.expect(HealthAsked).reply_to.set_exception(UnavailableError("gone"))
    assert first.get(PATIENCE_S)["state"] == "unknown"
    newsroom.registrar.expect(RollAsked)
    newsroom.tell_health("ready")
    newsroom.tell_sessions()
    assert second.get(PATIENCE_S)["state"] == "ready"


def test_a_status_says_that_redis_does_not_answer(tmp_path: Path) -> None:
    newsroom = Newsroom(tmp_path, tmp_path / "nowhere.sock")
    reply = newsroom.ask()
    newsroom.tell_health("recovering", {"engine": "redis", "search_module": "/m.so"})
    newsroom.tell_sessions()
    status = reply.get(PATIENCE_S)
    assert status["redis"]["healthy"] is False
    assert status["redis"]["search_engine"] == "redis"
    assert status["budgets"]["redis"]["used_bytes"] is None
    assert status["budgets"]["binding"] == "sqlite"
    newsroom.close()


def test_channels_and_sessions_alone(newsroom: Newsroom) -> None:
    newsroom.bus.done(newsroom.sam.send("hello"))
    channels = newsroom.ask("channels")
    newsroom.tell_health()
    newsroom.tell_sessions()
    assert channels.get(PATIENCE_S) == {
        "channels": [
            {
                "channel": "general",
                "kind": "ordinary",
                "retained": 1,
                "newest": 1,
                "removed_through": 0,
            }
        ]
    }
    sessions = newsroom.ask("sessions")
    newsroom.tell_health()
    newsroom.tell_sessions()
    assert [entry["adapter_pid"] for entry in sessions.get(PATIENCE_S)["sessions"]] == [42]
