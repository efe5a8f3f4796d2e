"""What tests mount is unmounted, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bus_fixture import ROOT
from tests.exhaustion import CAN_MOUNT, small_disk

pytestmark = pytest.mark.skipif(not CAN_MOUNT, reason="needs Linux and root to mount")

_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.exhaustion import small_disk

with small_disk(Path(sys.argv[1]), 1 << 20):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    yield folder
    assert not os.path.ismount(folder)


def test_a_test_that_fails_leaves_nothing_mounted(folder: Path) -> None:
    def fail() -> None:
        with small_disk(folder), (folder / "held").open("wb"):
            assert os.path.ismount(folder)
            raise KeyError

    with pytest.raises(KeyError):
        fail()


def test_what_a_killed_one_has_left_is_unmounted_by_the_next(folder: Path, tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(folder)], cwd=ROOT, timeout=30)
    assert ended.returncode == -signal.SIGKILL
    assert os.path.ismount(folder)
    with small_disk(tmp_path / "other"):
        assert not os.path.ismount(folder)
