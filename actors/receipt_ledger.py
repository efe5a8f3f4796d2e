"""The single writer: every durable change of the bus is decided and committed here.

Owns the SQLite write connection, through `LedgerStore`, on its own thread. Never touches Redis,
never waits for another actor. Success is answered after COMMIT and only then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from actors.base import Address, BusActor
from actors.cleanup_messages import (
    CapacityChanged,
    MeasureRedis,
    PruneWhileFenced,
    WatchCapacity,
)
from actors.inspections import InspectionDesk, refusal
from actors.messages import (
    STARTING,
    CatchUp,
    Committed,
    Fence,
    FillTextIndex,
    Inspected,
    LedgerMessage,
    MutationSettled,
    ProjectionAdvanced,
    ProjectorMessage,
    RateRefunded,
    SearchWith,
    Submit,
    SubscriptionsChanged,
    Unfence,
)
from actors.supervisor_messages import CatchUpProgressed
from actors.waiting_room import WaitingRoom
from agentbus.config import Config
from agentbus.errors import (
    BusError,
    CapacityExhaustedError,
    OverloadedError,
    UnavailableError,
    UnknownOutcomeError,
)
from agentbus.ids import NO_EPOCH
from agentbus.inspection import Allowed
from agentbus.limits import BATCH_BYTES, BATCH_OPERATIONS, MIB
from agentbus.rules.capacity import Budget
from agentbus.rules.capacity import refusal as no_room_text
from agentbus.store.changes import (
    Change,
    Done,
    Fact,
    MemoryRevised,
    MessageAppended,
    MoveCursors,
    NoRoom,
    PruneResult,
    Refused,
    SubscriptionClosed,
    SubscriptionExpired,
    SubscriptionOpened,
)
from agentbus.store.connection import CommitUncertain, FilesGone
from agentbus.store.ledger import LedgerStatistics, LedgerStore
from agentbus.store.mutation import Mutation
from agentbus.store.peer.changes import DeliveryChanged
from agentbus.transport.connection import corked

_log = logging.getLogger(__name__)

UNPROJECTED_BYTES = 32 * MIB
"""A few seconds of what the disk takes and Redis does not; their envelopes wait in memory."""

UNPROJECTED_SHARE = 16
"""And no more than so small a part of the Redis budget: where Redis can search it takes about four
bytes for each of them, and all of that must fit between the budget and the backstop."""

UNPROJECTED_BYTES_MIN = 2 * MIB
"""More than the projector leaves untold."""

OVERLOADED_RETRY_MS = 250

INDEX_ROWS = 500
"""Messages of one slice: some tens of milliseconds."""

_WITH_ENVELOPE = (MessageAppended, MemoryRevised)
_SUBSCRIPTION_FACTS = (SubscriptionOpened, SubscriptionClosed, SubscriptionExpired)


class ReceiptLedgerActor(BusActor[LedgerMessage]):
    """Group commit over the mailbox.

    1. Changes are applied in mailbox order; their sequences are in that order.
    2. A batch is committed when the mailbox is empty or the batch is full; a lone change at once.
    3. Facts are told in commit order, never before the commit: those of deliveries to the inboxes,
       before anything of the batch is answered, all others to the projector.
    4. When COMMIT itself fails, nobody knows what is on disk: all callers hear `unknown` and this
       actor dies; the daemon then ends and the next one reads the receipts from disk.
    5. While fenced no change is accepted, but for cursors moved by what was committed before: of
       those Redis never hears. The fence rides the mailbox, so that everything before it is
       committed and told before the projector is asked to catch up.
    6. With an inspection command, a mutation that has no receipt goes to the desk first and joins a
       batch when it was allowed; then its attachment and its receipt are checked again. A verdict
       that comes after a fence changes nothing: its caller has heard `unavailable`.
    7. What is committed and not yet projected is bounded: beyond `UNPROJECTED_BYTES`, or a share of
       the Redis budget where that is less, mutations are answered `overloaded`, because nothing
       else holds a sender back that Redis cannot follow.
    8. Where SQLite is the search engine its index is complete before anything is accepted: until it
       is filled, the projector is not asked to catch up.
    9. A mutation that does not fit a budget waits, with all later ones behind it, until cleanup has
       made room, and is refused only when none can be made. Other changes always pass, so that the
       bus stays readable. A repeat is answered at once, and none is inspected before there is room.
    """

    def __init__(
        self,
        open_store: Callable[[], LedgerStore],
        projector: Address[ProjectorMessage],
        config: Config,
        desk: InspectionDesk | None = None,
        tell_inboxes: Callable[[DeliveryChanged], None] = lambda change: None,
    ) -> None:
        super().__init__()
        self._config_path = config.path
        self._unprojected_limit_bytes = min(
            UNPROJECTED_BYTES,
            max(config.redis_budget_bytes // UNPROJECTED_SHARE, UNPROJECTED_BYTES_MIN),
        )
        self._open_store = open_store
        self._projector = projector
        self._desk = desk
        self._tell_inboxes = tell_inboxes
        self._store: LedgerStore | None = None
        self._batch: list[Submit] = []
        self._batch_bytes = 0
        self._fence: Fence | None = Fence(NO_EPOCH, STARTING.retry_after_ms)
        self._filling = False
        self._epoch = NO_EPOCH
        self._unprojected_bytes = 0
        self._room = WaitingRoom()
        self._freed = False  # a slice was committed since somebody was let go

    def on_start(self) -> None:
        self._store = self._open_store()  # on this thread, which alone uses it

    def on_stop(self) -> None:
        self._commit()
        self._abandon(
            UnavailableError("the bus is stopping; nothing was committed, try again later")
        )
        if self._store is not None:
            self._store.close()

    def ledger_statistics(self) -> LedgerStatistics:
        """Whole numbers; any thread may ask, once the actor has started."""
        assert self._store is not None
        return self._store.statistics()

    @property
    def logical_bytes(self) -> int:
        """What is used of the SQLite budget; any thread may ask, once the actor has started."""
        assert self._store is not None
        return self._store.logical_bytes

    def receive(self, message: LedgerMessage) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Inspected():
                self._inspected(message)
            case Fence():
                self._raise_fence(message)
            case Unfence():
                self._lower_fence(message)
            case SearchWith():
                self._search_with(message)
            case FillTextIndex():
                self._fill_text_index(message)
            case ProjectionAdvanced(epoch, size_bytes):
                if self._fence is None and epoch == self._epoch:
                    self._unprojected_bytes -= size_bytes
            case WatchCapacity(watcher):
                self._room.watched_by(watcher)
            case CapacityChanged():
                self._room.changed(message)
                self._let_go()
            case MeasureRedis():
                self._commit()
                self._projector.tell(message)  # behind all that has been removed
            case PruneWhileFenced():
                self._prune_while_fenced(message)
            case _:
                assert_never(message)
        if self.mailbox_is_empty() or self._batch_is_full():
            self._commit()
        if self._freed:
            self._let_go()

    def _batch_is_full(self) -> bool:
        return len(self._batch) >= BATCH_OPERATIONS or self._batch_bytes >= BATCH_BYTES

    def _submit(self, submit: Submit) -> None:
        change = submit.change
        if self._fence is not None and not _holds_in_any_epoch(change):
            self._answer(submit, Refused(_fenced(self._fence)))
        elif not isinstance(change, Mutation):
            self._take(submit)
        elif self._unprojected_bytes > self._unprojected_limit_bytes:
            self._answer(submit, Refused(_overloaded()))
        elif not self._room.is_open:
            self._hold(change, submit)
        elif self._desk is not None:
            self._inspect(self._desk, change, submit)
        else:
            self._take(submit)

    def _take(self, submit: Submit) -> None:
        self._batch.append(submit)
        self._batch_bytes += submit.reserved_bytes

    def _inspect(self, desk: InspectionDesk, mutation: Mutation, submit: Submit) -> None:
        """Answer a repeat and what is refused without the command; hand in what is new."""
        outcome = self._look_up(mutation)
        if outcome is None:
            try:
                desk.enter(mutation, submit, self.address)
            except BusError as error:
                outcome = Refused(error)
        if outcome is not None:
            self._answer(submit, outcome)

    def _look_up(self, mutation: Mutation) -> Done | Refused | None:
        """What is certain about it already, with what this batch is about to commit."""
        if any(_is_same_operation(batched.change, mutation) for batched in self._batch):
            self._commit()
        assert self._store is not None
        return self._store.look_up(mutation)

    def _inspected(self, inspected: Inspected) -> None:
        assert self._desk is not None
        submits = self._desk.settle(inspected)
        if isinstance(inspected.verdict, Allowed):
            for submit in submits:
                if self._room.is_open:
                    self._take(submit)
                else:
                    self._hold_new(submit, inspected=True)
        elif submits:
            change = submits[0].change
            assert isinstance(change, Mutation)
            refused = Refused(refusal(change, inspected.verdict))
            for submit in submits:
                self._answer(submit, refused)

    def _abandon(self, error: BusError) -> None:
        """Answer everybody who waits for a verdict or for room."""
        inspected = self._desk.abandon() if self._desk is not None else []
        for submit in (*inspected, *self._room.abandon()):
            self._answer(submit, Refused(error))

    # --- room ---

    def _hold(self, mutation: Mutation, submit: Submit) -> None:
        outcome = self._look_up(mutation)
        if outcome is None:
            self._hold_new(submit, inspected=self._desk is None)
        else:
            self._answer(submit, outcome)

    def _hold_new(self, submit: Submit, *, inspected: bool) -> None:
        refusing = self._room.refusing
        if refusing is None:
            self._room.hold(submit, inspected=inspected)
        else:
            self._answer(submit, Refused(self._no_room(refusing)))

    def _let_go(self) -> None:
        """Let those who wait try, batch by batch, until one finds no room."""
        self._freed = False
        if self._room.refusing is not None:
            for submit in self._room.abandon():
                self._answer(submit, Refused(self._no_room(self._room.refusing)))
        while len(self._room):
            while not self._batch_is_full() and (held := self._room.next()) is not None:
                if self._desk is None or held.inspected:
                    self._take(held.submit)
                else:
                    assert isinstance(held.submit.change, Mutation)
                    self._inspect(self._desk, held.submit.change, held.submit)
            if not self._batch:
                return
            waiting = len(self._room)
            self._commit()
            if len(self._room) > waiting:
                return

    def _found_no_room(self, submits: list[Submit], needed_bytes: int) -> None:
        """The first of these did not fit, by so many bytes; the others may not pass it."""
        if not self._room.put_back(submits, needed_bytes):
            for submit in submits:
                self._answer(submit, Refused(self._no_room("sqlite")))

    def _no_room(self, budget: Budget) -> CapacityExhaustedError:
        return CapacityExhaustedError(no_room_text(budget, self._config_path))

    def _prune_while_fenced(self, order: PruneWhileFenced) -> None:
        """Nobody reads the rows then: the projector was asked, and has given up."""
        if self._fence is not None and self._fence.epoch == order.epoch:
            self._take(Submit(order.change, order.reply_to))
        else:
            order.reply_to.set_exception(
                UnavailableError(f"the bus is not in recovery epoch {order.epoch} any more")
            )

    # --- fence ---

    def _raise_fence(self, fence: Fence) -> None:
        self._commit()
        self._fence = fence
        self._epoch = fence.epoch
        self._unprojected_bytes = 0  # a catch-up reads everything from disk
        self._abandon(_fenced(fence))
        if not self._filling:
            self._ask_to_catch_up(fence)

    def _ask_to_catch_up(self, fence: Fence) -> None:
        assert self._store is not None
        self._projector.tell(CatchUp(fence.epoch, self._store.last_sequence, self.address))

    def _lower_fence(self, unfence: Unfence) -> None:
        if self._fence is not None and self._fence.epoch <= unfence.epoch:
            self._fence = None

    def _search_with(self, order: SearchWith) -> None:
        assert self._store is not None
        if order.engine != "sqlite":
            self._store.text_index.abandon()
        elif self._store.text_index.begin():
            _log.info("making the text index")
            self._filling = True
            rows = self._store.text_index.rows_to_index()
            self.address.tell(FillTextIndex(order.supervisor, 0, rows))

    def _fill_text_index(self, again: FillTextIndex) -> None:
        """A slice at a time, so that a stop is not kept waiting."""
        assert self._store is not None
        more = self._store.text_index.fill(INDEX_ROWS)
        self._store.attend_to_log()
        if more:
            done = min(again.done + INDEX_ROWS, again.total)
            again.supervisor.tell(
                CatchUpProgressed(self._epoch, "making the text index", done, again.total)
            )
            self.address.tell(replace(again, done=done))
            return
        self._filling = False
        if self._fence is not None and self._fence.epoch > NO_EPOCH:
            self._ask_to_catch_up(self._fence)

    def _commit(self) -> None:
        if not self._batch:
            return
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        assert self._store is not None
        try:
            outcomes = self._store.apply([submit.change for submit in batch])
        except FilesGone as error:
            for submit in batch:
                submit.reply_to.set_exception(
                    UnavailableError(f"{error}; nothing was stored, the bus starts anew: try again")
                )
            raise
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
        for outcome in outcomes:
            if isinstance(outcome, Done):
                for fact in outcome.facts:
                    if isinstance(fact, DeliveryChanged):
                        self._tell_inboxes(fact)
                    else:
                        facts.append(fact)
        without_room: list[Submit] = []
        needed_bytes = 0
        with corked():
            for submit, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, NoRoom):
                    needed_bytes = needed_bytes or outcome.needed_bytes
                    without_room.append(submit)
                    continue
                self._answer(submit, outcome)
                if isinstance(outcome, Done):
                    self._freed |= isinstance(outcome.result, PruneResult)
            if without_room:
                self._found_no_room(without_room, needed_bytes)
        if facts:
            size_bytes = sum(
                len(fact.envelope) for fact in facts if isinstance(fact, _WITH_ENVELOPE)
            )
            self._unprojected_bytes += size_bytes
            self._projector.tell(Committed(tuple(facts), self._store.last_sequence, size_bytes))
        self._store.attend_to_log()

    def _answer(self, submit: Submit, outcome: Done | Refused) -> None:
        """What is given back comes before the answer, so that the caller's next call can use it;
        what the answer announces comes after it."""
        origin = submit.origin
        if origin is not None:
            if submit.reserved_bytes and not (isinstance(outcome, Done) and outcome.charged):
                origin.tell(RateRefunded(submit.reserved_bytes))
            if self._desk is not None and isinstance(submit.change, Mutation):
                origin.tell(MutationSettled())
        if isinstance(outcome, Refused):
            submit.reply_to.set_exception(outcome.error)
            return
        if outcome.error is not None:
            submit.reply_to.set_exception(outcome.error)
        else:
            submit.reply_to.set(outcome.result)
        changed = tuple(fact for fact in outcome.facts if isinstance(fact, _SUBSCRIPTION_FACTS))
        if changed and origin is not None:
            origin.tell(SubscriptionsChanged(changed))


def _overloaded() -> OverloadedError:
    return OverloadedError(
        "messages come faster than they can be shown to readers; nothing was committed, send again "
        "a little later with the same operation id",
        retry_after_ms=OVERLOADED_RETRY_MS,
    )


def _fenced(fence: Fence) -> UnavailableError:
    return UnavailableError(
        "the bus is starting or recovering; nothing was committed, try again shortly",
        retry_after_ms=fence.retry_after_ms,
    )


def _holds_in_any_epoch(change: Change) -> bool:
    return isinstance(change, MoveCursors) and change.holds_in_any_epoch


def _is_same_operation(change: Change, mutation: Mutation) -> bool:
    return isinstance(change, Mutation) and change.receipt_key == mutation.receipt_key
