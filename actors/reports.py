"""The handoff reports of one attachment on their way to the ledger.

Owns what waits for the next flush, whom to answer after the commit, and what the client may have
seen without a report. Never decides which reports are current (the attachment does) and writes
nothing: a flush is one `tell` to the ledger. Runs on the attachment's thread.
"""

from __future__ import annotations

from actors.base import Address, Reply
from actors.feeds import Feeds
from actors.messages import (
    AttachmentMessage,
    CursorsCommitted,
    FlushReports,
    LedgerMessage,
    Submit,
)
from actors.replies import FlushReply, TellReply
from actors.timer import Timer, TimerHandle
from agentbus.errors import BusError
from agentbus.failpoints import reach
from agentbus.identity import Attachment
from agentbus.ids import Sequence
from agentbus.limits import HANDOFF_FLUSH_MS, HANDOFF_FLUSH_REPORTS
from agentbus.protocol.session import HandoffReport
from agentbus.rules.coalesce import ReportCoalescer, at_most
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
        self._exposed: dict[SubscriptionId, Sequence] = {}
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

    def handing_off(self, exposed: dict[SubscriptionId, Sequence]) -> None:
        """Up to here the client may have seen messages from now on; a later word replaces it."""
        for subscription, position in exposed.items():
            if self._feeds.get(subscription) is not None:
                self._exposed[subscription] = position

    def forget(self, subscription: SubscriptionId) -> None:
        """The subscription is gone; nothing of it may be committed any more."""
        self._gathered.forget(subscription)
        self._exposed.pop(subscription, None)

    def new_epoch(self) -> int:
        """Reports that were not committed before a recovery move nothing; how many were refused.

        What is exposed stays so: no recovery makes a client forget what it was shown.
        """
        self._gathered = self._gathered.only_committed(self._committed())
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
        reports, self._unanswered = self._unanswered, []
        change = MoveCursors(
            self._attachment,
            moves.handed_off,
            moves.confirmed,
            moves.renewed,
            moves.expiry_confirmed,
        )
        reach("before_cursor_commit")
        self._submit(change, reports)

    def leave(self) -> None:
        """The last word of this attachment, in a change of its own that no recovery refuses."""
        committed = self._committed()
        confirmed = self._gathered.only_committed(committed).take().confirmed
        self.flush()
        exposed = {
            subscription: position
            for subscription, position in self._exposed.items()
            if position > committed[subscription]
        }
        if exposed or confirmed:
            self._submit(MoveCursors(self._attachment, confirmed=confirmed, exposed=exposed), [])

    def refuse(self, error: BusError) -> None:
        """Answer those that will not be flushed."""
        refused, self._unanswered = self._unanswered, []
        for _, reply_to in refused:
            reply_to.set_exception(error)

    def settled(self, settled: CursorsCommitted) -> None:
        """A flush was committed, or was not; its reports have been answered."""
        change = settled.change
        if settled.error is not None:
            committed = self._committed()
            self._gathered.confirm_again(at_most(change.confirmed, committed))
            return
        for subscription, position in change.handed_off.items():
            if (feed := self._feeds.get(subscription)) is not None:
                feed.handed_off = max(feed.handed_off, position)
                feed.reported = max(feed.reported, position)
        for subscription, position in change.confirmed.items():
            if (feed := self._feeds.get(subscription)) is not None:
                feed.confirmed = max(feed.confirmed, position)

    def _committed(self) -> dict[SubscriptionId, Sequence]:
        """How far each subscription is reported by this attachment, or was confirmed before it."""
        return {feed.subscription: feed.reported for feed in self._feeds}

    def _submit(self, change: MoveCursors, reports: list[tuple[int, Reply]]) -> None:
        settled = TellReply[AttachmentMessage](
            self._owner,
            lambda _: CursorsCommitted(change),
            lambda error: CursorsCommitted(change, error),
        )
        self._ledger.tell(Submit(change, FlushReply(reports, settled), self._owner))

    def _flush_soon(self) -> None:
        if self._flush_due is None and not (self._gathered.is_empty and not self._unanswered):
            self._flush_due = self._timer.deliver_after(
                HANDOFF_FLUSH_MS / 1000, self._owner, FlushReports()
            )
