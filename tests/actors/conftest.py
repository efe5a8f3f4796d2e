"""Both runtimes of an actor, an attachment on its stage with a real Redis, inboxes on a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.actors.post import PostOffice, post_office
from tests.actors.runtimes import Recorder, Runtime, running
from tests.actors.stage import Stage, stage_on
from tests.redis_fixture import PrivateRedis, private_redis
from tests.store.peers import Peer


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


@pytest.fixture
def post(tmp_path: Path) -> Iterator[PostOffice]:
    with post_office(tmp_path) as post:
        yield post


@pytest.fixture
def sam(post: PostOffice) -> Peer:
    return Peer(post, "Sam")


@pytest.fixture
def kim(post: PostOffice) -> Peer:
    return Peer(post, "Kim")
