"""Two instances are served, one answered by an agent and one by a command, and asked over talk.

    make demo                                                # makes .venv
    .venv/bin/python examples/talk_delegate.py               # on your own bus
    AGENTBUS_RUNTIME_DIR=/tmp/try .venv/bin/python examples/talk_delegate.py --config try.json

The configuration has to say who may talk:
{"talk_peers": ["reviewer", "example-agent", "example-script"]}. The last command uses a bus of its
own; try.json has `"data_directory": "/tmp/try/data"` as well.

The agent is an MCP client, as in `peer_request.py`; what it does between its calls is what a model
does. The command is this file again. In its place would be a script that gives the prompt on its
stdin to a linter and prints what that says. Its exit code 11 means "over my own budget".
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from mcp import Client, StdioServerParameters

from agentbus.errors import BusError
from agentbus.talk import TalkClient, TalkError

AGENT, SCRIPT = "example-agent", "example-script"
EXIT_BUDGET_EXHAUSTED = 11
BUDGET_CHARACTERS = 200


def answer() -> None:
    """The command: a question on stdin, its answer on stdout."""
    prompt = sys.stdin.read()
    if len(prompt) > BUDGET_CHARACTERS:
        print(f"{len(prompt)} characters are more than I can pay for", file=sys.stderr)
        sys.exit(EXIT_BUDGET_EXHAUSTED)
    print(f"{len(prompt.split())} words, all of them fine.")


async def peer(agent: Client, op: str, **args: Any) -> dict[str, Any]:
    """One operation of the tool `peer`; its result, or an exception with the bus's own words."""
    result = await agent.call_tool("peer", {"op": op, "args": args})
    content: dict[str, Any] = result.structured_content or {}
    if result.is_error:
        raise SystemExit(f"peer {op}: {content['error']['message']}")
    return content


async def work(agent: Client) -> None:
    """The agent claims the question as it claims any request, and replies once."""
    claimed = await peer(agent, "wait", timeout=20)
    delivery = claimed["delivery"]
    if delivery is None:
        raise SystemExit(f"nothing came for {AGENT}")
    request = delivery["envelope"]
    print(f"{AGENT} claimed what {request['from']['agent']} asks: {request['body']}")
    await peer(
        agent,
        "reply",
        delivery_id=delivery["delivery_id"],
        body="I have checked it twice.",
        idempotency_key=str(uuid4()),
    )


@contextmanager
def served(instance: str, options: list[str], *answering: str) -> Iterator[None]:
    """Within this the instance can be asked."""
    agentbus = [sys.executable, "-m", "agentbus", "talk", "serve", "--instance", instance]
    process = subprocess.Popen([*agentbus, *options, *answering], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = process.stdout.readline()
        if not told:
            raise SystemExit(f"{instance} could not be served; see above")
        print(told.strip())
        yield
    finally:
        process.terminate()
        process.communicate()


def ask(reviewer: TalkClient, instance: str, prompt: str) -> None:
    """Blocks until there is an answer, or the reason why there is none."""
    try:
        reply = reviewer.ask(instance, prompt)
        print(f"{reply.from_instance}: {reply.text.strip()}")
    except TalkError as error:
        again = "try again" if error.retryable else "it would be the same again"
        print(f"{error.code}: {error.message} ({again})")


async def main(options: list[str]) -> None:
    config_path = Path(options[1]) if options[:1] == ["--config"] else None
    script = (sys.executable, str(Path(__file__).resolve()), "answer")
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "agentbus", "mcp", "--agent", AGENT, *options],
        env={"AGENTBUS_RUNTIME_DIR": os.environ.get("AGENTBUS_RUNTIME_DIR", "")},
    )
    with (
        served(SCRIPT, options, "--exec", "--", *script),
        served(AGENT, options, "--peer"),
    ):
        reviewer = TalkClient("reviewer", config_path=config_path)
        ask(reviewer, SCRIPT, "Please verify this answer.")
        ask(reviewer, SCRIPT, "Please verify this. " * 50)
        async with Client(server) as agent:
            await peer(agent, "describe", description="Verifies answers.")
            asking = asyncio.to_thread(ask, reviewer, AGENT, "Is 42 right?")
            await asyncio.gather(work(agent), asking)


if __name__ == "__main__":
    if sys.argv[1:] == ["answer"]:
        answer()
    else:
        try:
            asyncio.run(main(sys.argv[1:]))
        except BusError as error:
            raise SystemExit(error.message) from None
