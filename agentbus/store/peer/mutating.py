"""The ledger's answer to every writing operation of the tool `peer`.

Owns only what they have in common: a repeat has its receipt, whatever has become of the work since,
and no operation looks at the state of anything before that. Runs on the ledger's thread.
"""

from __future__ import annotations

from typing import assert_never

from agentbus.protocol.peer import (
    PeerAck,
    PeerCheckpoint,
    PeerDescribe,
    PeerHuman,
    PeerProgress,
    PeerReply,
    PeerSend,
)
from agentbus.store.changes import Done
from agentbus.store.peer.changes import PeerMutation
from agentbus.store.peer.describing import describe_peer
from agentbus.store.peer.sending import reply_peer, send_peer
from agentbus.store.peer.working import ack_peer, checkpoint_peer, human_peer, progress_peer
from agentbus.store.receipts import admit
from agentbus.store.work import Work


def change_peer(work: Work, change: PeerMutation) -> Done:
    """Do the operation once per agent and key, or per session and operation id."""
    admission = admit(work, change)
    if isinstance(admission, Done):
        return admission
    match change.operation:
        case PeerSend() as operation:
            return send_peer(work, change, operation, admission)
        case PeerReply() as operation:
            return reply_peer(work, change, operation, admission)
        case PeerProgress() as operation:
            return progress_peer(work, change, operation, admission)
        case PeerCheckpoint() as operation:
            return checkpoint_peer(work, change, operation, admission)
        case PeerAck() as operation:
            return ack_peer(work, change, operation, admission)
        case PeerHuman() as operation:
            return human_peer(work, change, operation, admission)
        case PeerDescribe() as operation:
            return describe_peer(work, change, operation, admission)
        case _:
            assert_never(change.operation)
