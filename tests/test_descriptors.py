"""The limit of descriptors: raised as far as wanted and allowed, never lowered."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from agentbus.descriptors import raise_descriptor_limit
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
raise_descriptor_limit(wanted or None)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "raised"),
    [
        (64, 200, 150, 150),
        (64, 200, 200, 200),
        (64, 200, 300, 200),
        (180, 200, 150, 180),
        (200, 200, 300, 200),
        (64, 200, 0, 200),
    ],
)
def test_limit_is_raised_as_far_as_wanted_and_never_lowered(
    soft: int, hard: int, wanted: int, raised: int
) -> None:
    numbers = [str(number) for number in (soft, hard, wanted)]
    limits = subprocess.check_output([sys.executable, "-c", PROGRAM, *numbers], text=True)
    assert limits == f"{raised} {hard}\n"
