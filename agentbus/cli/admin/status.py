"""`status`: how the bus is, in every state, for a person or as JSON.

The daemon's own answer is passed on; this command adds whether the configuration file still says
what the daemon was started with. Where none runs, it tells why the last start was refused. Runs on
the main thread.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agentbus.cli.entry import ERROR_CHARACTERS, EXIT_NOT_RUNNING, EXIT_OK, Arguments
from agentbus.cli.output import print_json
from agentbus.cli.running import find_daemon, runtime_paths
from agentbus.cli.text import for_terminal
from agentbus.config import READ_AGAIN, ConfigError, load_config
from agentbus.envelope import rfc3339
from agentbus.transport.refusals import last_refusal


def status(arguments: Arguments) -> int:
    """Print the status. Exit 3 when no daemon runs."""
    given = arguments["--config"]
    daemon = find_daemon()
    if daemon is None:
        _print_absence(as_json=arguments["--json"], notes=configuration_notes({}, given))
        return EXIT_NOT_RUNNING
    with daemon:
        answer: dict[str, Any] = {"running": True, **daemon.ask("status")}
    answer["notes"] = configuration_notes(answer.get("config") or {}, given)
    if arguments["--json"]:
        print_json(answer)
    else:
        from agentbus.cli.admin.status_view import print_status

        print_status(answer)
    return EXIT_OK


def _print_absence(*, as_json: bool, notes: list[str]) -> None:
    """That no daemon runs, and what is known about why."""
    paths = runtime_paths()
    refusal = last_refusal(paths)
    if as_json:
        told = refusal and {"message": refusal.text, "at": rfc3339(refusal.at_us)}
        directory = str(paths.directory)
        print_json(
            {"running": False, "runtime_directory": directory, "refusal": told, "notes": notes}
        )
        return
    print("No daemon is running. The next tool call starts one; so does: agentbus daemon --detach")
    if refusal is not None:
        at = rfc3339(refusal.at_us)
        print(f"The last start was refused at {at}: {for_terminal(refusal.text, ERROR_CHARACTERS)}")
    for note in notes:
        print(f"Note: {for_terminal(note, ERROR_CHARACTERS)}")


def configuration_notes(in_use: dict[str, Any], given: str | None) -> list[str]:
    """Where the configuration file and the running daemon disagree; empty when they agree.

    Without --config the file is the one that the daemon was started with. A file that cannot be
    used is a note too: status has to work above all when something is broken.
    """
    used_path = in_use.get("path")
    notes: list[str] = []
    if given is None:
        path = None if used_path is None else Path(used_path)
    else:
        path = Path(os.path.abspath(given))
        if used_path is not None and Path(used_path) != path:
            notes.append(
                f"the daemon was started with {used_path}, not {path}; "
                "to change that run agentbus stop, then start it again"
            )
    try:
        wanted = load_config(path).effective()
    except ConfigError as error:
        return [*notes, f"the configuration file cannot be used: {error.message}"]
    values = in_use.get("values") or {}
    compared = (values.keys() & wanted.keys()) - READ_AGAIN
    changed = sorted(name for name in compared if wanted[name] != values[name])
    if changed:
        notes.append(
            f"the daemon does not use what {path or 'the file'} says for {', '.join(changed)}; "
            "run agentbus stop to apply it at the next start"
        )
    return notes
