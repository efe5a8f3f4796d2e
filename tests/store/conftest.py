from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.bus import Bus


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path)
    yield bus
    bus.close()
