"""The bus's locks, held by a command that changes the database while no daemon runs.

Owns the refusal when somebody else has them. With both locks held no daemon can start meanwhile.
Runs on the main thread of a command.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from agentbus.cli.running import runtime_paths
from agentbus.config import Config
from agentbus.errors import UnavailableError
from agentbus.transport.singleton import DaemonLock, holder_pid, prepare_directory


@contextmanager
def hold_bus(config: Config, what_was_not_done: str) -> Iterator[None]:
    """Hold the locks of the runtime folder and of the data folder, which is made if need be.

    Raises UnavailableError when a process has one of them.
    """
    paths = runtime_paths()
    prepare_directory(paths, os.getuid())
    config.data_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as held:
        for path in (paths.lock, config.data_directory / "lock"):
            lock = DaemonLock(path)
            if not lock.acquire():
                raise UnavailableError(
                    f"process {holder_pid(path)} holds {path}, so {what_was_not_done}; "
                    "run agentbus stop, then try again"
                )
            held.callback(lock.release)
        yield
