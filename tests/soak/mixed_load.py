"""Everything that agents do with a bus, at once and without end, until it is stopped.

Each activity is a thread of its own with its own sessions. One that fails ends the run: a soak in
which half of the load has quietly gone shows nothing.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from typing import TypeAlias

from tests.adapter.adapter_process import AdapterProcess
from tests.benchmarks.content import contents
from tests.bus_fixture import ThrowAwayBus

CHANNELS = 8
MEMORIES = 50
SEARCH_WORDS = 64
SENDERS = 2

Activity: TypeAlias = Generator[float, None, None]
"""Yields how long to pause, in seconds, after each step."""


def channel(number: int) -> str:
    return f"channel{number % CHANNELS}"


class MixedLoad:
    """`with MixedLoad(bus) as load:`; `adapters` are the processes that stay all the time."""

    def __init__(self, bus: ThrowAwayBus) -> None:
        self._bus = bus
        self._texts = contents()
        self._stack = ExitStack()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.failures: list[str] = []
        self.done: Counter[str] = Counter()
        self.adapters: list[AdapterProcess] = []

    def __enter__(self) -> MixedLoad:
        with self._stack:
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._stack.close()

    def check(self) -> None:
        """Raises when any activity has failed."""
        if self.failures:
            raise SystemExit("the load failed:\n" + "\n".join(self.failures))

    def _start(self) -> None:
        with self._bus.attach("Setup") as setup:
            for number in range(CHANNELS):
                setup.call("create_channel", name=channel(number))
            setup.call("create_channel", name="memories", kind="memory")
        for name in ("Ada", "Bo"):
            adapter = self._stack.enter_context(self._adapter(name, f"{name} stays"))
            self.adapters.append(adapter)
        activities: dict[str, Callable[[], Activity]] = {
            **{f"sender {number}": partial(self._sends, number) for number in range(SENDERS)},
            "puller": self._pulls,
            "memories": self._memories,
            "searcher": self._searches,
            "visitor": self._visits,
            "talker": partial(self._talks, self.adapters[0]),
            "listener": partial(self._listens, self.adapters[1]),
            "conversations": self._conversations,
        }
        for name, begin in activities.items():
            thread = threading.Thread(target=self._run, args=(name, begin), name=name)
            thread.start()
            self._threads.append(thread)

    def _run(self, name: str, begin: Callable[[], Activity]) -> None:
        try:
            with closing(begin()) as activity:
                for pause_s in activity:
                    self.done[name] += 1
                    if self._stopping.wait(pause_s):
                        return
        except BaseException:
            self.failures.append(f"{name}: {traceback.format_exc()}")

    def _adapter(self, agent: str, conversation: str) -> AdapterProcess:
        bus = self._bus
        adapter = AdapterProcess(
            bus.environment, bus.config_path, agent=agent, session=conversation
        )
        adapter.initialize()
        for number in range(CHANNELS):
            adapter.use("subscribe", channel=channel(number))
        return adapter

    # --- what is done, step by step ---

    def _sends(self, sender: int) -> Activity:
        """Ten messages a second each, in bursts of five."""
        with self._bus.attach(f"Sender{sender}") as session:
            for number in count():
                for at in range(5):
                    text = self._texts[(number * 5 + at) % len(self._texts)]
                    session.call("send", channel=channel(number), content=text, tags=["soak"])
                yield 0.5

    def _pulls(self) -> Activity:
        """A raw client that reads everything and reports what it has handed off."""
        with self._bus.attach("Puller") as session:
            after = {}
            for number in range(CHANNELS):
                subscribed = session.call("subscribe", channel=channel(number))
                after[subscribed["subscription_id"]] = subscribed["from_sequence"] - 1
            for number in count(1):
                for delivery in session.pull(after, wait_ms=500):
                    after[delivery["subscription"]] = delivery["through"]
                session.request(
                    "handoff",
                    epoch=session.facts["epoch"],
                    report=number,
                    positions=[list(item) for item in after.items()],
                )
                yield 0.0

    def _memories(self) -> Activity:
        """Creates, edits and deletes in turn; a bounded number lives."""
        chance = random.Random(1)
        living: list[str] = []
        with self._bus.attach("Keeper") as session:
            for number in count():
                text = self._texts[number % len(self._texts)]
                if len(living) < MEMORIES:
                    sent = session.call("send", channel="memories", content=text)
                    living.append(sent["message_id"])
                elif number % 5:
                    session.call(
                        "edit_memory",
                        **{"memory_id": chance.choice(living), "content": text},
                        operation_id=f"edit {number}",
                    )
                else:
                    memory_id = living.pop(chance.randrange(MEMORIES))
                    session.call(
                        "delete_memory", memory_id=memory_id, operation_id=f"delete {number}"
                    )
                yield 0.5

    def _searches(self) -> Activity:
        words = [word for text in self._texts[:16] for word in text.split()[1:] if len(word) > 3]
        with self._bus.attach("Searcher") as session:
            for number in count():
                word = words[number % SEARCH_WORDS % len(words)]
                session.call("search", text=word, count=20)
                session.call("history", channel=channel(number), count=100)
                yield 0.5

    def _visits(self) -> Activity:
        """A raw session that comes, says something and goes; every other one comes back."""
        for number in count():
            with self._bus.attach("Visitor", conversation=f"visit {number // 2}") as session:
                session.call("subscribe", channel=channel(number))
                session.call("send", channel=channel(number), content="Hello.")
            yield 1.0

    def _talks(self, adapter: AdapterProcess) -> Activity:
        for number in count():
            adapter.use("send", channel=channel(number), content=self._texts[number % 512])
            adapter.use("receive", count=100)
            yield 1.0

    def _listens(self, adapter: AdapterProcess) -> Activity:
        while True:
            adapter.use("receive", wait_seconds=2, count=100)
            yield 0.0

    def _conversations(self) -> Activity:
        """A whole conversation every few seconds: an adapter starts, is used, and ends."""
        for number in count():
            with self._adapter("Guest", f"guest {number // 2}") as adapter:
                adapter.use("receive", count=100)
                adapter.use("send", channel=channel(number), content="A short visit.")
                adapter.close_write()
                adapter.wait_exit()
            yield 3.0


def run_for(load: MixedLoad, seconds: float, every_s: float, look: Callable[[float], None]) -> None:
    """Call `look` with the time since the beginning, at that interval, and check the load."""
    begin_s = time.monotonic()
    for number in count(1):
        at_s = number * every_s
        time.sleep(max(0.0, begin_s + at_s - time.monotonic()))
        load.check()
        look(time.monotonic() - begin_s)
        if at_s >= seconds:
            return
