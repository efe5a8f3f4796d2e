"""Posts one event to one callback at a time.

Owns nothing but the request of the moment, on a thread of its own that is blocked until it ends, up
to 10 s. Never decides whether to try again. A daemon that ends does not wait for it: the entry is
still in the outbox, and its idempotency key makes the repeat harmless.
"""

from __future__ import annotations

import logging

from actors.base import BusActor
from actors.job_messages import CallbackAttempted, PostCallback
from agentbus.clock import Clock
from agentbus.errors import ValidationError
from agentbus.failpoints import reach
from agentbus.jobs.delivery import NotNow, Outcome, Refused, attempt, destination
from agentbus.store.jobs.reading import Entry

logger = logging.getLogger(__name__)


class CallbackActor(BusActor[PostCallback]):
    """One attempt after the other. One that fails takes nothing along: the entry stays pending."""

    use_daemon_thread = True

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def receive(self, message: PostCallback) -> None:
        reach("before_callback")
        outcome = self._attempt(message.entry)
        reach("after_callback")
        message.keeper.tell(CallbackAttempted(message.entry, outcome, self.address))

    def _attempt(self, entry: Entry) -> Outcome:
        callback, row = entry.callback, entry.row
        try:
            to = destination(callback.url, callback.allowed_hosts, callback.secret)
        except ValidationError as error:  # of rules that became stricter since
            return Refused(error.message)
        try:
            return attempt(to, row.job, row.seq, row.body, self._clock.wall_us() // 1_000_000)
        except Exception as error:
            # Strangers answer here. What nobody thought of is one failed attempt among others: a
            # failure of this actor would end the daemon, and the next one at the same entry.
            logger.error("a callback failed: %s", type(error).__name__)
            return NotNow(f"the attempt failed with {type(error).__name__}")
