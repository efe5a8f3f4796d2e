"""`import`: make an export the content of an empty bus, while no daemon runs.

Never overwrites and never mixes: a bus with anything on it is refused. Runs on the main thread.
"""

from __future__ import annotations

from pathlib import Path

from agentbus.cli.admin.locks import hold_bus
from agentbus.cli.entry import EXIT_OK, Arguments
from agentbus.cli.output import print_json
from agentbus.cli.text import for_terminal
from agentbus.config import DATABASE_NAME, load_config
from agentbus.errors import UnavailableError, UnknownOutcomeError


def import_export(arguments: Arguments) -> int:
    """Read the file into the bus of the configuration."""
    from agentbus.clock import SystemClock
    from agentbus.store.connection import CommitUncertain, DatabaseUnusable
    from agentbus.store.importing import ImportRefused, import_bus

    config = load_config(None if arguments["--config"] is None else Path(arguments["--config"]))
    database = config.data_directory / DATABASE_NAME
    with Path(arguments["FILE"]).open("rb") as lines, hold_bus(config, "nothing was imported"):
        try:
            summary = import_bus(
                database, config.sqlite_synchronous, lines, SystemClock().wall_us()
            )
        except (DatabaseUnusable, ImportRefused) as error:
            raise UnavailableError(str(error)) from None
        except CommitUncertain as error:
            raise UnknownOutcomeError(str(error)) from None
    if arguments["--json"]:
        print_json(
            {
                "database": str(database),
                "bus_id": summary.bus_id,
                "counts": summary.counts,
                "last_sequence": summary.last_sequence,
            }
        )
    else:
        counts = ", ".join(f"{count} {name}" for name, count in summary.counts.items())
        print(f"Imported {counts} into {for_terminal(database)}.")
        print(f"The bus's new id is {summary.bus_id}; the next tool call starts the daemon.")
    return EXIT_OK
