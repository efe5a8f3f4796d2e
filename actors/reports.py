"""The handoff reports of one attachment on their way to the ledger.

Owns what waits for the next flush, the flushes under way and whom to answer after the commit. Never
decides which reports are current (the attachment does) and writes nothing: a flush is one `tell` to
the ledger. Runs on the attachment's thread.
"""

from __future__ import annotations

from collections import deque

from actors.base import Address, Reply
from actors.feeds import Feeds
from actors.messages import (
    AttachmentMessage,
    CursorsCommitted,
    FlushReports,
    LedgerMessage,
    Submit,
)
from actors.replies import TellReply
from actors.timer import Timer, TimerHandle
from agentbus.errors import BusError, UnavailableError
from agentbus.failpoints import reach
from agentbus.identity import Attachment
from agentbus.limits import HANDOFF_FLUSH_MS, HANDOFF_FLUSH_REPORTS
from agentbus.protocol.session import HandoffReport
from agentbus.rules.coalesce import ReportCoalescer
from agentbus.store.changes import MoveCursors, SubscriptionId


class HandoffReports:
    """Gathers reports, confirmations and renewals for `HANDOFF_FLUSH_MS`, or so many reports.

    A report is answered after its commit; the committed positions of the feeds move then.
    """

    def __init__(
        self,
        attachment: Attachment,
        feeds: Feeds,
        ledger: Address[LedgerMessage],
        timer: Timer,
        owner: Address[AttachmentMessage],
    ) -> None:
        self._attachment = attachment
        self._feeds = feeds
        self._ledger = ledger
        self._timer = timer
        self._owner = owner
        self._gathered = ReportCoalescer()
        self._unanswered: list[tuple[int, Reply]] = []  # reports of the next flush
        self._flushing: deque[tuple[MoveCursors, list[tuple[int, Reply]]]] = deque()
        self._flush_due: TimerHandle | None = None

    def call_seen(self, confirms: int, channels: tuple[str, ...] | None) -> None:
        """A call confirms the reports up to that number, and renews what it reads."""
        if confirms:
            self._gathered.confirm(confirms)
        if channels is not None:
            for feed in self._feeds.of_names(channels):
                self._gathered.renew(feed.subscription)
        self._flush_soon()

    def reported(self, report: HandoffReport, reply_to: Reply) -> None:
        """Take a report of the current epoch; of positions that were never sent it moves none."""
        positions = {
            subscription: position
            for subscription, position in report.positions.items()
            if (feed := self._feeds.get(subscription)) is not None and position <= feed.sent
        }
        self._gathered.report(report.report, positions, report.expired)
        self._unanswered.append((report.report, reply_to))
        reach("during_report_batch")
        if len(self._unanswered) >= HANDOFF_FLUSH_REPORTS:
            self.flush()
        else:
            self._flush_soon()

    def forget(self, subscription: SubscriptionId) -> None:
        """The subscription is gone; nothing of it may be committed any more."""
        self._gathered.forget(subscription)

    def new_epoch(self) -> int:
        """What was gathered before a recovery moves nothing; how many reports were refused."""
        self._gathered = ReportCoalescer()
        refused, self._unanswered = self._unanswered, []
        for number, reply_to in refused:
            reply_to.set({"report": number, "stale": True})
        return len(refused)

    def flush(self) -> None:
        """Hand everything that was gathered to the ledger, now."""
        if self._flush_due is not None:
            self._flush_due.cancel()
            self._flush_due = None
        if self._gathered.is_empty and not self._unanswered:
            return
        moves = self._gathered.take()
        change = MoveCursors(
            self._attachment,
            moves.handed_off,
            moves.confirmed,
            moves.renewed,
            moves.expiry_confirmed,
        )
        self._flushing.append((change, self._unanswered))
        self._unanswered = []
        reach("before_cursor_commit")
        reply = TellReply(self._owner, lambda _: CursorsCommitted(), _cursors_not_committed)
        self._ledger.tell(Submit(change, reply, self._owner))

    def settled(self, error: BusError | None) -> None:
        """The oldest flush under way was committed, or was not."""
        reach("after_cursor_commit")
        change, replies = self._flushing.popleft()
        for number, reply_to in replies:
            if error is None:
                reply_to.set({"report": number})
            else:
                reply_to.set_exception(error)
        if error is not None:
            return
        for subscription, position in change.handed_off.items():
            if (feed := self._feeds.get(subscription)) is not None:
                feed.handed_off = max(feed.handed_off, position)
        for subscription, position in change.confirmed.items():
            if (feed := self._feeds.get(subscription)) is not None:
                feed.confirmed = max(feed.confirmed, position)

    def _flush_soon(self) -> None:
        if self._flush_due is None and not (self._gathered.is_empty and not self._unanswered):
            self._flush_due = self._timer.deliver_after(
                HANDOFF_FLUSH_MS / 1000, self._owner, FlushReports()
            )


def _cursors_not_committed(error: BaseException) -> CursorsCommitted:
    if isinstance(error, BusError):
        return CursorsCommitted(error)
    return CursorsCommitted(UnavailableError("the report was not committed"))
