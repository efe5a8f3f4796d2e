"""The documents as their tests read them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.architecture.tree import ROOT
from tests.docs.pages import DOCS

DOCUMENTS = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(document: Path, language: str) -> list[str]:
    """The fenced blocks of that language."""
    text = document.read_text(encoding="utf-8")
    return [body for found, body in BLOCK.findall(text) if found == language]
