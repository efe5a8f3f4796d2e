"""Scenarios of parts that end: how long until the bus is there again, and what has become of it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import closing, suppress
from itertools import count

from agentbus.errors import BusError, UnavailableError
from agentbus.ids import new_id
from tests.benchmarks.content import contents
from tests.benchmarks.filling import CHANNELS
from tests.benchmarks.reading import START_WITHIN_S, filled_bus
from tests.benchmarks.scale import Rounds, Scale
from tests.bus_fixture import ANSWER_WITHIN_S, ThrowAwayBus
from tests.eventually import eventually
from tests.signals import kill

SENDERS = 4
RETRY_S = 0.02
DRAIN_WITHIN_S = 60.0


def measure_rebuild(scale: Scale) -> Rounds:
    """Redis killed; the daemon stopped and started; the daemon killed and started."""
    with filled_bus(scale.messages) as bus:
        bus.start(START_WITHIN_S)
        while True:
            kill_redis_s = _seconds_to_ready_after_redis(bus)
            bus.stop()
            after_stop_s = _seconds_to_start(bus)
            bus.kill()
            after_kill_s = _seconds_to_start(bus)
            yield {
                "messages": scale.messages,
                "Redis killed: s to ready": kill_redis_s,
                "start after stop: s": after_stop_s,
                "start after kill -9: s": after_kill_s,
            }


def _seconds_to_start(bus: ThrowAwayBus) -> float:
    begin_s = time.monotonic()
    bus.start(START_WITHIN_S)
    return time.monotonic() - begin_s


def _seconds_to_ready_after_redis(bus: ThrowAwayBus) -> float:
    """With a message right after the kill, so that the bus notices what it has lost."""
    with bus.attach("Witness") as witness:
        epoch = witness.facts["epoch"]
        begin_s = time.monotonic()
        _kill_redis(bus)
        with suppress(UnavailableError):  # or it has noticed already
            witness.call("send", channel="channel0", content="Is anybody there?")
        with bus.client() as client:

            def has_recovered() -> bool:
                told = client.request("heartbeat", {}, ANSWER_WITHIN_S)
                return bool(told["state"] == "ready" and told["epoch"] > epoch)

            eventually(has_recovered, START_WITHIN_S, what="the recovery")
        return time.monotonic() - begin_s


def _kill_redis(bus: ThrowAwayBus) -> None:
    pid = bus.redis_pid()
    assert pid is not None
    kill(pid)


def measure_redis_killed(scale: Scale) -> Rounds:
    """Redis killed while clients send and one receives: when sends go on, and whether everything
    that was accepted has arrived, once."""
    with filled_bus(scale.messages) as bus:
        bus.start(START_WITHIN_S)
        while True:
            with closing(_Load(bus)) as load:
                load.run_for(scale.seconds)
                killed_s = time.monotonic()
                _kill_redis(bus)
                resumed_s = load.wait_resumed()
                load.run_for(scale.seconds)
                load.stop_sending()
                load.drain()
                yield {
                    "messages retained": scale.messages,
                    "sends resume after s": resumed_s - killed_s,
                    "accepted": len(load.accepted),
                    "lost": len(load.accepted - load.received.keys()),
                    "twice": sum(times > 1 for times in load.received.values()),
                }


class _Load:
    """Senders that repeat what is refused with the same operation id, and one receiver."""

    def __init__(self, bus: ThrowAwayBus) -> None:
        self._bus = bus
        self._texts = contents()
        self._stopping = threading.Event()
        self._drained = threading.Event()
        self.accepted: set[str] = set()
        self.received: Counter[str] = Counter()
        self._resumed_s = 0.0
        self._subscribed = threading.Event()
        self._senders = [
            threading.Thread(target=self._send, args=(number,)) for number in range(SENDERS)
        ]
        self._receiver = threading.Thread(target=self._receive)
        self._receiver.start()
        self._subscribed.wait()
        for sender in self._senders:
            sender.start()

    def run_for(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def wait_resumed(self) -> float:
        """When the first send was accepted that had been refused before."""
        return eventually(lambda: self._resumed_s, START_WITHIN_S, what="a send after a refusal")

    def stop_sending(self) -> None:
        self._stopping.set()
        for sender in self._senders:
            sender.join()

    def drain(self) -> None:
        """Until all that was accepted has arrived; what never comes is counted as lost."""
        deadline_s = time.monotonic() + DRAIN_WITHIN_S
        while time.monotonic() < deadline_s and not self.accepted <= self.received.keys():
            time.sleep(RETRY_S)

    def close(self) -> None:
        self.stop_sending()
        self._drained.set()
        self._receiver.join()

    def _send(self, sender: int) -> None:
        with self._bus.attach(f"Sender{sender}") as session:
            for number in count():
                if self._stopping.is_set():
                    return
                operation_id, text = new_id(), self._texts[number % len(self._texts)]
                refused = False
                while True:
                    try:
                        receipt = session.call(
                            "send",
                            channel=f"channel{number % CHANNELS}",
                            content=text,
                            operation_id=operation_id,
                        )
                    except BusError as error:
                        if not error.retryable:
                            raise
                        refused = True
                        time.sleep(RETRY_S)
                        continue
                    break
                if refused and not self._resumed_s:
                    self._resumed_s = time.monotonic()
                self.accepted.add(receipt["message_id"])

    def _receive(self) -> None:
        with self._bus.attach("Receiver") as session:
            after = {}
            for number in range(CHANNELS):
                subscribed = session.call("subscribe", channel=f"channel{number}")
                after[subscribed["subscription_id"]] = subscribed["from_sequence"] - 1
            self._subscribed.set()
            while not self._drained.is_set():
                try:
                    deliveries = session.pull(after, wait_ms=200)
                except BusError as error:
                    if not error.retryable:
                        raise
                    time.sleep(RETRY_S)
                    continue
                for delivery in deliveries:
                    after[delivery["subscription"]] = delivery["through"]
                    for _, envelope in delivery["records"]:
                        self.received[envelope["message_id"]] += 1
