from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bus_fixture import ThrowAwayBus, throw_away_bus

__all__ = ["bus", "throw_away_bus"]


@pytest.fixture(scope="module")
def bus() -> Iterator[ThrowAwayBus]:
    """One daemon for the tests of a file; each of them attaches conversations of its own."""
    with ThrowAwayBus(send_messages_per_second=10_000, send_kib_per_second=65_536) as bus:
        yield bus
