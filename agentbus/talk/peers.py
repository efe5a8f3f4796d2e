"""`talk_peers`, the one setting that is read again for every question.

Owns nothing. Reads a small file; on whichever thread asks.
"""

from __future__ import annotations

from pathlib import Path

from agentbus.config import load_config
from agentbus.rules.talk import Peers


def read_peers(config_path: Path) -> Peers:
    """As the file says now. Raises ConfigError when it cannot be used."""
    return load_config(config_path).talk_peers
