from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.bus import Bus
from tests.store.peers import Peer, require_exact_accounting


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path)
    yield bus
    bus.close()


@pytest.fixture
def exact_accounting(bus: Bus) -> Iterator[None]:
    """After the test the counted bytes are those of the rows."""
    yield
    require_exact_accounting(bus)


@pytest.fixture
def sam(bus: Bus) -> Peer:
    return Peer(bus, "Sam")


@pytest.fixture
def ann(bus: Bus) -> Peer:
    return Peer(bus, "Ann")


@pytest.fixture
def bob(bus: Bus) -> Peer:
    return Peer(bus, "Bob")


@pytest.fixture
def kim(bus: Bus) -> Peer:
    return Peer(bus, "Kim")
