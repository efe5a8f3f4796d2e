"""The two ways to run an actor, so that every promise is tested against both."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pykka

from actors.base import BusActor, MailboxActor, Reply
from actors.pool import Dispatcher, PooledActor
from tests.eventually import PATIENCE_S


class Runtime:
    """Turns a behaviour (a `MailboxActor` without a thread) into a class that can be started."""

    def __init__(self, name: str, dispatcher: Dispatcher) -> None:
        self.name = name
        self.dispatcher = dispatcher

    def of(self, behaviour: type[Any]) -> type[Any]:
        if self.name == "threaded":
            return type(behaviour.__name__, (behaviour, BusActor), {})
        return type(behaviour.__name__, (behaviour, PooledActor), {"dispatcher": self.dispatcher})


@contextmanager
def running(name: str) -> Iterator[Runtime]:
    dispatcher = Dispatcher(threads=4, quantum=8)
    try:
        yield Runtime(name, dispatcher)
    finally:
        pykka.ActorRegistry.stop_all(timeout=PATIENCE_S)
        assert dispatcher.stop(PATIENCE_S)


@contextmanager
def switching_often() -> Iterator[None]:
    """Let threads interrupt each other every 10 µs, where races hide at the usual 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Recorder(MailboxActor[object]):
    """Writes down what happens to it; does what the message says."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []
        self.threads: set[str] = set()
        self.ended = threading.Event()

    def on_start(self) -> None:
        self.events.append("on_start")

    def on_stop(self) -> None:
        self.events.append("on_stop")

    def on_failure(self, exception_type: Any, exception_value: Any, traceback: Any) -> None:
        self.events.append(("on_failure", exception_type))

    def receive(self, message: object) -> Any:
        self.threads.add(threading.current_thread().name)
        self.events.append(message)
        if isinstance(message, BaseException):
            raise message
        if callable(message):
            return message()
        return None

    def crashed(self, name: str, error: BaseException) -> None:
        self.events.append(("crashed", name, error))
        self.ended.set()


@dataclass(frozen=True, slots=True)
class Asked:
    """A message with somebody to answer."""

    error: BaseException
    reply_to: Reply


class AskedActor(Recorder):
    def receive(self, message: object) -> None:
        super().receive(message)
        if isinstance(message, Asked):
            raise message.error


class LogRecords(logging.Handler):
    """What was logged, as text with every argument filled in."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(logging.Formatter().format(record))
