"""Brokers for the whole module: each job has an id of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jobs.servers import Server, bus_server, nats_server, redis_server, s3_server


@pytest.fixture(scope="module")
def nats() -> Iterator[Server]:
    with nats_server() as server:
        yield server


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def s3() -> Iterator[Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def bus() -> Iterator[Server]:
    with bus_server() as server:
        yield server


@pytest.fixture(params=["nats", "redis", "bus"])
def broker(request: pytest.FixtureRequest) -> Server:
    """One of the brokers."""
    server: Server = request.getfixturevalue(request.param)
    return server
