"""One HTTP request per event to the parent, repeated while that may help.

Owns the repeats within this process; what survives the process is the daemon's outbox. Waits on the
emitter's thread.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from agentbus.clock import Clock, SystemClock
from agentbus.errors import TooLargeError, ValidationError
from agentbus.jobs.delivery import Delivered, Destination, NotNow, Refused, attempt, backoff_ms
from agentbus.jobs.errors import DeliveryRefusedError, SinkError
from agentbus.jobs.events import Event, encode_event, is_terminal
from agentbus.limits import CALLBACK_ATTEMPTS

TERMINAL_FACTOR: Final = 3
"""The terminal event is tried so many times as often: it is the one that somebody waits for."""


class CallbackSink:
    """Posts every event to one destination, which has been checked."""

    def __init__(
        self,
        to: Destination,
        attempts: int = CALLBACK_ATTEMPTS,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], object] = time.sleep,
        draw: random.Random | None = None,
    ) -> None:
        """`attempts` in all for one event, the first one counted."""
        if attempts < 1:
            raise ValidationError("at least one attempt is needed to deliver an event")
        self._to = to
        self._attempts = attempts
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._draw = draw or random.SystemRandom()

    def emit(self, event: Event) -> None:
        body = encode_event(event)
        attempts = self._attempts * (TERMINAL_FACTOR if is_terminal(event) else 1)
        for made in range(1, attempts + 1):
            now_s = self._clock.wall_us() // 1_000_000
            match attempt(self._to, event.job_id, event.seq, body, now_s):
                case Delivered():
                    return
                case Refused(why, is_too_large=True):
                    raise TooLargeError(f"event {event.seq} was not delivered: {why}")
                case Refused(why):
                    raise DeliveryRefusedError(f"event {event.seq} was not delivered: {why}")
                case NotNow(why, retry_after_ms):
                    if made == attempts:
                        raise SinkError(
                            f"event {event.seq} was not delivered in {attempts} attempts: {why}"
                        )
                    self._sleep(backoff_ms(made, retry_after_ms, self._draw) / 1000)

    def close(self) -> None:
        """Nothing is held between two events."""
