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
  agentbus-admin human list [--decided] [--limit N] [--json]
  agentbus-admin human show ID [--json]
  agentbus-admin human decide ID ACTION [--instructions TEXT] [--to NAME] [--if-version N] [--json]
  agentbus-admin human send NAME... --body TEXT [--info] [--thread ID] [--due SECONDS] [--key KEY]
                            [--json]
  agentbus-admin human replies [--limit N] [--json]
  agentbus-admin requests [--state STATE] [--agent NAME] [--limit N] [--json]
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
  human      What waits for you: list it, show one, decide it (approve, reject, redirect, nudge,
             reassign, cancel); send agents a request of your own, and read their replies.
  requests   What agents asked each other, and how far it is.
  doctor     Look at everything that has to be right, send a message through it, say what to do.
  demo       Two agents on a bus of their own, whose daemon is killed in the middle.
  install    Put the bus into the configuration of a harness: claude-code, codex, opencode, gemini;
             generic prints what to paste for any other client.
  uninstall  Take exactly that out again.

Options:
  --agent NAME    The agent's persistent name there, the folder's name if left out; of requests,
                  only those from or to this agent.
  --user          For all projects (the default).
  --project       For the project in the current folder only.
  --dry-run       Show what would change, as a diff, and change nothing.
  --decided       What was decided, newest first, instead of what waits.
  --instructions TEXT  What the agent shall do; redirect and nudge need it.
  --to NAME       The agent or session that a reassigned task goes to.
  --if-version N  Decide only if the intervention is still in this version; the newest if left out.
  --body TEXT     What to say; - reads it from stdin.
  --info          Nothing to be answered; a request if left out.
  --thread ID     The thread that it belongs to; a new one if left out.
  --due SECONDS   When the answer is due; peer_reply_due_seconds if left out.
  --key KEY       Makes a repeat harmless: the same key and text is sent once.
  --state STATE   awaiting, overdue, unanswered, replied or cancelled; the first three if left out.
  --limit N       At most so many, 1 to 100.
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
    if arguments["human"]:
        from agentbus.cli.admin.human import human

        return human(arguments)
    if arguments["requests"]:
        from agentbus.cli.admin.requests import requests

        return requests(arguments)
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
