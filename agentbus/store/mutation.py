"""What all changes with a receipt and a rate have in common. Plain record; touches no database."""

from __future__ import annotations

from dataclasses import dataclass

from agentbus.errors import ConflictError
from agentbus.identity import Attachment, SenderBinding
from agentbus.protocol.operations import MutatingOperation
from agentbus.protocol.peer import PeerWriting


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change with a receipt and a rate. `fingerprint` comes from rules/receipts.py."""

    operation: MutatingOperation | PeerWriting
    operation_id: str
    fingerprint: bytes
    sender: SenderBinding
    attachment: Attachment
    rate_ok: bool
    retry_after_ms: int = 1000
    depth: int = 0

    @property
    def receipt_key(self) -> tuple[str, str]:
        """Whose the operation id is, and the id: what makes two calls the same call."""
        return (self.attachment.session_id, self.operation_id)

    def key_reused(self) -> ConflictError:
        """What a call with the id of a different one is answered."""
        return ConflictError(
            f"operation id {self.operation_id!r} was already used by this session for a different "
            "call; repeat that call unchanged, or use a new operation id"
        )
