"""Every promise of an actor is tested against both runtimes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.actors.runtimes import Recorder, Runtime, running


@pytest.fixture(params=["threaded", "pooled"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with running(request.param) as runtime:
        yield runtime


@pytest.fixture
def recorder(runtime: Runtime) -> Any:
    return runtime.of(Recorder)()
