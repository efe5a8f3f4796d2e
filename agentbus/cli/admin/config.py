"""`agentbus-admin config`: every setting, its value in force, and where that comes from.

Reads the file as the daemon would; whether a running daemon uses the same is what `status` tells.
"""

from __future__ import annotations

from pathlib import Path

from agentbus.cli.entry import EXIT_OK, Arguments
from agentbus.cli.output import console, print_json, table
from agentbus.config import SETTINGS, Json, load_config
from agentbus.encoding import encode


def config(arguments: Arguments) -> int:
    """Print the effective configuration."""
    path = arguments["--config"]
    loaded = load_config(None if path is None else Path(path))
    values = loaded.effective()
    if arguments["--json"]:
        print_json(
            {
                "path": str(loaded.path),
                "exists": loaded.path.exists(),
                "settings": [
                    {
                        "name": row.name,
                        "value": values[row.name],
                        "source": loaded.source[row.name],
                        "default": row.default,
                        "allowed": row.expected,
                        "meaning": row.meaning,
                    }
                    for row in SETTINGS
                ],
            }
        )
        return EXIT_OK
    found = "" if loaded.path.exists() else " (does not exist: all defaults)"
    console().print(
        table(
            f"Configuration: {loaded.path}{found}",
            ("Setting", "Value", "Source", "Meaning"),
            (
                (row.name, _shown(values[row.name], row.unit), loaded.source[row.name], row.meaning)
                for row in SETTINGS
            ),
        )
    )
    return EXIT_OK


def _shown(value: Json, unit: str) -> str:
    text = value if isinstance(value, str) else encode(value).decode()
    return f"{text} {unit}".rstrip()
