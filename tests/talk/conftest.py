"""What the tests of talk share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.talk.served import RunningServer, running_server


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("talk")) as running:
        yield running


@pytest.fixture
def server(one_server: RunningServer) -> RunningServer:
    """A server that says what it heard, with everybody as a peer."""
    one_server.set_peers("*")
    one_server.callers.held.clear()
    one_server.callers.depths.clear()
    one_server.callers.trouble = None
    return one_server
