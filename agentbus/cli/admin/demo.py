"""`agentbus-admin demo`: two agents on a bus of their own, whose daemon is killed in the middle.

Prints a transcript and what was proven; exits 1 when something was not. Runs on the main thread.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentbus.cli.entry import EXIT_FAILURE, EXIT_OK, Arguments, complain
from agentbus.cli.text import for_terminal
from agentbus.demo.story import Story
from agentbus.demo.throwaway import ThrowawayBus
from agentbus.demo.transcript import Transcript
from agentbus.errors import BusError

INTRODUCTION = """\
agentbus demo: two agents talk over a durable local message bus.

Everything here is real: each agent is a process with the MCP SDK's stdio client, which starts
`agentbus mcp` as its MCP server; they meet in one daemon with a database and a private Redis.
The bus lives in a temporary folder and leaves your own alone. In front: seconds since the start.
#7 is the bus's seventh message."""


def demo(arguments: Arguments) -> int:
    """Play the story; exit 0 only when everything was proven."""
    print(INTRODUCTION, flush=True)
    transcript = Transcript(lambda line: print(line, flush=True))
    with _ended_in_order(), ThrowawayBus(keep=arguments["--keep"]) as bus:
        try:
            Story(bus, transcript).run()
            ran = bus.ask("status")
        except BusError as error:
            transcript.check("The story could be played to its end", False, error.message)
            ran = {}
    print("\nWhat ran")
    for line in _what_ran(ran):
        print(f"  {for_terminal(line)}")
    if arguments["--keep"]:
        print(f"  kept: {bus.folder} (its daemon has stopped)")
    if not transcript.summary():
        complain("the demo did not prove everything")
        return EXIT_FAILURE
    print('\nAll of it held. Connect your own agents: README.md, "Connect".')
    return EXIT_OK


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Also `timeout` and a closed terminal leave neither process nor folder behind."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _what_ran(status: dict[str, Any]) -> list[str]:
    if not status:
        return ["unknown: the daemon gave no status at the end"]
    versions = status.get("versions") or {}
    redis = status.get("redis") or {}
    engine = redis.get("search_engine", "none")
    missing = redis.get("search_missing")
    return [
        f"agentbus {versions.get('package')}, protocol {versions.get('protocol')}, "
        f"schema {versions.get('schema')}",
        f"Redis: {redis.get('engine')} {redis.get('version')}, {redis.get('executable')}",
        f"search engine: {engine}" + (f" ({missing})" if missing else ""),
        f"search module: {redis.get('search_module') or 'none'}",
    ]
