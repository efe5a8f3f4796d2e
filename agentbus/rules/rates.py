"""Token buckets: how many mutations and bytes a session may still send right now."""

from __future__ import annotations

import math


class Rates:
    """A count bucket and a byte bucket with a one-second burst each; both must have room.

    The byte burst is at least `largest_bytes`, so that one largest message always fits a full
    bucket. Not thread-safe: one owner.
    """

    __slots__ = ("_bytes", "_byte_burst", "_byte_rate", "_count", "_count_rate", "_updated_s")

    def __init__(
        self, messages_per_second: int, bytes_per_second: int, largest_bytes: int, now_s: float
    ) -> None:
        self._count_rate = messages_per_second
        self._byte_rate = bytes_per_second
        self._byte_burst = max(bytes_per_second, largest_bytes)
        self._count = float(messages_per_second)
        self._bytes = float(self._byte_burst)
        self._updated_s = now_s

    def reserve(self, size_bytes: int, now_s: float) -> bool:
        """Take one mutation of that size, or nothing at all."""
        self._refill(now_s)
        if self._count < 1 or self._bytes < size_bytes:
            return False
        self._count -= 1
        self._bytes -= size_bytes
        return True

    def refund(self, size_bytes: int) -> None:
        """Give a reservation back."""
        self._count = min(self._count + 1, self._count_rate)
        self._bytes = min(self._bytes + size_bytes, self._byte_burst)

    def retry_after_ms(self, size_bytes: int, now_s: float) -> int:
        """When a mutation of that size would pass, if nothing else is sent until then."""
        self._refill(now_s)
        count_s = max(0.0, (1 - self._count) / self._count_rate)
        bytes_s = max(0.0, (size_bytes - self._bytes) / self._byte_rate)
        return max(1, math.ceil(max(count_s, bytes_s) * 1000))

    def _refill(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._updated_s)
        self._updated_s = now_s
        self._count = min(self._count + passed_s * self._count_rate, self._count_rate)
        self._bytes = min(self._bytes + passed_s * self._byte_rate, self._byte_burst)
