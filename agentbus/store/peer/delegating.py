"""The ledger's answer to a question over talk.

Owns what makes it different from a request that an agent sends: it goes to an agent with a live
session or nowhere, and its depth was decided by who asked. Runs on the ledger's thread.
"""

from __future__ import annotations

from agentbus.errors import NotFoundError
from agentbus.protocol.peer import PeerSend
from agentbus.store.changes import Done
from agentbus.store.peer.changes import Delegate
from agentbus.store.peer.posting import Letter, post, prepare
from agentbus.store.receipts import admit
from agentbus.store.work import Work


def delegate(work: Work, change: Delegate) -> Done:
    """Send it once per caller and key. Raises NotFoundError when the agent is not there."""
    admission = admit(work, change)
    if isinstance(admission, Done):
        return admission
    operation = change.operation
    assert isinstance(operation, PeerSend)
    if change.recipient is None:
        (instance,) = operation.to
        raise NotFoundError(f"no session of {instance} is attached; ask again when one is")
    posting = prepare(
        work,
        Letter(
            sender=change.sender,
            recipients=(change.recipient,),
            kind="request",
            content=operation.body,
            thread=None,
            reply_to=None,
            depth=change.depth,
            parent=None,
            reply_within_s=operation.expect_reply_within_seconds,
        ),
    )

    # Nothing is refused from here on.
    (row,), facts = post(work, posting)
    answer = {"message_id": posting.draft.message_id, "delivery_id": row.id}
    admission.record(work, change, answer)
    return Done({**answer, "duplicate": False}, tuple(facts))
