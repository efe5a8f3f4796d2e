"""What every actor is: a mailbox, one handler, and a known way to begin and to end.

Owns the life of an actor on top of Pykka: start that reports failure, the loop, the end. Never
knows what a message means. `Address.tell` runs on any thread; `__init__` runs on the creator's,
`on_start`, `receive`, `on_stop` and `on_failure` on the actor's own.

What differs from Pykka, and why:

1. `start_actor` raises what `on_start` raised; Pykka's `start()` returns a ref to a dead actor.
2. Telling a dead actor is counted, not raised: an error there would kill the teller (mailbox.py).
3. A `BusError` is answered through the message's `reply_to`, and the actor lives on.
4. A `BaseException` is the failure of that one actor; Pykka stops all actors of the process.
5. A failure is logged by type and frames. Texts and messages may hold what users wrote.
"""

from __future__ import annotations

import abc
import logging
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import pykka
from pykka._envelope import Envelope

from actors.mailbox import Mailbox, answer
from agentbus.errors import BusError, InternalError, UnavailableError

logger = logging.getLogger(__name__)

M_contra = TypeVar("M_contra", contravariant=True)

Crashed = Callable[[str, BaseException], None]
"""Told once, as the last thing an actor does after a failure: its name and the error."""

_ENDED_POLL_S = 0.005

START_WITHIN_S = 10.0
"""How long `start_actor` waits for `on_start`: opening files and starting Redis take a second."""


class Reply(Protocol):
    """Where the answer to a request goes: a connection in the daemon, a `FutureReply` in a test."""

    def set(self, value: Any) -> None: ...

    def set_exception(self, error: BaseException) -> None: ...


class FutureReply:
    """A reply that somebody waits for. Answering twice is an error of the answerer and raises."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: Future[Any] = Future()

    def set(self, value: Any) -> None:
        self._future.set_result(value)

    def set_exception(self, error: BaseException) -> None:
        self._future.set_exception(error)

    def get(self, timeout_s: float) -> Any:
        """The value, or raise the error that was set; `TimeoutError` if neither came in time."""
        return self._future.result(timeout_s)


@dataclass(frozen=True, slots=True)
class ActorStatistics:
    """One actor at one moment, read without disturbing it; the counters are since its start."""

    name: str
    alive: bool
    busy: bool  # inside `receive`
    mailbox_length: int  # messages waiting
    processed: int  # messages handled
    dead_tells: int  # messages told to it after its end


class Address(Generic[M_contra]):
    """The only thing one actor knows of another. Hashable; equal if it is the same actor."""

    __slots__ = ("_put", "name", "ref")

    def __init__(self, name: str, ref: pykka.ActorRef[Any]) -> None:
        self.name = name
        self.ref = ref
        self._put: Callable[[Any], None] = ref.actor_inbox.put

    def tell(self, message: M_contra) -> None:
        """Put the message into the mailbox; never blocks, never raises, counted if nobody reads."""
        self._put(message)

    def stop(self) -> None:
        """Ask the actor to end once it has handled what was told before; does not wait."""
        self.announce_stop()
        self.ref.stop(block=False)

    def announce_stop(self) -> None:
        """It is or soon will be asked to end: from here on it may give up what takes long."""
        self._mailbox().stop_waits = True

    @property
    def alive(self) -> bool:
        return self.ref.is_alive()

    @property
    def ended(self) -> bool:
        """Whether it is over, `on_stop` included; until then it may hold what it owns."""
        return self._mailbox().closed

    def statistics(self) -> ActorStatistics:
        """Whole numbers only, so any thread may ask at any time."""
        mailbox = self._mailbox()
        processed = mailbox.processed  # before `taken`, or an idle actor could look busy
        return ActorStatistics(
            name=self.name,
            alive=self.alive,
            busy=mailbox.taken > processed,
            mailbox_length=len(mailbox),
            processed=processed,
            dead_tells=mailbox.dead_tells,
        )

    def _mailbox(self) -> Mailbox:
        mailbox = self.ref.actor_inbox
        assert isinstance(mailbox, Mailbox)
        return mailbox

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and self.ref.actor_urn == other.ref.actor_urn

    def __hash__(self) -> int:
        return hash(self.ref.actor_urn)

    def __repr__(self) -> str:
        return f"<Address of {self.name}>"


class MailboxActor(pykka.Actor, Generic[M_contra]):
    """What threaded and pooled actors share: everything but the thread that runs them.

    1. `on_start` comes first, then messages one at a time in the order in which they were put.
    2. After `stop` or a failure no further message is handled; the rest is buried (mailbox.py).
    3. `on_stop` runs when it was stopped, `on_failure` when a told message failed, never both
       for one cause. After any failure `crashed` is called, when the actor holds nothing any more.
    """

    actor_inbox: Mailbox
    name: str

    def __init__(self) -> None:
        super().__init__()
        self.name = type(self).__name__
        self._crashed: Crashed | None = None
        self._started: Future[None] | None = None
        self._failure: BaseException | None = None

    @classmethod
    def start(cls, *args: Any, **kwargs: Any) -> pykka.ActorRef[Self]:
        """Pykka's: make it, start it, do not wait. Daemon code calls `start_actor`."""
        actor = cls(*args, **kwargs)
        start_actor(actor, within_s=None)
        return actor.actor_ref

    @property
    def address(self) -> Address[M_contra]:
        return Address(self.name, self.actor_ref)

    @abc.abstractmethod
    def receive(self, message: M_contra) -> None:
        """Handle one message. A `BusError` answers the asker; anything else ends the actor."""

    def on_receive(self, message: M_contra) -> Any:
        """Pykka's hook around `receive`; its return value answers an `ask`."""
        try:
            return self.receive(message)
        except BusError as error:
            if not answer(message, error):
                raise

    def mailbox_is_empty(self) -> bool:
        """Whether nothing waits right now: the moment to finish a batch."""
        return self.actor_inbox.empty()

    def stop_waits(self) -> bool:
        """Whether the actor has been asked to end: the moment to give up what takes long."""
        return self.actor_inbox.stop_waits

    # The life of an actor: _begin, _handle for each item, _end. All on the actor's own thread.

    def _begin(self) -> None:
        try:
            self.on_start()
        except BaseException as error:
            self._handle_failure(type(error), error, error.__traceback__)
        else:
            if self._started is not None:
                _resolve(self._started, None)

    def _handle(self, item: Any) -> None:
        mailbox = self.actor_inbox
        mailbox.taken += 1
        if type(item) is Envelope:
            self._handle_envelope(item)
        else:
            try:
                self.on_receive(item)
            except BaseException as error:
                self._fail(item, error)
        mailbox.processed += 1

    def _handle_envelope(self, envelope: Envelope[Any]) -> None:
        """An envelope comes from a ref: an `ask`, a stop, a proxy call, or Pykka's `tell`."""
        message, reply_to = envelope.message, envelope.reply_to
        try:
            response = self._handle_receive(message)
        except BaseException as error:
            if reply_to is None:
                self._fail(message, error)
                return
            if not isinstance(error, Exception):
                self._fail(message, error)
            reply_to.set_exception((type(error), error, error.__traceback__))
        else:
            if reply_to is not None:
                reply_to.set(response)

    def _stop(self) -> None:
        """Pykka's, run when the stop comes out of the mailbox; any error of `on_stop` ends here."""
        pykka.ActorRegistry.unregister(self.actor_ref)
        self.actor_stopped.set()
        try:
            self.on_stop()
        except BaseException as error:
            self._handle_failure(type(error), error, error.__traceback__)

    def _fail(self, message: Any, error: BaseException) -> None:
        self._handle_failure(type(error), error, error.__traceback__)
        answer(message, InternalError(f"{self.name} failed; the daemon's log has the details"))
        try:
            self.on_failure(type(error), error, error.__traceback__)
        except BaseException as second:
            self._handle_failure(type(second), second, second.__traceback__)

    def _handle_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Pykka's: log, unregister and stop. Here without the text of the error."""
        assert exception_value is not None
        logger.error("%s failed: %s", self.name, describe_failure(exception_value))
        pykka.ActorRegistry.unregister(self.actor_ref)
        self.actor_stopped.set()
        if self._failure is None:
            self._failure = exception_value

    def _end(self) -> None:
        self.actor_inbox.close()
        failure, self._failure = self._failure, None
        if failure is None:
            return
        if self._started is not None and _resolve(self._started, failure):
            return  # whoever waits in start_actor raises it
        if self._crashed is not None:
            try:
                self._crashed(self.name, failure)
            except Exception as error:
                logger.error("the report of %s failed: %s", self.name, describe_failure(error))


