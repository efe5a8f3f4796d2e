"""The identifiers of the bus as distinct types, and the maker of new ones."""

from __future__ import annotations

import os
import time
from typing import Final, NewType

AgentId = NewType("AgentId", str)
"""Stable id of a persistent agent (`Sam`), made once by the ledger."""

SessionId = NewType("SessionId", str)
"""Stable id of one native conversation (or child of one) of one application."""

ChannelId = NewType("ChannelId", int)
"""Row id of a channel in SQLite; also the key of its Redis stream."""

MessageId = NewType("MessageId", str)
"""Id of a message, and of the memory that the message created."""

OperationId = NewType("OperationId", str)
"""1 to 128 bytes, chosen by the caller or its adapter; unique per session."""

DeliveryId = NewType("DeliveryId", str)
"""Id of a direct message for one of its recipients: what is claimed, answered and finished."""

LeaseToken = NewType("LeaseToken", str)
"""Proof of a claim: made anew with each, known to the daemon and the claiming adapter only."""

InterventionId = NewType("InterventionId", str)
"""Id of one question to a person about a delivery."""

Sequence = NewType("Sequence", int)
"""Commit order over the whole bus, from 1; never reused, never going back. 0 means "before all"."""

Generation = NewType("Generation", int)
"""Of an attachment: grows with every attach on the whole bus, never reused (the fencing token)."""

RecoveryEpoch = NewType("RecoveryEpoch", int)
"""Counts the recoveries of the running daemon; reports of an older epoch are ignored."""

NO_EPOCH: Final = RecoveryEpoch(0)
"""Before the first: Redis has not started yet, and may not start at all."""

BusId = NewType("BusId", str)
"""Identity of one database; a reset makes a new one."""


def new_id() -> str:
    """A UUIDv7 as text: 48 bits of Unix milliseconds, then 74 random bits (RFC 9562)."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76  # version 7
    value = value & ~(0x3 << 62) | 0x2 << 62  # RFC variant
    digits = f"{value:032x}"  # uuid.UUID does the same in four times the time
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
