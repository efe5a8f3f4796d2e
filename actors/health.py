"""The words in which the state of the whole bus is told: in messages, in status, to adapters.

Owns nothing but the words. Any thread.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Readiness: TypeAlias = Literal["starting", "recovering", "ready", "stopping"]

Work: TypeAlias = Literal[
    "starting Redis",
    "making the text index",
    "clearing Redis",
    "replaying what Redis misses",
    "filling Redis",
    "making room in Redis",
    "waiting to try again",
]
"""What a bus that is not ready is busy with."""
