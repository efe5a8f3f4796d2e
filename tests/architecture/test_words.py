"""Nothing in the tree is about the machine it was made on, or about where packages come from."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.architecture.tree import ROOT

# Written in pieces, so that this file does not hold what it looks for.
WORDS = {
    "a path of a maker's machine": "|".join(
        rf"(?<![\w.~-]){path}\b" for path in ("/work/", "/root/", "/opt/dev", "/tmp/team")
    ),
    "the host of a package registry": "|".join(
        (
            r"py" r"pi\.org",
            r"python" r"hosted\.org",
            r"registry\.np" r"mjs\.org",
            r"golang" r"\.org",
        )
    ),
    "a ticket or a page that readers do not have": r"(?i)\b(iss" r"ue #?\d|spec pa" r"ge)",
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
