"""`agentbus-admin`: what a person asks about the bus or does to it; one file per command.

Owns the usage text and the dispatch. Imports a command's module only when it runs. Main thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentbus.cli.entry import Arguments, parse, run

USAGE = """agentbus-admin: look after the bus.

Usage:
  agentbus-admin status [--config PATH] [--json]
  agentbus-admin stop [--config PATH] [--json]
  agentbus-admin reset [--config PATH] [--json] [--yes]
  agentbus-admin config [--config PATH] [--json]
  agentbus-admin export [--config PATH] [--output FILE] [--json]
  agentbus-admin import FILE [--config PATH] [--json]
  agentbus-admin channels [--json]
  agentbus-admin sessions [--json]
  agentbus-admin doctor [--config PATH] [--json]
  agentbus-admin demo [--keep]
  agentbus-admin install HARNESS [--agent NAME] [--config PATH] [--user | --project] [--dry-run]
                         [--json]
  agentbus-admin uninstall HARNESS [--user | --project] [--dry-run] [--json]
  agentbus-admin (-h | --help)
  agentbus-admin --version

Commands:
  status     Tell how the bus is, in every state.
  stop       End the daemon in order; the next tool call starts one again.
  reset      Delete everything on the bus; asks first.
  config     Every setting with its value in force and where that comes from.
  export     Write everything on the bus into a file, also while it runs.
  import     Read such a file into an empty bus, while no daemon runs.
  channels   The channels of the running bus.
  sessions   The sessions that are connected now.
  doctor     Look at everything that has to be right, send a message through it, say what to do.
  demo       Two agents on a bus of their own, whose daemon is killed in the middle.
  install    Put the bus into the configuration of a harness: claude-code, codex, opencode, gemini;
             generic prints what to paste for any other client.
  uninstall  Take exactly that out again.

Options:
  --agent NAME    The agent's persistent name there; the folder's name if left out.
  --user          For all projects (the default).
  --project       For the project in the current folder only.
  --dry-run       Show what would change, as a diff, and change nothing.
  --config PATH   Configuration file; ~/.config/agentbus/config.json if left out.
  --output FILE   Where the export goes, - for stdout; a new file in this folder if left out.
  --json          One JSON document on stdout instead of text.
  --yes           Do not ask.
  --keep          Leave the demo's folder behind and say where it is.
  -h --help       Show this.
  --version       Show the version.

Exit codes: 0 done; 1 failed, or the demo did not prove something, or the doctor found a failure;
2 wrong usage or configuration; 3 no daemon is running.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `agentbus-admin`."""
    return run(lambda: _dispatch(parse(USAGE, argv)))


def _dispatch(arguments: Arguments) -> int:
    if arguments["status"]:
        from agentbus.cli.admin.status import status

        return status(arguments)
    if arguments["stop"]:
        from agentbus.cli.admin.stop import stop

        return stop(arguments)
    if arguments["reset"]:
        from agentbus.cli.admin.reset import reset

        return reset(arguments)
    if arguments["config"]:
        from agentbus.cli.admin.config import config

        return config(arguments)
    if arguments["export"]:
        from agentbus.cli.admin.export import export

        return export(arguments)
    if arguments["import"]:
        from agentbus.cli.admin.importing import import_export

        return import_export(arguments)
    if arguments["channels"]:
        from agentbus.cli.admin.channels import channels

        return channels(arguments)
    if arguments["sessions"]:
        from agentbus.cli.admin.sessions import sessions

        return sessions(arguments)
    if arguments["doctor"]:
        from agentbus.cli.admin.doctor import doctor

        return doctor(arguments)
    if arguments["install"]:
        from agentbus.cli.admin.install import install

        return install(arguments)
    if arguments["uninstall"]:
        from agentbus.cli.admin.install import uninstall

        return uninstall(arguments)
    from agentbus.cli.admin.demo import demo

    return demo(arguments)
