from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.search.engines import Corpus, corpus


@pytest.fixture
def messages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    """An empty corpus of one test."""
    with corpus(tmp_path_factory.mktemp("corpus")) as empty:
        yield empty


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    """A corpus of one module, for tests that only add to it."""
    with corpus(tmp_path_factory.mktemp("corpus")) as common:
        yield common
