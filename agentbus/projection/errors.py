"""What can go wrong with the projection, and the edge where redis-py's errors become these.

Nothing here means that a message was lost: the ledger has it, and the answer is to recover.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from agentbus.errors import UnavailableError

EMPTIED = "Redis was emptied by somebody else; the bus fills it again"


class ProjectionError(UnavailableError):
    """Redis failed, hung or answered nonsense; the projection has to be recovered."""


class ProjectionFullError(ProjectionError):
    """Redis refused a write for lack of memory and applied none of the batch: evict, then retry."""


class RedisUnusableError(ProjectionError):
    """No private Redis can be had until a person changes something; the message says what."""

    retryable = False


@contextmanager
def redis_errors(doing: str) -> Iterator[None]:
    """Map every error of redis-py raised inside. `doing` completes "Redis failed to ..."."""
    try:
        yield
    except redis.TimeoutError:
        raise ProjectionError(
            f"Redis did not answer in time when asked to {doing}; the bus recovers by itself"
        ) from None
    except redis.OutOfMemoryError:
        raise ProjectionFullError(
            f"Redis has no memory left to {doing}; raise redis_budget_mib and restart, or "
            "keep less (message_retention_hours)"
        ) from None
    except redis.RedisError as error:
        raise ProjectionError(
            f"Redis failed to {doing} ({error}); the bus recovers by itself"
        ) from None
