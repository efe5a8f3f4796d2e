"""What the messages of a benchmark say: 400 bytes of text in which words repeat as people's do."""

from __future__ import annotations

import random

CONTENT_BYTES = 400
VOCABULARY = 3000
CONTENTS = 512


def contents() -> list[str]:
    """The same texts in every run: common words often, rare ones seldom, some paths and numbers."""
    chance = random.Random(400)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 10))) for _ in range(VOCABULARY)]
    weights = [1 / rank for rank in range(1, VOCABULARY + 1)]
    texts = []
    for number in range(CONTENTS):
        parts = [f"src/{chance.choice(words)}.py:{number}"]
        parts += chance.choices(words, weights, k=CONTENT_BYTES // 2)
        texts.append(" ".join(parts)[:CONTENT_BYTES])
    return texts
