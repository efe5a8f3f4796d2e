"""`agentbus-admin install` and `uninstall`: the bus in a harness's configuration, and out of it.

Shows every file and what is done to it; with --dry-run a diff and nothing is written. What has to
be done by hand afterwards is said. Main thread.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from agentbus.adapter.binding import checked_name
from agentbus.cli.entry import EXIT_OK, Arguments
from agentbus.cli.output import print_json
from agentbus.cli.program import own_program
from agentbus.cli.text import for_terminal
from agentbus.errors import ValidationError
from agentbus.harnesses.installing.entries import Target, entries_of, generic, moved_folders
from agentbus.harnesses.installing.installation import (
    Change,
    carry_out,
    plan_install,
    plan_uninstall,
)

_DIFF_CHARACTERS: Final = 2000

_AFTERWARDS: Final = {
    "claude-code": "Sessions that run already use it after they are started again.",
    "codex": (
        "Codex runs hooks only when they are trusted: start `codex` once and accept them. "
        "Sessions that run already use the bus after they are started again."
    ),
    "opencode": "opencode has no hooks: it is not woken, and each process is a new session.",
    "gemini": (
        "Gemini CLI starts servers only in folders that it trusts. It is not woken while idle; "
        "its hooks only tell the conversation."
    ),
}

_AFTERWARDS_IN_PROJECT: Final = {
    "claude-code": "Claude Code uses this folder's server once you approve it: start `claude`.",
    "codex": "Codex reads this folder's files only when it trusts it: start `codex` and accept.",
}


def install(arguments: Arguments) -> int:
    """Write the entries, or show what would be written."""
    target = _target(arguments)
    if arguments["HARNESS"] == "generic":
        print_json(generic(target))
        return EXIT_OK
    changes = plan_install(entries_of(arguments["HARNESS"], target))
    return _finish(arguments, changes, installing=True)


def uninstall(arguments: Arguments) -> int:
    """Take the entries out again, or show what would be taken out."""
    if arguments["HARNESS"] == "generic":
        raise ValidationError("generic has no file: what was pasted by hand is taken out by hand")
    changes = plan_uninstall(entries_of(arguments["HARNESS"], _target(arguments)))
    return _finish(arguments, changes, installing=False)


def _target(arguments: Arguments) -> Target:
    agent, config_path = arguments.get("--agent"), arguments.get("--config")
    return Target(
        home=Path.home(),
        project=Path.cwd() if arguments["--project"] else None,
        command=str(own_program()),
        agent=None if agent is None else checked_name(agent, "--agent"),
        config_path=None if config_path is None else Path(config_path).absolute(),
        moved=moved_folders(os.environ),
    )


def _finish(arguments: Arguments, changes: list[Change], *, installing: bool) -> int:
    dry = bool(arguments["--dry-run"])
    if not dry:
        carry_out(changes, installing=installing)
    if arguments["--json"]:
        print_json(
            {
                "written": not dry,
                "files": [
                    {"path": str(change.path), "changed": not change.is_none, "diff": change.diff()}
                    for change in changes
                ],
            }
        )
        return EXIT_OK
    for change in changes:
        if change.is_none:
            print(f"{for_terminal(change.path)}: nothing to change")
        elif dry:
            for line in change.diff():
                print(for_terminal(line, _DIFF_CHARACTERS))
        else:
            done = "removed" if change.after is None else "written"
            print(f"{for_terminal(change.path)}: {done}")
    if installing and not dry:
        print(_AFTERWARDS[arguments["HARNESS"]])
        if arguments["--project"] and arguments["HARNESS"] in _AFTERWARDS_IN_PROJECT:
            print(_AFTERWARDS_IN_PROJECT[arguments["HARNESS"]])
    return EXIT_OK