class BusActor(MailboxActor[M_contra], pykka.ThreadingActor):
    """An actor with a thread of its own, named like the actor. It may block; others do not wait."""

    @staticmethod
    def _create_actor_inbox() -> Mailbox:
        return Mailbox()

    def _start_actor_loop(self) -> None:
        threading.Thread(
            target=self._actor_loop, name=self.name, daemon=self.use_daemon_thread
        ).start()

    def _actor_loop(self) -> None:
        self._begin()
        take, handle, stopped = self.actor_inbox.get, self._handle, self.actor_stopped.is_set
        while not stopped():
            handle(take())
        self._end()


def start_actor(
    actor: MailboxActor[M_contra],
    *,
    label: str = "",
    crashed: Crashed | None = None,
    within_s: float | None = START_WITHIN_S,
) -> Address[M_contra]:
    """Start an actor that was just made, wait until `on_start` is done, raise what it raised.

    `label` tells actors of one class apart. With `within_s=None` it does not wait, as one actor
    that starts another must not; a failed `on_start` then goes to `crashed`. An actor that is too
    slow is told to stop, and `UnavailableError` is raised.
    """
    if label:
        actor.name = f"{actor.name}-{label}"
    actor._crashed = crashed
    started: Future[None] = Future()
    if within_s is not None:
        actor._started = started
    pykka.ActorRegistry.register(actor.actor_ref)
    try:
        actor._start_actor_loop()
    except BaseException:
        pykka.ActorRegistry.unregister(actor.actor_ref)
        raise
    address = actor.address
    if within_s is None:
        return address
    try:
        started.result(within_s)
    except TimeoutError:
        if not started.cancel():
            started.result()  # it was decided at the last moment
            return address
        address.stop()
        raise UnavailableError(f"{actor.name} did not start within {within_s:g} s") from None
    return address


def stop_actor(address: Address[Any], within_s: float) -> bool:
    """Stop an actor and wait until its `on_stop` is done; False if it is still busy by then."""
    deadline_s = time.monotonic() + within_s
    address.announce_stop()
    try:
        address.ref.stop(timeout=within_s)
    except pykka.Timeout:
        return False
    # Pykka does not wait when somebody else has asked before and `on_stop` still runs.
    while not address.ended:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_ENDED_POLL_S)
    return True


def describe_failure(error: BaseException) -> str:
    """Types and frames of an error and its causes, without their texts."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\nbecause of ".join(_type_and_frames(error) for error in chain)


def _type_and_frames(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = "".join(f"\n  {frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{type(error).__name__}{where}"


def _resolve(started: Future[None], error: BaseException | None) -> bool:
    """Settle the start for whoever waits for it; False if nobody does any more."""
    try:
        if error is None:
            started.set_result(None)
        else:
            started.set_exception(error)
    except InvalidStateError:
        return False
    return True
