"""The mailbox of every actor: what was told waits here, and nothing told is lost without a count.

Owns the queue and its three counters. Never runs an actor and never looks into a message. `put` and
`bury` run on any thread, `get` on the one thread that runs the actor.

Pykka tests `is_alive()` and then puts, so an actor that ends between the two leaves the message in
a mailbox nobody reads. Here the order is the other way round on both sides:

    teller:  put the item,   then read `closed`;   if it is set, bury what is in the queue
    actor:   set `closed`,   then bury what is in the queue

Whichever comes second sees what the other did, so every item is either handled or buried, and the
queue hands each item to one thread only, so none is buried twice.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

from pykka import ActorDeadError
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from agentbus.errors import UnavailableError

logger = logging.getLogger(__name__)


class DeadTells:
    """How many messages this process told to actors that were already gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def add(self, mailbox: Mailbox) -> None:
        with self._lock:
            self._count += 1
            mailbox.dead_tells += 1

    @property
    def count(self) -> int:
        with self._lock:
            return self._count


DEAD_TELLS = DeadTells()


class Mailbox:
    """Unbounded FIFO; holds bare messages (from `Address.tell`) and Pykka's envelopes (from a ref).

    A bare message saves the envelope, which nothing but `ask` and Pykka's own messages needs.
    """

    __slots__ = ("_queue", "closed", "dead_tells", "processed", "stop_waits", "taken")

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.closed = False
        self.stop_waits = False  # set before the actor is asked to stop; it stays so
        self.taken = 0  # messages the actor has begun to handle; written by its thread only
        self.processed = 0  # messages it is done with; behind `taken` while it is busy
        self.dead_tells = 0  # messages buried unread; written under the lock of DEAD_TELLS

    def put(self, item: Any) -> None:
        self._queue.put(item)
        if self.closed:
            self.bury()

    def get(self) -> Any:
        return self._queue.get()

    def empty(self) -> bool:
        return self._queue.empty()

    def __len__(self) -> int:
        return self._queue.qsize()

    def __bool__(self) -> bool:
        return True

    def close(self) -> None:
        """The actor has ended: whatever is or will be put here is buried."""
        self.closed = True
        self.bury()

    def bury(self) -> None:
        """Take out what no actor will handle: answer whoever waits for an answer, count the rest.

        An operation told to a dead actor was certainly not begun, so its asker may try it again.
        """
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if type(item) is not Envelope:
                self._bury_told(item)
            elif item.reply_to is None:
                if not isinstance(item.message, _ActorStop):
                    self._bury_told(item.message)
            elif isinstance(item.message, _ActorStop):
                item.reply_to.set(None)
            else:
                error = ActorDeadError("the actor stopped before it handled the message")
                item.reply_to.set_exception((ActorDeadError, error, None))

    def _bury_told(self, message: Any) -> None:
        DEAD_TELLS.add(self)
        answer(message, UnavailableError("that part of the bus has just stopped; try again"))


def answer(message: Any, error: BaseException) -> bool:
    """Give `error` to the `reply_to` that a message may carry; False if there is nobody to tell.

    A reply that cannot take the answer (it has one, its connection is gone) must not become the
    failure of the actor that gives it.
    """
    reply_to = getattr(message, "reply_to", None)
    if reply_to is None:
        return False
    try:
        reply_to.set_exception(error)
    except Exception as refused:
        logger.warning("a reply refused its answer: %s", type(refused).__name__)
    return True
