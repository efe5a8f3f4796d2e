"""The proof that a session holds a delivery, and how a lease or its window ends.

Owns the order in which a delivery's state is told to somebody who acts on it. A lease is in force
while its row says so; no clock is read here. Runs on the ledger's thread.
"""

from __future__ import annotations

from agentbus.limits import PEER_ATTEMPTS
from agentbus.rules.peer import no_delivery, paused, stale_lease, unavailable
from agentbus.store.changes import Done
from agentbus.store.peer import deliveries
from agentbus.store.peer.changes import (
    AbandonLease,
    CloseWindow,
    DeliveryChanged,
    ExtendLease,
    PeerMutation,
)
from agentbus.store.peer.deliveries import DeliveryRow
from agentbus.store.peer.interventions import holder_learned, pause
from agentbus.store.work import Work

STALE = Done(False)


def prove_lease(work: Work, change: PeerMutation, delivery_id: str) -> DeliveryRow | Done:
    """The delivery, if the operation's token is that of its lease. Raises what else is true.

    When the operation is the first word to its holder that the work is paused, this is noted, and
    the outcome that says both is returned.
    """
    row = find_own(work, change, delivery_id)
    session_id = change.sender.session_id
    match row.state:
        case "leased" if row.token == change.token and row.holder == session_id:
            return row
        case "leased" | "queued":
            raise stale_lease(row.id)
        case "paused":
            error = paused(row.id, row.intervention)
            if row.holder == session_id and holder_learned(work, row, "pause_observed"):
                return Done(None, error=error)
            raise error
        case _:
            raise unavailable(row.id, row.state)


def find_own(work: Work, change: PeerMutation, delivery_id: str) -> DeliveryRow:
    """A delivery to the calling agent, whatever its state. Raises NotFoundError."""
    row = deliveries.load(work, delivery_id)
    if row is None or row.recipient_agent != change.sender.agent_id:
        raise no_delivery(delivery_id)
    return row


def finish(work: Work, row: DeliveryRow) -> DeliveryChanged:
    """The work is done. Whether it was a request's answer is tracked apart from this."""
    row = deliveries.change(
        work, row, state="acked", token=None, lease_expires_us=None, deadline_us=None
    )
    return DeliveryChanged(deliveries.view(row))


def extend_lease(work: Work, change: ExtendLease) -> Done:
    """Keep for a restart until when the lease holds."""
    row = deliveries.load(work, change.delivery_id)
    if row is None or row.state != "leased" or row.token != change.token:
        return STALE
    deliveries.change(work, row, lease_expires_us=change.expires_us)
    return Done(True)


def abandon_lease(work: Work, change: AbandonLease) -> Done:
    """Nobody renewed it: others may claim the work, unless too many have tried."""
    row = deliveries.load(work, change.delivery_id)
    if row is None or row.state != "leased" or row.token != change.token:
        return STALE
    if row.attempt >= PEER_ATTEMPTS:
        _, fact = pause(
            work,
            row,
            "attempts",
            f"{row.attempt} attempts at it ended without an answer",
            "stopped_unconfirmed",
        )
        return Done(True, (fact,))
    row = deliveries.change(work, row, state="queued", token=None, lease_expires_us=None)
    return Done(True, (DeliveryChanged(deliveries.view(row)),))


def close_window(work: Work, change: CloseWindow) -> Done:
    """The holder renews the lease but has not said for too long that it gets on.

    Somebody waits for what becomes of a request, so a person is asked. Anything else was most
    likely read and not acknowledged; as that is not known, it waits again, with a new window.
    """
    row = deliveries.load(work, change.delivery_id)
    if (
        row is None
        or row.state != "leased"
        or row.token != change.token
        or row.deadline_us != change.deadline_us
    ):
        return STALE
    if row.kind != "request":
        row = deliveries.change(
            work, row, state="queued", token=None, lease_expires_us=None, deadline_us=None
        )
        return Done(True, (DeliveryChanged(deliveries.view(row)),))
    _, fact = pause(
        work,
        row,
        "window",
        "nothing was heard of the work until its processing deadline",
        "pause_requested",
    )
    return Done(True, (fact,))
