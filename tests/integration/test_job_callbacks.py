"""What the bus posts for jobs: callbacks in order, tried again, dead letters, over a restart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from actors import callback
from actors.callback_keeper import PER_RECEIVER, WORKERS
from agentbus.encoding import decode_strict
from agentbus.errors import NotFoundError, ValidationError
from agentbus.jobs.delivery import BACKOFF_MAX_MS, Outcome, destination
from agentbus.transport.client import Client
from tests.eventually import PATIENCE_S, eventually
from tests.integration.in_process import InProcessBus, in_process_bus
from tests.jobs.emitting import Emitting, connect
from tests.jobs.servers import Answer, ScriptedServer
from tests.jobs.waiting import events, pass_time

IDLE_S = 86_400
"""Hours may pass between two attempts on a slow machine, and no job may be lost meanwhile."""


@pytest.fixture
def bus() -> Iterator[InProcessBus]:
    with in_process_bus(job_idle_seconds=IDLE_S, job_total_seconds=7 * IDLE_S) as bus:
        yield bus


@pytest.fixture
def parent(bus: InProcessBus) -> Iterator[Client]:
    with connect(bus.paths.socket) as client:
        yield client


def posted(server: ScriptedServer) -> list[tuple[str, str]]:
    return [(got.headers["idempotency-key"], decode_strict(got.body)["type"]) for got in server.got]


def letters(parent: Client) -> list[Any]:
    return list(parent.request("deadletters_list", {}, PATIENCE_S)["dead_letters"])


def test_events_are_posted_in_order_each_once(bus: InProcessBus, parent: Client) -> None:
    secret = "s3cret"
    with ScriptedServer() as server:
        with Emitting(bus.paths.socket, url=f"{server.url}/cake", secret=secret) as job:
            for seq, kind in enumerate(("accepted", "progress", "warning", "succeeded")):
                job.emit(seq, kind)
        eventually(lambda: len(server.got) == 4)
        assert posted(server) == [
            ("cake:0", "accepted"),
            ("cake:1", "progress"),
            ("cake:2", "warning"),
            ("cake:3", "succeeded"),
        ]
        assert all("x-signature-timed" in got.headers for got in server.got)
        assert {got.path for got in server.got} == {"/cake"}
        eventually(lambda: _callbacks(parent) == {"pending": 0, "dead": 0})


def _callbacks(parent: Client) -> Any:
    return parent.request("job_list", {}, PATIENCE_S)["callbacks"]


def test_what_is_not_taken_is_tried_again_and_the_next_event_waits(
    bus: InProcessBus, parent: Client
) -> None:
    with ScriptedServer(Answer(503), Answer(None), Answer(200)) as server:
        with Emitting(bus.paths.socket, url=server.url) as job:
            job.emit(0, "accepted")
            job.emit(1, "succeeded")
        for attempts in (1, 2):
            eventually(lambda attempts=attempts: len(server.got) >= attempts)  # type: ignore[misc]
            _pass_time(bus, lambda attempts=attempts: len(server.got) > attempts)  # type: ignore[misc]
        eventually(lambda: len(server.got) == 4)
        assert [key for key, _ in posted(server)] == ["cake:0", "cake:0", "cake:0", "cake:1"]


def _pass_time(bus: InProcessBus, until: Any) -> None:
    """Let the pauses between attempts pass."""

    def look() -> bool:
        bus.clock.advance(BACKOFF_MAX_MS / 1000)
        return bool(until())

    eventually(look)


def test_after_the_last_attempt_it_is_a_dead_letter_that_can_be_replayed(
    bus: InProcessBus, parent: Client
) -> None:
    with ScriptedServer(Answer(500), Answer(500), Answer(200)) as server:
        with Emitting(bus.paths.socket, url=server.url, max_retries=2) as job:
            job.emit(0, "accepted")
            _pass_time(bus, lambda: letters(parent))
            [letter] = letters(parent)
            assert (letter["job_id"], letter["seq"], letter["attempts"]) == ("cake", 0, 2)
            assert "500" in letter["error"]
            job.emit(1)  # those behind it go on
            eventually(lambda: len(server.got) == 3)
        replayed = parent.request("deadletters_replay", {"id": letter["id"]}, PATIENCE_S)
        assert replayed == {"replayed": 1}
        eventually(lambda: len(server.got) == 4)
        assert [key for key, _ in posted(server)] == ["cake:0", "cake:0", "cake:1", "cake:0"]
        eventually(lambda: not letters(parent))
        with pytest.raises(NotFoundError):
            parent.request("deadletters_replay", {"id": letter["id"]}, PATIENCE_S)


def test_what_a_repeat_cannot_help_is_dead_at_once(bus: InProcessBus, parent: Client) -> None:
    with ScriptedServer(Answer(401)) as server:
        with Emitting(bus.paths.socket, url=server.url) as job:
            job.emit(0, "failed")
        assert eventually(lambda: letters(parent))[0]["terminal"]
        assert len(server.got) == 1
    assert parent.request("deadletters_replay", {"all": True}, PATIENCE_S) == {"replayed": 1}


def test_the_terminal_event_is_tried_for_longer(bus: InProcessBus, parent: Client) -> None:
    with ScriptedServer(Answer(503)) as server:
        with Emitting(bus.paths.socket, url=server.url, max_retries=1) as job:
            job.emit(0, "accepted")
            eventually(lambda: letters(parent))
            job.emit(1, "succeeded")
        _pass_time(bus, lambda: len(letters(parent)) == 2)
        assert [letter["attempts"] for letter in letters(parent)] == [1, 10]


def test_a_lost_job_is_posted_too(bus: InProcessBus, parent: Client) -> None:
    with ScriptedServer() as server:
        with Emitting(bus.paths.socket, url=server.url) as job:
            job.emit(0, "accepted")
        pass_time(bus, IDLE_S)
        eventually(lambda: len(server.got) == 2)
        assert posted(server)[-1] == ("cake:1", "failed")
        assert decode_strict(server.got[-1].body)["synthetic"]


@pytest.mark.parametrize(
    "callback",
    [
        {"url": "ftp://h/"},
        {"url": "http://user@h/"},
        {"url": "http://h/", "allowed_hosts": ["other"]},
        {"url": "http://h/", "max_retries": 0},
        {"url": "http://h/", "max_retries": 101},
        {"url": "http://h/", "extra": 1},
        {"url": 7},
    ],
)
def test_a_callback_that_must_not_be_called_is_refused_with_its_event(
    bus: InProcessBus, parent: Client, callback: dict[str, Any]
) -> None:
    with Emitting(bus.paths.socket, **callback) as job, pytest.raises(ValidationError):
        job.emit(0, "accepted")
    assert events(parent)["events"] == []


def test_an_attempt_that_fails_as_nobody_thought_of_is_one_of_its_attempts(
    bus: InProcessBus, parent: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(*_: object) -> Outcome:
        raise ArithmeticError("told to")

    monkeypatch.setattr(callback, "attempt", attempt)
    with Emitting(bus.paths.socket, url="http://127.0.0.1:9/", max_retries=2) as job:
        job.emit(0, "accepted")
        _pass_time(bus, lambda: letters(parent))
    [letter] = letters(parent)
    assert letter["attempts"] == 2
    assert "ArithmeticError" in letter["error"]


def test_a_receiver_that_hangs_keeps_no_other_one_waiting(
    bus: InProcessBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback, "destination", partial(destination, total_s=600))
    release = threading.Event()
    with ScriptedServer(Answer(before=release.wait)) as hangs, ScriptedServer() as other:
        for number in range(WORKERS + 1):
            with Emitting(bus.paths.socket, f"job-{number}", url=f"{hangs.url}/{number}") as job:
                job.emit(0, "succeeded")
        with Emitting(bus.paths.socket, url=other.url) as job:
            job.emit(0, "succeeded")
        eventually(lambda: other.got)
        eventually(lambda: len(hangs.got) >= PER_RECEIVER)
        assert len(hangs.got) == PER_RECEIVER
        release.set()
        eventually(lambda: len(hangs.got) == WORKERS + 1)


def test_callbacks_go_on_after_a_restart(bus: InProcessBus) -> None:
    with ScriptedServer(Answer(503), Answer(200)) as server:
        with Emitting(bus.paths.socket, url=server.url) as job:
            job.emit(0, "succeeded")
        eventually(lambda: len(server.got) == 1)
        bus.system.stop()
        bus.clock.advance(BACKOFF_MAX_MS / 1000)
        bus.start()
        _pass_time(bus, lambda: len(server.got) == 2)
        assert {key for key, _ in posted(server)} == {"cake:0"}
