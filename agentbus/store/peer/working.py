"""The ledger's answers to operations on held work: ack, progress, checkpoint, human.

Owns how a processing window moves and when work comes to rest by itself. Runs on the ledger's
thread.
"""

from __future__ import annotations

from typing import Any

from agentbus.protocol.peer import PeerAck, PeerCheckpoint, PeerHuman, PeerProgress
from agentbus.rules.peer import paused, why_a_person
from agentbus.store.changes import Done
from agentbus.store.peer import deliveries
from agentbus.store.peer.changes import DeliveryChanged, InterventionSource, PeerMutation
from agentbus.store.peer.deliveries import DeliveryRow
from agentbus.store.peer.interventions import instructions_followed, pause
from agentbus.store.peer.leases import find_own, finish, prove_lease
from agentbus.store.peer.posting import SECOND_US
from agentbus.store.receipts import Admission
from agentbus.store.work import Work


def ack_peer(work: Work, change: PeerMutation, operation: PeerAck, admission: Admission) -> Done:
    """Finish without an answer; what is finished already is answered so to any of its agent."""
    if find_own(work, change, operation.delivery_id).state == "acked":
        answer = {"delivery_id": operation.delivery_id, "state": "acked", "duplicate": True}
        return Done(answer, charged=False)
    row = prove_lease(work, change, operation.delivery_id)
    if isinstance(row, Done):
        return row
    instructions_followed(work, row)
    fact = finish(work, row)
    return _done(work, change, admission, {"delivery_id": row.id, "state": "acked"}, fact)


def progress_peer(
    work: Work, change: PeerMutation, operation: PeerProgress, admission: Admission
) -> Done:
    """Move the processing deadline."""
    row = prove_lease(work, change, operation.delivery_id)
    return row if isinstance(row, Done) else _extend(work, change, admission, row)


def checkpoint_peer(
    work: Work, change: PeerMutation, operation: PeerCheckpoint, admission: Admission
) -> Done:
    """Like progress when the policy lets the action pass, else ask a person."""
    row = prove_lease(work, change, operation.delivery_id)
    if isinstance(row, Done):
        return row
    reason = why_a_person(
        operation.action_type,
        operation.confidence,
        operation.missing_information,
        operation.conflicting_results,
        operation.request_human,
    )
    if reason is None:
        return _extend(work, change, admission, row)
    detail = {
        "summary": operation.summary,
        "proposed_action": operation.proposed_action,
        "action_type": operation.action_type,
        "confidence": operation.confidence,
        "missing_information": list(operation.missing_information),
        "conflicting_results": operation.conflicting_results,
        "request_human": operation.request_human,
    }
    return _ask_person(work, change, admission, row, "checkpoint", reason, detail)


def human_peer(
    work: Work, change: PeerMutation, operation: PeerHuman, admission: Admission
) -> Done:
    """Ask a person because the agent wants one."""
    row = prove_lease(work, change, operation.delivery_id)
    if isinstance(row, Done):
        return row
    return _ask_person(work, change, admission, row, "human", operation.reason, {})


def _extend(work: Work, change: PeerMutation, admission: Admission, row: DeliveryRow) -> Done:
    """One extension more. Past the last one the work is paused and the caller told so: that is
    written, so it is no refusal, and has no receipt, so that the call can be repeated later."""
    instructions_followed(work, row)
    if row.extensions >= work.config.peer_max_extensions:
        row, fact = pause(
            work,
            row,
            "extensions",
            f"its processing deadline was extended {row.extensions} times, which is all there are",
            "pause_observed",
        )
        return Done(None, (fact,), error=paused(row.id, row.intervention))
    row = deliveries.change(
        work,
        row,
        extensions=row.extensions + 1,
        deadline_us=work.now_us + SECOND_US * work.config.peer_window_seconds,
        progressed_at_us=work.now_us,
    )
    answer = {"status": row.state, "extension_count": row.extensions}
    return _done(work, change, admission, answer, DeliveryChanged(deliveries.view(row)))


def _ask_person(
    work: Work,
    change: PeerMutation,
    admission: Admission,
    row: DeliveryRow,
    source: InterventionSource,
    reason: str,
    detail: dict[str, Any],
) -> Done:
    instructions_followed(work, row)
    row, fact = pause(work, row, source, reason, "pause_observed", detail)
    answer = {
        "status": row.state,
        "delivery_id": row.id,
        "intervention_id": row.intervention,
        "reason": reason,
    }
    return _done(work, change, admission, answer, fact)


def _done(
    work: Work,
    change: PeerMutation,
    admission: Admission,
    answer: dict[str, Any],
    fact: DeliveryChanged,
) -> Done:
    admission.record(work, change, answer)
    return Done({**answer, "duplicate": False}, (fact,))
