"""The ledger's answer to the operation `describe`: what an agent says that it knows.

Kept with the agent, so it outlasts its sessions. Runs on the ledger's thread.
"""

from __future__ import annotations

from typing import Any

from agentbus.encoding import decode_trusted
from agentbus.protocol.peer import PeerDescribe
from agentbus.store.accounting import row_bytes
from agentbus.store.changes import Done
from agentbus.store.peer.changes import PeerMutation
from agentbus.store.receipts import Admission
from agentbus.store.schema import PLACE, Agent, text
from agentbus.store.work import Work

_SELECT = text(Agent.select(Agent.description, Agent.capabilities).where(Agent.id == PLACE))
_UPDATE = text(Agent.update({Agent.description: PLACE}).where(Agent.id == PLACE))


def describe_peer(
    work: Work, change: PeerMutation, operation: PeerDescribe, admission: Admission
) -> Done:
    """Replace the description; a blank one is none."""
    agent_id = change.sender.agent_id
    before, capabilities = work.execute(_SELECT, (agent_id,)).fetchone()
    description = (operation.description or "").strip() or None
    work.execute(_UPDATE, (description, agent_id))
    work.counters.logical_bytes += row_bytes((description,)) - row_bytes((before,))
    answer: dict[str, Any] = {
        "agent": change.sender.agent,
        "agent_id": agent_id,
        "description": description,
        "capabilities": decode_trusted(capabilities),
    }
    admission.record(work, change, answer)
    return Done({**answer, "duplicate": False})
