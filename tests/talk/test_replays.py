"""First answers for repeats: one run per key, however the repeats come, within bounds."""

from __future__ import annotations

import asyncio

import pytest

from agentbus.errors import ConflictError
from agentbus.talk.handler import Answered, NotAnswered
from agentbus.talk.replays import ANSWERS, ANSWERS_BYTES, Replays
from tests.clock import FakeClock


class Counter:
    """Answers with the number of the run."""

    def __init__(self) -> None:
        self.runs = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def __call__(self) -> Answered | NotAnswered:
        self.runs += 1
        number = self.runs
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return Answered(str(number))


def test_repeats_get_the_first_answer_until_it_is_old(clock: FakeClock) -> None:
    async def story() -> None:
        replays, run = Replays(60.0, clock), Counter()
        assert await replays.once("a", "k", "p", run) == Answered("1")
        clock.advance(59.9)
        assert await replays.once("a", "k", "p", run) == Answered("1")
        clock.advance(0.2)
        assert await replays.once("a", "k", "p", run) == Answered("2")

    asyncio.run(story())


def test_repeats_that_come_meanwhile_wait_for_the_first(clock: FakeClock) -> None:
    async def story() -> None:
        replays, run = Replays(60.0, clock), Counter()
        run.gate.clear()
        asking = [asyncio.create_task(replays.once("a", "k", "p", run)) for _ in range(20)]
        await asyncio.sleep(0)
        with pytest.raises(ConflictError):
            await replays.once("a", "k", "another", run)
        asking[3].cancel()
        run.gate.set()
        answers = await asyncio.gather(*asking[:3], *asking[4:])
        assert set(answers) == {Answered("1")}
        assert run.runs == 1

    asyncio.run(story())


def test_fault_is_no_answer(clock: FakeClock) -> None:
    async def story() -> None:
        replays, run = Replays(60.0, clock), Counter()
        run.error = RuntimeError("broken")
        for _ in range(2):
            with pytest.raises(RuntimeError):
                await replays.once("a", "k", "p", run)
        run.error = None
        assert await replays.once("a", "k", "p", run) == Answered("3")

    asyncio.run(story())


def test_that_nobody_was_there_to_answer_is_no_answer(clock: FakeClock) -> None:
    async def story() -> None:
        replays, run = Replays(60.0, clock), Counter()
        full = NotAnswered("instance_unavailable", "256 commands are running here")

        async def refuse() -> NotAnswered:
            await run.gate.wait()
            return full

        run.gate.clear()
        asking = [asyncio.create_task(replays.once("a", "k", "p", refuse)) for _ in range(3)]
        await asyncio.sleep(0)
        run.gate.set()
        assert await asyncio.gather(*asking) == [full] * 3
        assert await replays.once("a", "k", "another", run) == Answered("1")
        assert await replays.once("a", "k", "another", run) == Answered("1")

    asyncio.run(story())


def test_failure_that_may_have_done_something_is_an_answer(clock: FakeClock) -> None:
    async def story() -> None:
        replays, run = Replays(60.0, clock), Counter()
        failed = NotAnswered("timeout", "no answer within 60 s")

        async def fail() -> NotAnswered:
            return failed

        assert await replays.once("a", "k", "p", fail) == failed
        assert await replays.once("a", "k", "p", run) == failed

    asyncio.run(story())


def test_only_so_many_are_kept(clock: FakeClock) -> None:
    async def story() -> None:
        replays, run = Replays(60.0, clock), Counter()
        for number in range(ANSWERS + 1):
            await replays.once("a", str(number), "p", run)
        assert await replays.once("a", "1", "p", run) == Answered("2")
        assert await replays.once("a", "0", "p", run) == Answered(str(ANSWERS + 2))

    asyncio.run(story())


def test_only_so_much_is_kept(clock: FakeClock) -> None:
    async def story() -> None:
        replays = Replays(60.0, clock)
        runs: list[str] = []

        async def say(key: str) -> Answered:
            runs.append(key)
            return Answered("x" * (ANSWERS_BYTES // 4))

        for key in ("a", "b", "c", "d", "e", "b", "a"):
            await replays.once("caller", key, "p", lambda key=key: say(key))
        assert runs == ["a", "b", "c", "d", "e", "a"]

    asyncio.run(story())
