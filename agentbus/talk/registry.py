"""The daemon's registry of served instances, as a caller of one asks it.

Owns no connection between two questions. Never starts a daemon: without one nothing is served.
Blocks its caller.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

from agentbus.encoding import decode_strict
from agentbus.errors import NotFoundError, ValidationError
from agentbus.limits import KIB
from agentbus.processes import ancestors, is_running
from agentbus.talk.exchange import (
    ConnectionFailedError,
    MalformedResponseError,
    Target,
    exchange,
)
from agentbus.transport.client import Client
from agentbus.transport.singleton import RuntimePaths, runtime_directory

LOOPBACK: Final = "127.0.0.1"
ANSWER_S: Final = 5.0
PROBE_S: Final = 0.5
HEALTH_BYTES: Final = 4 * KIB


@dataclass(frozen=True, slots=True)
class Served:
    """Where an instance is. `session` proves to it that the caller may use its own name."""

    instance: str
    port: int
    pid: int
    started: str
    kind: str
    updated_at: str = ""
    secret: str | None = None
    session: str | None = None

    @property
    def target(self) -> Target:
        return Target(LOOPBACK, self.port)


class Registry(Protocol):
    """Where a client looks an instance up."""

    def find(self, instance: str, caller: str, within_s: float) -> Served | None:
        """None when it is not served. Raises BusError when that cannot be told in that time."""
        ...

    def forget(self, served: Served) -> None:
        """It does not answer as what it says it is."""
        ...


class DaemonRegistry:
    """Asks the daemon of this user."""

    def __init__(self, paths: RuntimePaths | None = None) -> None:
        self._paths = paths or runtime_directory(os.environ, os.getuid())

    def find(self, instance: str, caller: str, within_s: float = ANSWER_S) -> Served | None:
        pids = [os.getpid(), *ancestors(os.getpid())]
        params = {"instance": instance, "caller": caller, "pids": pids}
        try:
            return Served(instance=instance, **self._ask("talk_find", params, within_s))
        except NotFoundError:
            return None

    def forget(self, served: Served) -> None:
        self._ask("talk_gone", {"instance": served.instance, "pid": served.pid})

    def all(self) -> list[Served]:
        """Every instance that is served, without secrets."""
        return [Served(**entry) for entry in self._ask("talk_list", {})["instances"]]

    def _ask(self, method: str, params: dict[str, Any], within_s: float = ANSWER_S) -> Any:
        with Client.connect(self._paths.socket, min(ANSWER_S, within_s)) as daemon:
            return daemon.request(method, params, min(ANSWER_S, within_s))


def is_there(served: Served, deadline_s: float) -> bool:
    """Whether that very process runs, and its port answers for the instance.

    A refusal in its name is an answer too: it is full, or stops, and will say so to a question.
    Raises TimeoutError when it has not answered by `deadline_s` (monotonic).
    """
    if not is_running(served.pid, served.started):
        return False
    try:
        body = exchange(
            served.target,
            "GET",
            "/api/health",
            headers={},
            body=b"",
            deadline_s=deadline_s,
            response_bytes=HEALTH_BYTES,
        )
        health = decode_strict(body)
    except (ConnectionFailedError, MalformedResponseError, ValidationError):
        return False
    if not isinstance(health, dict):
        return False
    if health.get("success") is False:
        return health.get("fromInstance") == served.instance
    return health.get("kind") == served.kind and health.get("instance") == served.instance


def answers_probe(served: Served) -> bool:
    """`is_there`, for whoever tidies up: silence for half a second counts as absence."""
    try:
        return is_there(served, time.monotonic() + PROBE_S)
    except TimeoutError:
        return False
