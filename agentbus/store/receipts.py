"""What every mutation passes before its first row, and the receipt that it leaves.

Owns the order of the checks inside the transaction (attachment, receipt, rate) and the rows of
receipts. Never looks at what the mutation does. Runs on the ledger's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agentbus.encoding import decode_trusted, encode
from agentbus.errors import RateLimitedError
from agentbus.rules.retention import end_us
from agentbus.store.accounting import row_bytes
from agentbus.store.bulk import BulkInsert, ReceiptLookup, Row
from agentbus.store.changes import Done
from agentbus.store.mutation import Mutation
from agentbus.store.schema import Receipt, insert_text
from agentbus.store.work import Work

_INSERT_RECEIPT = BulkInsert(Receipt)
_LOOK_UP = ReceiptLookup()
_REPLACE_RECEIPT = insert_text(Receipt, replace=True)


@dataclass(frozen=True, slots=True)
class Admission:
    """Leave to do a mutation. `expired`: columns of a receipt of the same key that is over."""

    expired: tuple[object, ...] | None

    def record(self, work: Work, change: Mutation, answer: dict[str, Any]) -> None:
        """Keep the answer for repeats; written with the mutation's own rows."""
        key = _key(change)
        columns = (
            change.fingerprint,
            encode(answer),
            work.now_us,
            end_us(work.now_us, work.config.dedup_retention_hours),
        )
        if self.expired is None:
            work.gather(_INSERT_RECEIPT, (*key, *columns))
        else:
            work.flush()
            work.counters.logical_bytes -= row_bytes((*key, *self.expired))
            work.insert(_REPLACE_RECEIPT, (*key, *columns))
        work.receipts[key] = columns


def look_up(work: Work, mutations: Iterable[Mutation]) -> None:
    """Fetch the receipts of a batch at once, for `admit`."""
    keys = list(dict.fromkeys(map(_key, mutations)))
    work.receipts = _LOOK_UP.execute(work.connection, keys)


def admit(work: Work, change: Mutation) -> Admission | Done:
    """Leave to go on, or the answer that a repeat gets. Raises what refuses the mutation."""
    work.require_current(change.attachment)
    key = _key(change)
    if key not in work.receipts:
        look_up(work, [change])
    earlier: Any = work.receipts[key]
    if earlier is not None:
        fingerprint, result, _, expires_at_us = earlier
        if expires_at_us > work.now_us:
            return _repeat(change, fingerprint, result)
    if not change.rate_ok:
        raise RateLimitedError(
            "this session's send rate is used up; wait, then try again with the same operation id",
            retry_after_ms=change.retry_after_ms,
        )
    return Admission(earlier)


def _key(change: Mutation) -> Row:
    return change.receipt_key


def _repeat(change: Mutation, fingerprint: bytes, result: bytes) -> Done:
    if fingerprint != change.fingerprint:
        raise change.key_reused()
    return Done({**decode_trusted(result), "duplicate": True}, charged=False)
