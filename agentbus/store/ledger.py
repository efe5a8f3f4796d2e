"""The one writer of the database: a batch of changes in, one transaction, an outcome for each.

Owns the write connection and what of the database is kept in memory. Never waits for anything but
the disk, never starts a thread; whoever calls it (the ledger actor) is its only thread.

What may go wrong, and what is then true:

- a change is refused: it has written nothing, its neighbours are not affected;
- an operation on directed work ends in a pause: that is committed, and its caller is answered by
  the outcome's `error`;
- a new mutation does not fit the budget: nothing of it is there, and nothing of those after it;
- the disk fails before the commit: nothing of the batch is there, every change is refused as
  `unavailable` (as `internal` when the file turns out to be damaged), and the next batch is tried
  as usual;
- COMMIT itself raises: only reopening the file tells, so `CommitUncertain`, and no more batches;
- the files were taken away: `FilesGone`, nothing of the batch is there, and no more batches.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from collections.abc import Sequence as Batch
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import finalize

from agentbus.clock import Clock
from agentbus.config import Config
from agentbus.errors import BusError, InternalError, UnavailableError
from agentbus.failpoints import reach
from agentbus.ids import BusId, Generation, Sequence
from agentbus.store import accounting
from agentbus.store.binding import bind_session
from agentbus.store.changes import (
    BindSession,
    Change,
    CloseSubscription,
    Done,
    MakeChannel,
    MoveCursors,
    NoRoom,
    OpenSubscription,
    Outcome,
    PruneSlice,
    Refused,
    RemoveMemory,
    ReviseMemory,
    SendMessage,
)
from agentbus.store.connection import (
    CommitUncertain,
    FilesGone,
    OpenFiles,
    is_damage,
    not_read,
    not_written,
    unusable,
    wrote_nothing,
)
from agentbus.store.fts import TextIndex
from agentbus.store.integrity import check_pages
from agentbus.store.jobs.appending import (
    admit_event,
    append_event,
    cancel_job,
    close_lost_job,
    forget_job,
)
from agentbus.store.jobs.changes import (
    AppendJobEvent,
    CancelJob,
    CloseLostJob,
    ForgetJob,
    ReplayCallbacks,
    SettleCallback,
)
from agentbus.store.jobs.outbox import replay_callbacks, settle_callback
from agentbus.store.memories import remove_memory, revise_memory
from agentbus.store.mutation import Mutation
from agentbus.store.opening import close_bus, open_bus
from agentbus.store.peer.changes import (
    AbandonLease,
    ClaimDelivery,
    CloseWindow,
    Decide,
    Delegate,
    ExtendLease,
    ListOpenDeliveries,
    MarkReplyLate,
    MarkShown,
    PeerMutation,
)
from agentbus.store.peer.claiming import claim_delivery
from agentbus.store.peer.deciding import decide
from agentbus.store.peer.delegating import delegate
from agentbus.store.peer.leases import abandon_lease, close_window, extend_lease
from agentbus.store.peer.mutating import change_peer
from agentbus.store.peer.tracking import list_open, mark_reply_late, mark_shown
from agentbus.store.pruning import prune_slice
from agentbus.store.receipts import admit, look_up
from agentbus.store.sending import send_message
from agentbus.store.subscribing import (
    close_subscription,
    make_channel,
    move_cursors,
    open_subscription,
)
from agentbus.store.work import Work, load_bus_id, load_committed
from agentbus.store.write_ahead_log import WriteAheadLog

_log = logging.getLogger(__name__)

_HANDLERS: dict[type[Change], Callable[[Work, Any], Done]] = {
    SendMessage: send_message,
    ReviseMemory: revise_memory,
    RemoveMemory: remove_memory,
    MakeChannel: make_channel,
    OpenSubscription: open_subscription,
    CloseSubscription: close_subscription,
    MoveCursors: move_cursors,
    BindSession: bind_session,
    PruneSlice: prune_slice,
    PeerMutation: change_peer,
    Delegate: delegate,
    ClaimDelivery: claim_delivery,
    ExtendLease: extend_lease,
    AbandonLease: abandon_lease,
    CloseWindow: close_window,
    MarkReplyLate: mark_reply_late,
    MarkShown: mark_shown,
    ListOpenDeliveries: list_open,
    Decide: decide,
    AppendJobEvent: append_event,
    CloseLostJob: close_lost_job,
    ForgetJob: forget_job,
    CancelJob: cancel_job,
    SettleCallback: settle_callback,
    ReplayCallbacks: replay_callbacks,
}


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    """Counts since the start, and where the counters stand."""

    batches: int
    changes: int
    largest_batch: int
    refused: int
    reruns: int
    failed_batches: int
    last_sequence: Sequence
    last_generation: Generation
    logical_bytes: int
    log_bytes: int
    log_obstacle: str | None
    """What keeps the write-ahead log from being emptied; None as a rule."""


class _RerunNeeded(Exception):
    """A change failed after it had written, so it has to be told apart from its neighbours."""


class LedgerStore:
    """See the module's text. Not for two threads at once."""

    def __init__(self, path: Path, config: Config, clock: Clock) -> None:
        """Open or create the database. Raises DatabaseUnusable."""
        self._config = config
        self._clock = clock
        self._uncertain = False
        self._damage_met = False
        self._batches = self._changes = self._largest_batch = 0
        self._refused = self._reruns = self._failed_batches = 0
        self._connection = open_bus(path, config.sqlite_synchronous, clock.wall_us())
        # A process that ends without `close` would let SQLite fold the log in and remove it, and
        # the next one would have to take it for lost.
        self._abandon = finalize(self, close_bus, self._connection, in_order=False)
        try:
            self._committed = load_committed(self._connection)
            self._bus_id = load_bus_id(self._connection)
            self._verify_accounting(path)
            self.text_index = TextIndex(self._connection)
            self._files = OpenFiles(path)
            self._write_ahead_log = WriteAheadLog(self._connection, path)
        except BaseException as error:
            self._abandon()
            if isinstance(error, sqlite3.Error):
                raise unusable(path, error) from error
            raise

    @property
    def last_sequence(self) -> Sequence:
        """The newest committed sequence, 0 on an empty bus."""
        return self._committed.counters.last_sequence

    @property
    def last_generation(self) -> Generation:
        return self._committed.counters.last_generation

    @property
    def bus_id(self) -> BusId:
        return self._bus_id

    @property
    def logical_bytes(self) -> int:
        """What counts against `sqlite_budget_mib`."""
        return self._committed.counters.logical_bytes

    def statistics(self) -> LedgerStatistics:
        counters = self._committed.counters
        return LedgerStatistics(
            batches=self._batches,
            changes=self._changes,
            largest_batch=self._largest_batch,
            refused=self._refused,
            reruns=self._reruns,
            failed_batches=self._failed_batches,
            last_sequence=counters.last_sequence,
            last_generation=counters.last_generation,
            logical_bytes=counters.logical_bytes,
            log_bytes=self._write_ahead_log.size_bytes,
            log_obstacle=self._write_ahead_log.obstacle,
        )

    def close(self) -> None:
        """Let go of the file; after trouble the next one who opens it checks it whole."""
        self._abandon.detach()
        in_order = not self._uncertain and not self._damage_met
        close_bus(self._connection, in_order=in_order, fold=self._write_ahead_log.close)

    def attend_to_log(self) -> None:
        """Keep the write-ahead log small; after each `apply`, when its outcomes have been told."""
        self._write_ahead_log.attend()

    def look_up(self, change: Mutation) -> Done | Refused | None:
        """What is certain before a mutation is inspected; None: it is new and may go on.

        A repeat has the answer of the first time, and what `apply` would refuse for its attachment,
        its operation id or its rate is refused. Only reads, and only what is committed.
        """
        work = Work(self._connection, self._config, self._committed, self._clock.wall_us())
        try:
            if isinstance(change, AppendJobEvent):
                admission: object = admit_event(work, change)
            else:
                admission = admit(work, change)
        except BusError as error:
            return Refused(error)
        except sqlite3.Error as error:
            self._damage_met |= is_damage(error)
            return Refused(not_read(error))
        return admission if isinstance(admission, Done) else None

    def apply(self, batch: Batch[Change]) -> list[Outcome]:
        """Commit a batch. The outcomes are in its order. Raises CommitUncertain and FilesGone.

        Returns only after the commit (or after a rollback, when all are refused).
        """
        if self._uncertain:
            raise CommitUncertain("an earlier commit is uncertain; open the database again")
        self._check_files()
        self._batches += 1
        self._changes += len(batch)
        self._largest_batch = max(self._largest_batch, len(batch))
        if self._write_ahead_log.is_full():
            return self._refuse(batch, self._log_full())
        mutates = any(isinstance(change, Mutation | ClaimDelivery) for change in batch)
        try:
            work, outcomes = self._run(batch)
            work.write_counters()
            if mutates:
                reach("before_commit")
        except (sqlite3.Error, OSError) as error:
            return self._unavailable(batch, error)
        except BaseException:
            self._rollback()
            raise
        try:
            if mutates:
                reach("commit")
            self._connection.execute("COMMIT")
            if mutates:
                reach("after_commit")
        except (sqlite3.Error, OSError) as error:
            if wrote_nothing(error):
                return self._unavailable(batch, error)
            self._uncertain = True
            raise CommitUncertain(f"COMMIT failed: {error}") from error
        work.publish()
        self._refused += sum(type(outcome) is Refused for outcome in outcomes)
        return outcomes

    def _check_files(self) -> None:
        try:
            self._files.check()
        except FilesGone as error:
            _log.error("%s; nothing more is stored here", error)
            # What was committed goes where whoever opens the database next will look for it.
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            raise

    def _run(self, batch: Batch[Change]) -> tuple[Work, list[Outcome]]:
        try:
            return self._run_plain(batch)
        except _RerunNeeded:
            self._reruns += 1
            self._rollback()
            return self._run_with_savepoints(batch)

    def _begin(self) -> Work:
        self._connection.execute("BEGIN IMMEDIATE")
        return Work(self._connection, self._config, self._committed, self._clock.wall_us())

    def _run_plain(self, batch: Batch[Change]) -> tuple[Work, list[Outcome]]:
        work = self._begin()
        connection = self._connection
        look_up(work, (change for change in batch if isinstance(change, Mutation)))
        outcomes: list[Outcome] = []
        try:
            for change in batch:
                if type(change) is not SendMessage:
                    work.flush()
                before = (connection.total_changes, work.gathered_rows)
                try:
                    outcome = _HANDLERS[type(change)](work, change)
                    if self._is_beyond_budget(work) and _is_new_mutation(change, outcome):
                        raise _RerunNeeded
                    outcomes.append(outcome)
                except BusError as error:
                    if (connection.total_changes, work.gathered_rows) != before:
                        raise _RerunNeeded from None
                    outcomes.append(Refused(error))
            work.flush()
        except Exception as error:
            if _is_storage_failure(error) or isinstance(error, _RerunNeeded):
                raise
            raise _RerunNeeded from error
        return work, outcomes

    def _run_with_savepoints(self, batch: Batch[Change]) -> tuple[Work, list[Outcome]]:
        """Slower, but each change can be undone by itself, whatever it stumbled over."""
        work = self._begin()
        execute = self._connection.execute
        outcomes: list[Outcome] = []
        full = False
        for change in batch:
            staged = work.staged.copy()
            execute("SAVEPOINT change")
            try:
                outcome: Outcome = _HANDLERS[type(change)](work, change)
                work.flush()
                if _is_new_mutation(change, outcome) and (full or self._is_beyond_budget(work)):
                    full = True
                    added_bytes = work.counters.logical_bytes - staged.counters.logical_bytes
                    execute("ROLLBACK TO change")
                    work.forget(staged)
                    outcome = NoRoom(added_bytes)
            except Exception as error:
                if _is_storage_failure(error):
                    raise
                execute("ROLLBACK TO change")
                work.forget(staged)
                outcome = Refused(_answerable(error, change))
            outcomes.append(outcome)
            execute("RELEASE change")
        return work, outcomes

    def _is_beyond_budget(self, work: Work) -> bool:
        return work.counters.logical_bytes > self._config.sqlite_budget_bytes

    def _unavailable(self, batch: Batch[Change], error: Exception) -> list[Outcome]:
        try:
            self._rollback()
        except sqlite3.Error as rollback_error:
            self._uncertain = True
            raise CommitUncertain(f"{error}, then ROLLBACK failed: {rollback_error}") from error
        _log.error("batch of %d not committed: %s", len(batch), error)
        self._damage_met |= is_damage(error)
        return self._refuse(batch, not_written(error))

    def _refuse(self, batch: Batch[Change], error: BusError) -> list[Outcome]:
        self._failed_batches += 1
        self._refused += len(batch)
        return [Refused(error) for _ in batch]

    def _log_full(self) -> UnavailableError:
        return UnavailableError(
            "nothing was stored, because the write-ahead log of the database is full and "
            f"{self._write_ahead_log.obstacle}; see to that, then try again with the same "
            "operation id"
        )

    def _rollback(self) -> None:
        if self._connection.in_transaction:  # a full disk makes SQLite roll back by itself
            self._connection.execute("ROLLBACK")

    def _verify_accounting(self, path: Path) -> None:
        counted = accounting.recount(self._connection)
        recorded = self._committed.counters.logical_bytes
        if counted == recorded:
            return
        check_pages(self._connection, path)  # a row that has changed its size by itself is damage
        _log.warning(
            "%s: recorded %d logical bytes, the rows have %d; corrected", path, recorded, counted
        )
        self._connection.execute("BEGIN IMMEDIATE")
        work = Work(self._connection, self._config, self._committed, self._clock.wall_us())
        work.counters.logical_bytes = counted
        work.write_counters()
        self._connection.execute("COMMIT")
        work.publish()


def _is_storage_failure(error: Exception) -> bool:
    """Is it the disk or the file (the whole batch fails), not one change's data?"""
    if isinstance(error, (sqlite3.OperationalError, sqlite3.InternalError, OSError)):
        return True
    return type(error) is sqlite3.DatabaseError  # "disk image is malformed" has no class of its own


def _is_new_mutation(change: Change, outcome: Outcome) -> bool:
    """Only these have to fit the budget: a repeat adds nothing, and what else a session needs in
    order to read on is small."""
    return isinstance(change, Mutation) and isinstance(outcome, Done) and outcome.charged


def _answerable(error: Exception, change: Change) -> BusError:
    if isinstance(error, BusError):
        return error
    _log.error("%s failed", type(change).__name__, exc_info=error)
    return InternalError("a fault of the bus, nothing was stored; the daemon's log has the details")
