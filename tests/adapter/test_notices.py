"""Notices of changed memories: the newest of each, bounded, told once."""

from __future__ import annotations

from typing import Any

from agentbus.adapter.notices import NOTICES_BYTES, MemoryNotices
from agentbus.limits import MEMORY_CHANGES


def notice(number: int, revision: int = 2, channel: str = "facts", content: str = "") -> Any:
    memory_id = f"memory-{number}"
    return {
        "kind": "memory_edited",
        "memory_id": memory_id,
        "revision": revision,
        "channel": channel,
        "content": content,
    }


def test_the_newest_of_each_memory_waits_in_order_of_change() -> None:
    notices = MemoryNotices()
    for number, revision in ((1, 2), (2, 2), (1, 3)):
        notices.add(notice(number, revision))
    assert notices.of((), 10_000) == (notice(2), notice(1, 3))


def test_a_notice_waits_until_a_result_with_it_was_handed_off() -> None:
    notices = MemoryNotices()
    notices.add(notice(1))
    notices.add(notice(2))
    told = notices.of((), 10_000)
    notices.add(notice(2, revision=3))
    notices.told(told)
    assert notices.of((), 10_000) == (notice(2, revision=3),)


def test_what_an_attachment_lists_again_is_told_once() -> None:
    notices = MemoryNotices()
    edited = notice(1, content="text")
    notices.add(edited)
    listed = {key: value for key, value in edited.items() if key != "content"}
    notices.add(listed)
    assert notices.of((), 10_000) == (edited,), "the one with the text is kept"
    notices.told(notices.of((), 10_000))
    notices.add(listed)
    assert notices.of((), 10_000) == ()
    deleted = {**listed, "kind": "memory_deleted"}
    notices.add(deleted)
    assert notices.of((), 10_000) == (deleted,)


def test_only_those_of_the_named_channels_are_told() -> None:
    notices = MemoryNotices()
    notices.add(notice(1, channel="facts"))
    notices.add(notice(2, channel="plans"))
    assert notices.of(("plans",), 10_000) == (notice(2, channel="plans"),)


def test_the_oldest_are_given_up_when_there_are_too_many_or_they_are_too_large() -> None:
    notices = MemoryNotices()
    for number in range(MEMORY_CHANGES + 5):
        notices.add(notice(number))
    assert len(notices.of((), 10**9)) == MEMORY_CHANGES
    for number in range(100):
        notices.add(notice(number, content="x" * 2048))
    waiting = notices.of((), 10**9)
    assert len(waiting) == NOTICES_BYTES // 2150
    assert waiting[-1]["memory_id"] == "memory-99"


def test_a_small_result_gets_at_least_one() -> None:
    notices = MemoryNotices()
    notices.add(notice(1))
    notices.add(notice(2))
    assert notices.of((), 1) == (notice(1),)
