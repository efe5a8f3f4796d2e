"""What every test gets: a home that is not the user's, and places for sockets with short paths."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from agentbus import failpoints
from tests.clock import FakeClock

REQUIRE_ALL = bool(os.environ.get("AGENTBUS_REQUIRE_ALL"))
"""Set where everything is expected to be installed: what would be skipped fails instead."""


@pytest.fixture(scope="session", autouse=True)
def _foreign_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test may read or write the files of the person who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        for name in [*os.environ]:
            if name.startswith("XDG_") or name == "AGENTBUS_RUNTIME_DIR":
                patch.delenv(name)
        yield


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """A shell starts what runs in its background deaf to Ctrl-C, and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A private folder whose path is short enough for Unix sockets (108 bytes in all)."""
    folder = Path(tempfile.mkdtemp(prefix="ab-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def clock() -> FakeClock:
    """Time that stands still until the test moves it."""
    return FakeClock()


@pytest.fixture
def armed() -> Iterator[Callable[[str], None]]:
    """Arms failpoints of this process; none is armed afterwards."""
    yield failpoints.arm
    failpoints.arm("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, though AGENTBUS_REQUIRE_ALL is set: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if REQUIRE_ALL and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, though AGENTBUS_REQUIRE_ALL is set: {report.longrepr}"
    return report
