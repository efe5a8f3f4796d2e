"""Output for people (rich tables) and for programs (one JSON document).

Imports rich only when something is really drawn. Runs on the main thread of a command.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from agentbus.cli.text import for_terminal
from agentbus.encoding import encode_pretty

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH_OF_A_PIPE = 160
"""Where no terminal tells its width: rows of usual length stay on one line for grep."""


def print_json(document: Any) -> None:
    """The one document on stdout that `--json` promises."""
    print(encode_pretty(document))


def console() -> Console:
    """For stdout. Markup and emoji codes are off: what is printed is shown as it is."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDTH_OF_A_PIPE
    return Console(width=width, markup=False, emoji=False, highlight=False)


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    unbroken: str | None = None,
) -> Table:
    """A table of cells, each escaped for the terminal. `None` is shown as nothing.

    `unbroken`: the column whose cells stay on one line, however narrow the terminal: ids to copy.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(title, "bold"), title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        drawn.add_column(Text(column), overflow="fold", no_wrap=column == unbroken)
    for row in rows:
        drawn.add_row(*(Text("" if cell is None else for_terminal(cell)) for cell in row))
    return drawn


def facts(title: str, rows: Iterable[tuple[str, object]]) -> Table:
    """Names and their values, one a line; rows without a value are left out."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(title, "bold"), title_justify="left", box=None, show_header=False)
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in rows:
        if value is not None:
            drawn.add_row(Text(f"  {name}", "dim"), Text(for_terminal(value)))
    return drawn
