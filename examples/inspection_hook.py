#!/usr/bin/env python3
"""An inspection command: keeps API keys and private keys off the bus.

The bus runs it for every message and every memory before it is stored, with the document on stdin,
and stores nothing unless it prints {"decision": "allow"}. Put it into the configuration:

    {"inspection_command": ["/path/to/inspection_hook.py"]}

Try it by hand:

    echo '{"operation":"send","sender":{},"payload":{"content":"hello"}}' | ./inspection_hook.py

Needs nothing but Python. To keep other things off, change PATTERNS or `find_secret`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

# Each has a shape that ordinary text does not have by chance: a false alarm stops somebody's work.
PATTERNS = {
    "an AWS access key": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
    "an Anthropic API key": r"\bsk-ant-[\w-]{20,}",
    "an OpenAI API key": r"\bsk-((proj|svcacct|admin)-[\w-]{40,}|[A-Za-z0-9]{32,})",
    "a GitHub token": r"\b(gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,})",
    "a GitLab token": r"\bglpat-[\w-]{20,}",
    "a Google API key": r"\bAIza[\w-]{35}",
    "a Slack token": r"\bxox[abeprs]-[\w-]{10,}",
    "a Stripe key": r"\b[rs]k_live_[A-Za-z0-9]{16,}",
    "a private key": r"-----BEGIN ([A-Z]+ )*PRIVATE KEY-----",
}
SECRETS = {kind: re.compile(pattern) for kind, pattern in PATTERNS.items()}


def main() -> None:
    document = json.load(sys.stdin.buffer)
    secret = find_secret(document["payload"])
    if secret is None:
        answer = {"decision": "allow"}
    else:
        # The reason goes to the agent that sent it: it must help, and never repeat the secret.
        reason = (
            f"{secret}. Send it again without: say where the secret is kept instead, such as the "
            "name of an environment variable. If it is a real one, tell the user to revoke it, "
            "because it is part of this conversation now."
        )
        answer = {"decision": "deny", "reason": reason}
    json.dump(answer, sys.stdout)


def find_secret(payload: dict[str, Any]) -> str | None:
    """Which field holds what kind of secret, in words; None if there is none."""
    for field, value in payload.items():
        for text in texts(value):
            for kind, pattern in SECRETS.items():
                if pattern.search(text):
                    return f"The field {field} holds what looks like {kind}"
    return None


def texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, the keys of its objects included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


if __name__ == "__main__":
    main()
