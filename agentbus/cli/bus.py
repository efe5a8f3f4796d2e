"""`agentbus`: the command line that harnesses and people use.

Owns the usage text and the dispatch. Imports a command's modules only when it runs, so that
`status` and `stop` are instant and never load the MCP SDK, the store or Redis. Main thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentbus.cli.entry import Arguments, parse, run

USAGE = """agentbus: a durable local message bus for coding agents, spoken over MCP.

Usage:
  agentbus mcp [--agent NAME] [--config PATH] [--session ID] [--capability NAME]... [--no-presence]
  agentbus daemon [--config PATH] [--detach]
  agentbus status [--config PATH] [--json]
  agentbus stop [--config PATH] [--json]
  agentbus reset [--config PATH] [--json] [--yes]
  agentbus wait [--channel NAME]... [--timeout SECONDS] [--session ID] [--hook]
  agentbus hook EVENT [--harness NAME]
  agentbus job run [--sink SINK] [--prefix PREFIX] [--job ID] [--ndjson] [--] COMMAND [ARGUMENT]...
  agentbus job tail ID [--broker URL] [--from SEQ]
  agentbus job list [--open] [--limit N] [--json]
  agentbus job cancel ID [--broker URL]
  agentbus job receive [--port N] [--host HOST] [--job ID]
  agentbus talk serve --instance NAME [--port N] [--kind K] [--secret-file PATH] [--config PATH]
                      (--peer | --exec [--] ARGV...)
  agentbus talk send --to NAME [--from NAME] [--depth N] [--url URL] [--secret-file PATH]
                     [--key KEY] [--config PATH] [--json] [--] PROMPT
  agentbus talk result [--json] MESSAGE_ID
  agentbus talk list [--json]
  agentbus (-h | --help)
  agentbus --version

Commands:
  mcp      Be the MCP server of one conversation, on stdin and stdout; a harness starts this.
  daemon   Run the daemon here, logging to stderr; adapters start one by themselves.
  status   Tell how the bus is, in every state.
  stop     End the daemon in order; the next tool call starts one again.
  reset    Delete everything on the bus; asks first.
  wait     Block until a message waits for a conversation; moves no cursor.
  hook     What a harness runs at its events; see agentbus-admin install.
  job run      Run a tool that emits events, show them, print its result; Ctrl-C cancels it.
  job tail     Print the events of a job, one a line, from the first one to the end.
  job list     The jobs of the bus, the newest first.
  job cancel   Ask a job to end.
  job receive  Take callbacks and print their events, one a line; with --job to the end of that
               job. AGENTBUS_CALLBACK_SECRET is their secret.
  talk     Let an agent or a command answer other instances, or ask them; see docs/talk.md.

Options:
  --agent NAME    The agent's persistent name; the name of the current folder if left out.
  --config PATH   Configuration file; ~/.config/agentbus/config.json if left out.
  --session ID    Conversation id, for harnesses that do not tell theirs.
  --capability NAME  What this agent can do, for its entry in the directory; may be repeated.
  --no-presence   Do not show other agents that this one is there.
  --detach        Start the daemon in the background and return when it answers.
  --json          One JSON document on stdout instead of text.
  --yes           Do not ask.
  --channel NAME  Wait for this channel only; may be given more than once.
  --timeout SECONDS  Give up after so long; an hour if left out.
  --hook          Answer as a Stop hook of Claude Code: exit 2 begins a turn.
  --harness NAME  claude-code, codex or gemini [default: claude-code].
  --sink SINK     How the tool's events come back: events (on its stdout), file, file:PATH,
                  callback, agentbus:, redis://..., nats://... [default: events].
  --prefix PREFIX  Of the tool's environment variables [default: AGENTBUS_].
  --job ID        The job's id; a random one if left out.
  --ndjson        Print every event on stdout, one a line, instead of the result.
  --broker URL    Where the job's events are: agentbus:, redis://..., nats://...
                  [default: agentbus:].
  --open          Only jobs that have not ended.
  --limit N       At most so many, 1 to 1000.
  --from FROM     Of job tail: the first event to print, 0 if left out. Of talk send: who asks, the
                  name of the current folder if left out.
  --port N        Where to listen; any free port if left out.
  --host HOST     The address to listen on [default: 127.0.0.1].
  --instance NAME  The name to answer under.
  --exec          Run this command for each question: prompt on stdin, answer on stdout.
  --kind K        What health says that we are; agentbus if left out.
  --secret-file PATH  A secret that the daemon is not told; the other side needs the same file.
  --to NAME       Whom to ask.
  --depth N       How many delegations led to this question; 0 if left out.
  --url URL       Where to ask, for a server that this user's daemon does not know.
  --key KEY       A repeat with the same key gets the first answer.
  -h --help       Show this.
  --version       Show the version.

Exit codes: 0 done; 1 failed; 2 wrong usage or configuration; 3 no daemon is running;
of daemon: 65 the database cannot be used; 75 another daemon is running. Of wait: 0 woken; 1 time is
up; 2 error, and with --hook the wake; 3 replaced by a newer wait of the same session; 4 the harness
process is gone. Of job: by the terminal event, 0 succeeded, 2 usage, 3 blocked_url, 4 extraction,
5 formatting, 1 general or lost; for a code of the tool's own, what its process exited with.
Of talk send and result: 0 answered; 1 not answered; 75 not answered, try again.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `agentbus`."""
    return run(lambda: _dispatch(parse(USAGE, argv)))


def _dispatch(arguments: Arguments) -> int:
    if arguments["mcp"]:
        return _mcp(arguments)
    if arguments["daemon"]:
        from agentbus.cli.daemon import daemon

        return daemon(arguments)
    if arguments["status"]:
        from agentbus.cli.admin.status import status

        return status(arguments)
    if arguments["stop"]:
        from agentbus.cli.admin.stop import stop

        return stop(arguments)
    if arguments["wait"]:
        from agentbus.cli.wait import wait

        return wait(arguments)
    if arguments["job"]:
        from agentbus.cli.job import job

        return job(arguments)
    if arguments["hook"]:
        from agentbus.cli.hook import hook

        return hook(arguments)
    if arguments["talk"]:
        from agentbus.cli.talk import talk

        return talk(arguments)
    from agentbus.cli.admin.reset import reset

    return reset(arguments)


def _mcp(arguments: Arguments) -> int:
    from agentbus.adapter.server import run as serve

    config_path = None if arguments["--config"] is None else Path(arguments["--config"])
    return serve(
        arguments["--agent"],
        config_path,
        arguments["--session"],
        capabilities=arguments["--capability"],
        presence=not arguments["--no-presence"],
    )
