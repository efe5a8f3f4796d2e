"""A talk server on a real port, in a thread of the test, with a handler of the test's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from agentbus.clock import SystemClock
from agentbus.encoding import encode
from agentbus.talk.handler import Answered, Delegation, Handler, NotAnswered
from agentbus.talk.http_guard import Patience
from agentbus.talk.peers import read_peers
from agentbus.talk.replays import Replays
from agentbus.talk.server import TalkServer, TalkSettings
from agentbus.talk.serving import http_server, listen
from tests.talk.raw_http import SECRET

INSTANCE = "worker"
PATIENT = Patience(answer_s=60.0)


@dataclass
class ScriptedHandler:
    """Answers with whatever `script` makes of a question, also with what no handler may say."""

    script: Callable[[Delegation], Awaitable[Any]]
    asked: list[Delegation] = field(default_factory=list)
    knows_repeats: bool = False

    async def answer(self, delegation: Delegation) -> Answered | NotAnswered:
        self.asked.append(delegation)
        said: Answered | NotAnswered = await self.script(delegation)
        return said

    def stop(self) -> None:
        return None

    def close(self) -> None:
        return None


async def echo(delegation: Delegation) -> Answered:
    return Answered(f"heard: {delegation.prompt}")


@dataclass
class NamesInUse:
    """Plays the daemon: `held` names may be used with the proof that belongs to them; who works at
    a depth asks at the one of `depths`."""

    held: dict[str, str] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)
    trouble: Exception | None = None

    async def depth_of(self, instance: str, session: str | None) -> int | None:
        if self.trouble is not None:
            raise self.trouble
        if instance in self.held and self.held[instance] != session:
            return None
        return self.depths.get(instance, 0)


class RunningServer:
    """What a test sees of it."""

    def __init__(self, port: int, config_path: Path, callers: NamesInUse, http: uvicorn.Server):
        self.port = port
        self.config_path = config_path
        self.callers = callers
        self.http = http

    def set_peers(self, peers: object) -> None:
        """Write the configuration file anew."""
        self.config_path.write_bytes(encode({"talk_peers": peers}))

    @property
    def connections(self) -> int:
        return len(self.http.server_state.connections)


@contextmanager
def running_server(
    folder: Path,
    handler: Handler | None = None,
    *,
    patience: Patience = PATIENT,
    timeout_s: float = 30.0,
    kind: str = "agentbus",
    instance: str = INSTANCE,
) -> Iterator[RunningServer]:
    """With everybody as a peer, until the test says otherwise."""
    config_path = folder / f"{instance}.json"
    callers = NamesInUse()
    settings = TalkSettings(instance, SECRET, kind, 3, timeout_s, lambda: read_peers(config_path))
    server = TalkServer(
        settings, handler or ScriptedHandler(echo), callers, Replays(3600.0, SystemClock())
    )
    http = http_server(server, instance, patience)
    with listen(0) as listener:
        running = RunningServer(listener.getsockname()[1], config_path, callers, http)
        running.set_peers("*")
        thread = threading.Thread(
            target=lambda: asyncio.run(http.serve(sockets=[listener])), name="talk server"
        )
        thread.start()
        try:
            yield running
        finally:
            http.should_exit = True
            thread.join(20.0)
            assert not thread.is_alive()
