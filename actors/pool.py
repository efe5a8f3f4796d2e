"""Actors without a thread of their own: thousands of them share the few threads of a dispatcher.

Owns the ready queue and who runs which actor when. Never knows what an actor does. `put` runs on
any thread; everything an actor does runs on one dispatcher thread at a time, so its fields need no
lock. A pooled actor must never block: while it does, a dispatcher thread is gone for all others.

The token of a mailbox is what makes "one thread at a time" true. Whoever acquires it must queue
the actor as ready or run it:

    teller:      put the item, then try the token; who gets it queues the actor
    dispatcher:  run at most `quantum` items; if more wait, queue the actor again, token in hand;
                 else give the token back, look once more, and try the token like a teller

An item put before the token was given back is seen by that second look, one put after it by its
teller. An actor that ended keeps its token for ever, so it cannot be queued again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pykka

from actors.base import Address, Crashed, M_contra, MailboxActor, start_actor
from actors.mailbox import Mailbox
from agentbus.errors import UnavailableError

THREADS = 4
"""Enough that one long handler does not stall the rest; more only compete for the interpreter."""

QUANTUM_MESSAGES = 32
"""Messages one actor may handle before others get their turn: some 100 µs of small handlers."""


class PooledMailbox(Mailbox):
    """A mailbox that makes its actor ready when something is put into it."""

    __slots__ = ("ready", "token")

    def __init__(self) -> None:
        super().__init__()
        self.token = threading.Lock()
        self.token.acquire()  # held until the dispatcher has run `on_start`
        self.ready: Callable[[], None] = _not_started

    def put(self, item: Any) -> None:
        self._queue.put(item)
        if self.token.acquire(False):
            self.ready()
        elif self.closed:
            self.bury()


def _not_started() -> None:
    raise AssertionError("the token is held until the actor has started")


class PooledActor(MailboxActor[M_contra]):
    """A Pykka actor run by a `Dispatcher`. Subclasses may set `dispatcher` for Pykka's `start()`.

    Invariants: those of `MailboxActor`; between two messages any dispatcher thread may take over.
    """

    actor_inbox: PooledMailbox
    dispatcher: Dispatcher
    _begun = False

    @staticmethod
    def _create_actor_inbox() -> PooledMailbox:
        return PooledMailbox()

    @staticmethod
    def _create_future() -> pykka.Future[Any]:
        return pykka.ThreadingFuture()

    def _start_actor_loop(self) -> None:
        self.dispatcher.adopt(self)

    def run(self, quantum: int) -> bool:
        """Handle at most `quantum` items; True once the actor has ended. Needs the token."""
        if not self._begun:
            self._begun = True
            self._begin()
        waiting, take, stopped = self.actor_inbox, self.actor_inbox.get, self.actor_stopped.is_set
        while quantum and not stopped() and not waiting.empty():
            self._handle(take())
            quantum -= 1
        if not stopped():
            return False
        self._end()
        return True


@dataclass(frozen=True, slots=True)
class DispatcherStatistics:
    """The load of a dispatcher at one moment."""

    threads: int
    actors: int  # alive
    ready: int  # actors with messages that wait for a thread


class Dispatcher:
    """A few threads that run any number of pooled actors, in turn."""

    def __init__(
        self, threads: int = THREADS, quantum: int = QUANTUM_MESSAGES, name: str = "dispatcher"
    ) -> None:
        self._quantum = quantum
        self._ready: queue.SimpleQueue[PooledActor[Any] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        # By urn, oldest first. Holds the actors, because Pykka's refs hold them only weakly.
        self._actors: dict[str, PooledActor[Any]] = {}
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}")
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def start(
        self, actor: PooledActor[M_contra], *, label: str = "", crashed: Crashed | None = None
    ) -> Address[M_contra]:
        """Start a pooled actor on these threads. Never waits: a failed `on_start` is `crashed`."""
        actor.dispatcher = self
        return start_actor(actor, label=label, crashed=crashed, within_s=None)

    def stop(self, within_s: float) -> bool:
        """Stop the actors, then the threads; False if some are still busy after `within_s`.

        Oldest actor first, because Pykka's registry is a list: the front is found at once. Must
        not be called by a pooled actor.
        """
        deadline_s = time.monotonic() + within_s
        with self._changed:
            self._stopping = True
            actors = list(self._actors.values())
        for actor in actors:
            actor.actor_ref.stop(block=False)
        with self._changed:
            ended = self._changed.wait_for(lambda: not self._actors, within_s)
        for _ in self._threads:
            self._ready.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return ended and not any(thread.is_alive() for thread in self._threads)

    def statistics(self) -> DispatcherStatistics:
        with self._changed:
            actors = len(self._actors)
        return DispatcherStatistics(
            threads=len(self._threads), actors=actors, ready=self._ready.qsize()
        )

    def adopt(self, actor: PooledActor[Any]) -> None:
        """Pykka's "start the loop": the actor runs `on_start` as soon as a thread is free."""
        with self._changed:
            if self._stopping:
                raise UnavailableError("the daemon is stopping; no new actor can start")
            self._actors[actor.actor_urn] = actor
        actor.actor_inbox.ready = lambda: self._ready.put(actor)
        self._ready.put(actor)

    def _work(self) -> None:
        while (actor := self._ready.get()) is not None:
            mailbox = actor.actor_inbox
            if actor.run(self._quantum):
                self._release(actor)
                continue
            if not mailbox.empty():
                self._ready.put(actor)
                continue
            mailbox.token.release()
            if not mailbox.empty() and mailbox.token.acquire(False):
                self._ready.put(actor)

    def _release(self, actor: PooledActor[Any]) -> None:
        actor.actor_inbox.ready = _not_started  # lets go of the actor; its refs may live on
        with self._changed:
            del self._actors[actor.actor_urn]
            if not self._actors:
                self._changed.notify_all()
