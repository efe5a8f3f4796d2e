"""The rows of interventions: a question to a person about a delivery, and its answer.

Owns how a delivery comes to rest and what its holder's knowledge of that is. What a person decides
is in deciding.py. Runs on the ledger's thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from peewee import SQL

from agentbus.encoding import encode
from agentbus.envelope import rfc3339
from agentbus.ids import DeliveryId, InterventionId, new_id
from agentbus.protocol.people import Decision
from agentbus.store.accounting import row_bytes
from agentbus.store.peer.changes import (
    DeliveryChanged,
    InterventionSource,
    StopStatus,
)
from agentbus.store.peer.deliveries import DeliveryRow, change, view
from agentbus.store.schema import PLACE, Intervention, insert_text, text
from agentbus.store.work import Work


class InterventionRow(NamedTuple):
    """A whole row, columns in the order of the table; see `schema.Intervention`."""

    id: InterventionId
    delivery: DeliveryId
    source: InterventionSource
    reason: str
    detail: str
    version: int
    stop_status: StopStatus
    created_at_us: int
    action: Decision | None
    instructions: str | None
    decided_by: str | None
    decided_at_us: int | None
    told: bool

    @property
    def untold(self) -> bool:
        """Has instructions that the work's next holder must see first."""
        return self.instructions is not None and not self.told


_INSERT = insert_text(Intervention)
_SELECT = text(
    Intervention.select(*(getattr(Intervention, name) for name in InterventionRow._fields)).where(
        Intervention.id == PLACE
    )
)
_SET_STOP_STATUS = text(
    Intervention.update({Intervention.stop_status: PLACE}).where(Intervention.id == PLACE)
)
_SET_DECISION = text(
    Intervention.update(
        {
            Intervention.version: PLACE,
            Intervention.action: PLACE,
            Intervention.instructions: PLACE,
            Intervention.decided_by: PLACE,
            Intervention.decided_at_us: PLACE,
            Intervention.told: PLACE,
        }
    ).where(Intervention.id == PLACE)
)
_SET_TOLD = text(
    Intervention.update({Intervention.told: SQL("1")}).where(
        (Intervention.id == PLACE)
        & (Intervention.told == SQL("0"))
        & Intervention.action.is_null(False)
    )
)


def load_intervention(work: Work, intervention_id: str) -> InterventionRow | None:
    row = work.execute(_SELECT, (intervention_id,)).fetchone()
    return InterventionRow(*row) if row is not None else None


def pause(
    work: Work,
    row: DeliveryRow,
    source: InterventionSource,
    reason: str,
    stop_status: StopStatus,
    detail: dict[str, Any] | None = None,
) -> tuple[DeliveryRow, DeliveryChanged]:
    """The delivery rests until a person decides; its holder stays on record without the lease."""
    intervention = InterventionRow(
        id=InterventionId(new_id()),
        delivery=row.id,
        source=source,
        reason=reason,
        detail=encode(detail or {}).decode(),
        version=1,
        stop_status=stop_status,
        created_at_us=work.now_us,
        action=None,
        instructions=None,
        decided_by=None,
        decided_at_us=None,
        told=False,
    )
    work.insert(_INSERT, intervention)
    row = change(
        work,
        row,
        state="paused",
        token=None,
        lease_expires_us=None,
        deadline_us=None,
        intervention=intervention.id,
    )
    return row, DeliveryChanged(view(row))


def holder_learned(work: Work, row: DeliveryRow, stop_status: StopStatus) -> bool:
    """Note what the holder of paused work knows by now; False: no more than before.

    The question stays what it was, so its version does too: nobody's decision is held up by it.
    """
    if row.intervention is None:
        return False
    intervention = load_intervention(work, row.intervention)
    if intervention is None or _KNOWLEDGE.index(stop_status) <= _KNOWLEDGE.index(
        intervention.stop_status
    ):
        return False
    work.execute(_SET_STOP_STATUS, (stop_status, intervention.id))
    work.counters.logical_bytes += row_bytes((stop_status,)) - row_bytes(
        (intervention.stop_status,)
    )
    return True


_KNOWLEDGE: tuple[StopStatus, ...] = (
    "stopped_unconfirmed",
    "pause_requested",
    "pause_observed",
    "adapter_stop_confirmed",
)


def instructions_followed(work: Work, row: DeliveryRow) -> None:
    """An operation has proven the claim that showed the instructions: they are not shown again."""
    if row.intervention is not None:
        work.execute(_SET_TOLD, (row.intervention,))


def resume_context(row: InterventionRow) -> dict[str, Any]:
    """A decision as the agent that goes on with the work sees it."""
    assert row.action is not None
    assert row.decided_at_us is not None
    return {
        "intervention_id": row.id,
        "action": row.action,
        "instructions": row.instructions,
        "decided_by": row.decided_by,
        "decided_at": rfc3339(row.decided_at_us),
    }


def record_decision(
    work: Work,
    row: InterventionRow,
    action: Decision,
    *,
    instructions: str | None,
    decided_by: str,
) -> None:
    """The person's answer, once. Without instructions there is nothing to show anybody."""
    before = (row.action, row.instructions, row.decided_by, row.decided_at_us)
    after = (action, instructions, decided_by, work.now_us)
    work.execute(_SET_DECISION, (row.version + 1, *after, instructions is None, row.id))
    work.counters.logical_bytes += row_bytes(after) - row_bytes(before)
