"""The single writer: every durable change of the bus is decided and committed here.

Owns the SQLite write connection, through `LedgerStore`, on its own thread. Never touches Redis,
never waits for another actor. Success is answered after COMMIT and only then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from actors.base import Address, BusActor
from actors.messages import (
    CatchUp,
    Committed,
    Fence,
    LedgerMessage,
    ProjectorMessage,
    RateRefunded,
    Submit,
    SubscriptionsChanged,
    Unfence,
)
from agentbus.errors import UnavailableError, UnknownOutcomeError
from agentbus.ids import RecoveryEpoch
from agentbus.limits import BATCH_BYTES, BATCH_OPERATIONS
from agentbus.store.changes import (
    Done,
    Fact,
    Outcome,
    SubscriptionClosed,
    SubscriptionExpired,
    SubscriptionOpened,
)
from agentbus.store.connection import CommitUncertain
from agentbus.store.ledger import LedgerStatistics, LedgerStore
from agentbus.transport.connection import corked

_SUBSCRIPTION_FACTS = (SubscriptionOpened, SubscriptionClosed, SubscriptionExpired)


class ReceiptLedgerActor(BusActor[LedgerMessage]):
    """Group commit over the mailbox.

    1. Changes are applied in mailbox order; their sequences are in that order.
    2. A batch is committed when the mailbox is empty or the batch is full; a lone change at once.
    3. Facts are told to the projector in commit order, never before the commit.
    4. When COMMIT itself fails, nobody knows what is on disk: all callers hear `unknown` and this
       actor dies; the daemon then ends and the next one reads the receipts from disk.
    5. While fenced no change is accepted. The fence rides the mailbox, so that everything before it
       is committed and told before the projector is asked to catch up.
    """

    def __init__(
        self,
        open_store: Callable[[], LedgerStore],
        projector: Address[ProjectorMessage],
    ) -> None:
        super().__init__()
        self._open_store = open_store
        self._projector = projector
        self._store: LedgerStore | None = None
        self._batch: list[Submit] = []
        self._batch_bytes = 0
        self._fence: Fence | None = Fence(RecoveryEpoch(0), retry_after_ms=200)

    def on_start(self) -> None:
        self._store = self._open_store()  # on this thread, which alone uses it

    def on_stop(self) -> None:
        self._commit()
        if self._store is not None:
            self._store.close()

    def ledger_statistics(self) -> LedgerStatistics:
        """Whole numbers; any thread may ask, once the actor has started."""
        assert self._store is not None
        return self._store.statistics()

    def receive(self, message: LedgerMessage) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Fence():
                self._raise_fence(message)
            case Unfence():
                self._lower_fence(message)
            case _:
                assert_never(message)
        if (
            self.mailbox_is_empty()
            or len(self._batch) >= BATCH_OPERATIONS
            or self._batch_bytes >= BATCH_BYTES
        ):
            self._commit()

    def _submit(self, submit: Submit) -> None:
        if self._fence is not None:
            submit.reply_to.set_exception(
                UnavailableError(
                    "the bus is starting or recovering; nothing was committed, try again shortly",
                    retry_after_ms=self._fence.retry_after_ms,
                )
            )
            self._refund(submit)
            return
        self._batch.append(submit)
        self._batch_bytes += submit.reserved_bytes

    def _raise_fence(self, fence: Fence) -> None:
        self._commit()
        self._fence = fence
        assert self._store is not None
        self._projector.tell(CatchUp(fence.epoch, self._store.last_sequence))

    def _lower_fence(self, unfence: Unfence) -> None:
        if self._fence is not None and self._fence.epoch <= unfence.epoch:
            self._fence = None

    def _commit(self) -> None:
        if not self._batch:
            return
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        assert self._store is not None
        try:
            outcomes = self._store.apply([submit.change for submit in batch])
        except CommitUncertain:
            for submit in batch:
                submit.reply_to.set_exception(
                    UnknownOutcomeError(
                        "the disk did not say whether this was committed; retry with the same "
                        "operation id to find out"
                    )
                )
            raise
        facts: list[Fact] = []
        with corked():
            for submit, outcome in zip(batch, outcomes, strict=True):
                self._answer(submit, outcome)
                if isinstance(outcome, Done):
                    facts.extend(outcome.facts)
        if facts:
            self._projector.tell(Committed(tuple(facts), self._store.last_sequence))

    def _answer(self, submit: Submit, outcome: Outcome) -> None:
        if not isinstance(outcome, Done):
            submit.reply_to.set_exception(outcome.error)
            self._refund(submit)
            return
        submit.reply_to.set(outcome.result)
        if not outcome.charged:
            self._refund(submit)
        if submit.origin is not None:
            changed = tuple(fact for fact in outcome.facts if isinstance(fact, _SUBSCRIPTION_FACTS))
            if changed:
                submit.origin.tell(SubscriptionsChanged(changed))

    @staticmethod
    def _refund(submit: Submit) -> None:
        if submit.reserved_bytes and submit.origin is not None:
            submit.origin.tell(RateRefunded(submit.reserved_bytes))
