"""A bus for command lines: its daemon is not started yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bus_fixture import ThrowAwayBus


@pytest.fixture
def stopped_bus() -> Iterator[ThrowAwayBus]:
    """Folders, configuration and environment; no daemon."""
    bus = ThrowAwayBus()
    yield bus
    bus.close()


@pytest.fixture
def running_bus(stopped_bus: ThrowAwayBus) -> ThrowAwayBus:
    """The same with a daemon that is ready."""
    stopped_bus.start()
    return stopped_bus
