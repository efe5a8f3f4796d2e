"""The life of one `agentbus mcp` process: start, signals, the client's end, exit.

Owns: what is read before anything is served, who may end the process, and the order of leaving.
Never: lets a fault of the daemon end the process (a harness may not start it again), writes to
stdout, logs what a message says. One thread with one event loop; blocking work has its own threads.

Ends with 0 when the client closes its end, the parent process is gone, or at SIGTERM and SIGHUP.
SIGINT ends it only while no call is under way: a person who interrupts a turn in the terminal hits
the whole process group, and the session goes on. The harness that means it sends SIGTERM after it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agentbus.adapter.binding import (
    Binder,
    agent_name,
    checked_capabilities,
    repository_hint,
)
from agentbus.adapter.calls import Calls
from agentbus.adapter.conversation import Profile
from agentbus.adapter.link import Link
from agentbus.config import load_config
from agentbus.errors import BusError
from agentbus.transport.singleton import RuntimePaths, runtime_directory

if TYPE_CHECKING:
    from agentbus.adapter.transport import StdioTransport

EXIT_OK = 0
EXIT_CONFIGURATION = 2

_PARENT_POLL_S = 1.0
"""Where the system cannot tell when the parent ends."""


def run(
    agent: str | None,
    config_path: Path | None,
    session: str | None,
    *,
    capabilities: Sequence[str] = (),
    presence: bool = True,
) -> int:
    """Serve the bus to the MCP client on stdin and stdout; returns the exit code.

    A configuration or an argument that cannot be used is one line on stderr and code 2.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="agentbus: %(message)s")
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its warnings repeat what was received
    parent_pid = os.getppid()
    try:
        load_config(config_path)  # a refused one is said here, before a harness waits for tools
        folder = _folder()
        profile = Profile(
            agent_name(agent, folder),
            repository_hint(folder),
            parent_pid,
            checked_capabilities(capabilities),
            presence,
        )
        binder = Binder(session, os.environ)
        paths = runtime_directory(os.environ, os.getuid())
        asyncio.run(_serve(paths, config_path, profile, binder, parent_pid))
    except BusError as error:
        sys.stderr.write(f"agentbus: {error.message}\n")
        return EXIT_CONFIGURATION
    return EXIT_OK


async def _serve(
    paths: RuntimePaths,
    config_path: Path | None,
    profile: Profile,
    binder: Binder,
    parent_pid: int,
) -> None:
    link = Link(paths, config_path, parent_pid)
    calls = Calls(link, profile, binder)
    link.start()
    await asyncio.sleep(0)  # the connection is on its way, on a thread, while the SDK is loaded

    from agentbus.adapter.mcp_server import make_server
    from agentbus.adapter.transport import open_stdio

    server = make_server(calls)
    try:
        async with open_stdio() as stdio:
            _handle_signals(stdio, calls)
            with _Parent(parent_pid, stdio.stop):
                await server.run(stdio.read, stdio.write, server.create_initialization_options())
        await calls.finish()
    finally:
        link.close()


def _folder() -> Path:
    try:
        return Path.cwd()
    except OSError:  # it was removed under us; the agent then has no folder to be called after
        return Path("/")


def _handle_signals(stdio: StdioTransport, calls: Calls) -> None:
    def interrupted() -> None:
        if not calls.in_flight:
            stdio.stop()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stdio.stop)
    loop.add_signal_handler(signal.SIGHUP, stdio.stop)
    loop.add_signal_handler(signal.SIGINT, interrupted)


class _Parent:
    """Calls `gone` when the parent process has ended. Costs nothing where the kernel tells."""

    def __init__(self, pid: int, gone: Callable[[], None]) -> None:
        self._pid = pid
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        if sys.platform == "linux":
            with suppress(OSError):  # an old kernel, or the process is gone already
                self._fd = os.pidfd_open(self._pid)
        if self._fd is not None and os.getppid() == self._pid:
            self._loop.add_reader(self._fd, self._gone_by_descriptor)
        else:
            self._look()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _gone_by_descriptor(self) -> None:
        assert self._fd is not None
        self._loop.remove_reader(self._fd)
        self._gone()

    def _look(self) -> None:
        if os.getppid() != self._pid:
            self._gone()
        else:
            self._timer = self._loop.call_later(_PARENT_POLL_S, self._look)
