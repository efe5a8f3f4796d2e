"""Both runtimes of an actor, and an attachment on its stage with a real Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.actors.runtimes import Recorder, Runtime, running
from tests.actors.stage import Stage, stage_on
from tests.redis_fixture import PrivateRedis, private_redis


@pytest.fixture(params=["threaded", "pooled"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with running(request.param) as runtime:
        yield runtime


@pytest.fixture
def recorder(runtime: Runtime) -> Any:
    return runtime.of(Recorder)()


@pytest.fixture(scope="module")
def redis() -> Iterator[PrivateRedis]:
    with private_redis() as running_redis:
        yield running_redis


@pytest.fixture
def stage(tmp_path: Path, redis: PrivateRedis) -> Iterator[Stage]:
    with stage_on(tmp_path, redis) as stage:
        yield stage
