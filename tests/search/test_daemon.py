"""Search through a whole daemon, with either engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbus.encoding import encode
from agentbus.errors import NotFoundError, UnavailableError, ValidationError
from agentbus.ids import new_id
from agentbus.limits import KIB
from agentbus.projection.finding import DEFAULT_EXECUTABLE, find_redis
from tests.bus_fixture import BusSession, ThrowAwayBus
from tests.redis_fixture import executable_script, need_search
from tests.signals import kill

WITHIN_S = 10.0
ENGINES = ("redis", "sqlite")


@pytest.fixture(scope="module", params=ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[ThrowAwayBus]:
    engine = request.param
    if engine == "redis":
        need_search()
    with ThrowAwayBus(search_engine=engine, send_messages_per_second=10_000) as bus:
        yield bus


@pytest.fixture
def sam(bus: ThrowAwayBus) -> Iterator[BusSession]:
    with bus.attach() as session:
        yield session


def send(session: BusSession, content: str, channel: str = "general", **fields: Any) -> str:
    answer = session.call("send", channel=channel, content=content, **fields)
    return str(answer["message_id"])


def found(session: BusSession, **conditions: Any) -> list[str]:
    answer = session.call("search", **conditions)
    return [message["message_id"] for message in answer["messages"]]


def wait_found(session: BusSession, expected: list[str], **conditions: Any) -> None:
    """Search follows acceptance; Redis hears of a message a moment later."""
    deadline_s = time.monotonic() + WITHIN_S
    while (now := found(session, **conditions)) != expected:
        assert time.monotonic() < deadline_s, (now, expected)


def test_a_result_has_whole_envelopes_and_says_which_engine(
    bus: ThrowAwayBus, sam: BusSession
) -> None:
    word = new_id()
    message_id = send(sam, f"hello {word}", subject="greeting", tags=["t1"])
    wait_found(sam, [message_id], text=word)
    answer = sam.call("search", text=f'"hello {word}" greeting', tags=["t*"], sender="Sam")
    (message,) = answer["messages"]
    assert message["content"] == f"hello {word}"
    assert (answer["engine"], answer["cursor"]) == (bus.config.search_engine, None)
    shown = {"since": message["sent_at"], "until": message["sent_at"]}
    assert message_id in found(sam, **shown)


def test_status_shows_the_engine(bus: ThrowAwayBus) -> None:
    redis = bus.client().request("status", {}, WITHIN_S)["redis"]
    assert redis["search_engine"] == bus.config.search_engine


def test_pages_follow_the_cursor(sam: BusSession) -> None:
    word = new_id()
    sent = [send(sam, f"{word} {number}") for number in range(25)]
    wait_found(sam, sent[::-1], text=word)
    seen: list[str] = []
    cursor = None
    sizes = []
    while True:
        answer = sam.call("search", text=word, count=10, cursor=cursor)
        seen += [message["message_id"] for message in answer["messages"]]
        sizes.append(len(answer["messages"]))
        cursor = answer["cursor"]
        if cursor is None:
            break
        send(sam, f"{word} later")
    assert seen == sent[::-1]
    assert sizes == [10, 10, 5]


def test_a_page_ends_at_its_ceiling_and_goes_on(sam: BusSession) -> None:
    word = new_id()
    sent = [send(sam, f"{word} {'x' * 3000}") for _ in range(10)]
    wait_found(sam, sent[::-1], text=word, max_kib=100)
    seen: list[str] = []
    cursor = None
    while True:
        answer = sam.call("search", text=word, max_kib=8, cursor=cursor)
        assert len(encode(answer["messages"])) < 9 * KIB
        seen += [message["message_id"] for message in answer["messages"]]
        cursor = answer["cursor"]
        if cursor is None:
            break
    assert seen == sent[::-1]
    assert len(found(sam, text=word, max_kib=1)) == 1  # however large, one comes


def test_an_edited_memory_is_found_by_its_new_words_only(sam: BusSession) -> None:
    channel = new_id()
    sam.call("create_channel", name=channel, kind="memory")
    old, new = new_id(), new_id()
    memory_id = send(sam, f"port {old}", channel)
    wait_found(sam, [memory_id], text=old)
    sam.call("edit_memory", memory_id=memory_id, content=f"port {new}", operation_id=new_id())
    wait_found(sam, [memory_id], text=new)
    assert found(sam, text=old) == []
    (message,) = sam.call("search", channel=channel)["messages"]
    assert message["revision"] == 2
    sam.call("delete_memory", memory_id=memory_id, operation_id=new_id())
    wait_found(sam, [], channel=channel)


@pytest.mark.parametrize(
    ("conditions", "says"),
    [
        ({"text": "*"}, "no letter, digit or emoji"),
        ({"text": "x" * 65536}, "4096 bytes"),
        ({"text": " ".join(f"w{n}" for n in range(65))}, "at most 64 words"),
        ({"tags": ["*"]}, "beginning of a tag"),
        ({"cursor": "5; DROP"}, "cursor must be one that a search has answered"),
        ({"cursor": "9" * 30}, "cursor must be one that a search has answered"),
        ({"cursor": "0.0"}, "cursor must be one that a search has answered"),
        ({"cursor": "5"}, "cursor must be one that a search has answered"),
        ({"cursor": "05.0"}, "cursor must be one that a search has answered"),
        ({"cursor": "5.0.0"}, "cursor must be one that a search has answered"),
        ({"cursor": f"5.{2**63}"}, "cursor must be one that a search has answered"),
        ({"count": 1001}, "count must be 1 to 1000"),
        ({"since": "2026-01-01"}, "RFC 3339"),
    ],
)
def test_what_cannot_be_searched_for_is_refused_in_words(
    sam: BusSession, conditions: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValidationError, match=says):
        sam.call("search", **conditions)


def test_a_channel_that_is_not_there_is_named(sam: BusSession) -> None:
    with pytest.raises(NotFoundError, match="no channel 'nowhere'"):
        sam.call("search", channel="nowhere", text="x")


@pytest.mark.parametrize(
    "text", ["@channel:{x} a", "~a | -b", '"a', "a) => {$weight: 9}", "a' OR 1=1 --", "a*b*", "\\a"]
)
def test_the_syntax_of_an_engine_is_text(sam: BusSession, text: str) -> None:
    sam.call("search", text=text)


def test_a_bus_finds_everything_again_when_its_engine_changes() -> None:
    need_search()
    with ThrowAwayBus(search_engine="sqlite") as bus:
        with bus.attach() as sam:
            first = send(sam, "first word")
            wait_found(sam, [first], text="word")
        for engine in ("redis", "sqlite"):
            assert bus.stop() == 0
            bus.configure(search_engine=engine)
            bus.start()
            with bus.attach() as sam:
                newest = send(sam, f"word of {engine}")
                wait_found(sam, [newest], text=engine)
                answer = sam.call("search", text="word")
                assert answer["engine"] == engine
                assert answer["messages"][-1]["message_id"] == first
        assert len(answer["messages"]) == 3


def test_after_a_crash_sqlite_finds_exactly_what_was_committed() -> None:
    with ThrowAwayBus(search_engine="sqlite") as bus:
        with bus.attach() as sam:
            sent = [send(sam, f"word {number}") for number in range(20)]
        bus.kill()
        bus.start()
        with bus.attach() as sam:
            assert found(sam, text="word") == sent[::-1]


def test_a_search_during_a_recovery_says_so_and_works_after_it() -> None:
    need_search()
    with ThrowAwayBus(search_engine="redis") as bus, bus.attach() as sam:
        message_id = send(sam, "word")
        wait_found(sam, [message_id], text="word")
        pid = bus.redis_pid()
        assert pid is not None
        kill(pid)
        deadline_s = time.monotonic() + 30.0
        while True:
            assert time.monotonic() < deadline_s
            try:
                again = found(sam, text="word")
            except UnavailableError:
                continue
            if bus.redis_pid() not in (pid, None):
                break
        assert again == [message_id]


def test_a_redis_that_comes_back_without_search_leaves_it_to_sqlite(short_folder: Path) -> None:
    need_search()
    flag = short_folder / "no-module"
    server = find_redis(DEFAULT_EXECUTABLE)[0].executable
    executable = executable_script(
        short_folder,
        f"""
        [ -e {flag} ] && while [ "$1" ]; do
            [ "$1" = --loadmodule ] && break
            kept="$kept '$1'"; [ "$1" = --save ] && {{ kept="$kept ''"; shift; }}; shift
        done
        if [ -e {flag} ]; then eval exec {server} "$kept"; else exec {server} "$@"; fi
        """,
    )
    with ThrowAwayBus(redis_executable=str(executable)) as bus:
        with bus.attach() as sam:
            message_id = send(sam, "word")
            wait_found(sam, [message_id], text="word")
            assert sam.call("search", text="word")["engine"] == "redis"
        flag.touch()
        pid = bus.redis_pid()
        assert pid is not None
        kill(pid)
        assert bus.wait_ended(30.0) == 1
        assert "Redis came back without search" in bus.log()
        bus.start()
        with bus.attach() as sam:
            answer = sam.call("search", text="word")
        assert answer["engine"] == "sqlite"
        assert [message["message_id"] for message in answer["messages"]] == [message_id]
