"""Nothing in the tree is about the machine it was made on, or about where packages come from."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.architecture.tree import ROOT

# Each pattern has a bracket somewhere, so that this file does not hold what it looks for.
WORDS = {
    "a path of a maker's machine": r"(?<![\w.~-])/(wor[k]/|roo[t]/|opt/de[v]\b|tmp/tea[m]\b)",
    "the host of a package registry": (
        r"pyp[i]\.org|pythonhoste[d]\.org|registry\.npmj[s]\.org|golan[g]\.org"
    ),
    "a ticket or a page that readers do not have": r"(?i)\b(issu[e] #?\d|spec pag[e])",
}


def _tracked_files() -> list[str]:
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "ls-files", "-z"],
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        return [name for name in listed.stdout.decode().split("\0") if name]
    hidden_or_made = re.compile(r"(^|/)(\.(?!ci/)|__pycache__/|build/|[^/]*\.egg-info/)")
    names = (str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file())
    return [name for name in names if not hidden_or_made.search(name)]


@pytest.mark.parametrize("what", WORDS)
def test_no_tracked_file_holds(what: str) -> None:
    pattern = re.compile(WORDS[what])
    wrong = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name in _tracked_files()
        if (ROOT / name).is_file()
        for number, line in enumerate(
            (ROOT / name).read_text(encoding="utf-8", errors="replace").splitlines(), 1
        )
        if pattern.search(line)
    ]
    assert not wrong, f"{what}:\n" + "\n".join(wrong)
