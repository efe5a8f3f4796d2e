"""The configuration, the runtime folder, the daemon and what it says of its Redis.

Owns the judgement of what is seen; never starts or ends anything, and never waits longer than the
time limits of `agentbus.cli.running`. Main thread.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agentbus import __version__
from agentbus.cli.admin.status import configuration_notes
from agentbus.cli.doctoring.faults import (
    CONFIGURATION_REFUSED,
    DAEMON_CONFIGURATION,
    DAEMON_NOT_READY,
    DAEMON_SILENT,
    DAEMON_VERSION,
    RECEIVE_WAIT_LONG,
    REDIS_UNHEALTHY,
    RUNTIME_FOLDER_UNSAFE,
    SEARCH_MISSING,
    SOCKET_UNSAFE,
    Finding,
    fine,
)
from agentbus.cli.running import find_daemon
from agentbus.config import Config, ConfigError, load_config
from agentbus.errors import BusError, NotFoundError
from agentbus.limits import PROTOCOL_VERSION
from agentbus.transport.singleton import RuntimePaths, check_directory, holder_pid

LONGEST_WAIT_S: Final = 240
"""Codex gives a tool call up after 300 s; the answer needs some of that."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """What there is of a daemon: its status, or that it holds its lock and does not answer."""

    status: dict[str, Any] | None = None
    silence: str | None = None


def examine_configuration(path: Path | None) -> tuple[Config | None, list[Finding]]:
    """The configuration if it can be used. `path`: None for the default file."""
    try:
        config = load_config(path)
    except ConfigError as error:
        return None, [CONFIGURATION_REFUSED.found("configuration", error.message)]
    given = sum(source == "file" for source in config.source.values())
    what = f"sets {given}, all others have their default" if config.path.exists() else "no file"
    found = [fine("configuration", f"{config.path}: {what}")]
    wait_s = config.recv_max_wait_seconds
    if wait_s > LONGEST_WAIT_S:
        found.append(
            RECEIVE_WAIT_LONG.found("longest receive", f"recv_max_wait_seconds is {wait_s}")
        )
    else:
        found.append(fine("longest receive", f"{wait_s} s"))
    return config, found


def examine_runtime(paths: RuntimePaths, uid: int) -> list[Finding]:
    """The folder that everybody meets in, and the socket in it."""
    try:
        check_directory(paths, uid)
    except NotFoundError as error:
        return [fine("runtime folder", f"{error.message} yet; the first adapter makes it")]
    except BusError as error:
        return [RUNTIME_FOLDER_UNSAFE.found("runtime folder", error.message)]
    folder = fine("runtime folder", f"{paths.directory}: mode 0700, of user {uid}")
    return [folder, _socket(paths.socket, uid)]


def _socket(path: Path, uid: int) -> Finding:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return fine("socket", "none, as no daemon listens")
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISSOCK(found.st_mode):
        wrong = "is not a socket"
    elif found.st_uid != uid:
        wrong = f"belongs to user {found.st_uid}, not to {uid}"
    elif mode != 0o600:
        wrong = f"has mode {mode:04o}, not 0600"
    else:
        return fine("socket", f"{path}: mode 0600")
    return SOCKET_UNSAFE.found("socket", f"{path} {wrong}", PATH=path)


def ask_daemon() -> Daemon:
    """The running daemon's status, within the time limits of every command."""
    try:
        daemon = find_daemon()
        if daemon is None:
            return Daemon()
        with daemon:
            return Daemon(status=daemon.ask("status"))
    except BusError as error:
        return Daemon(silence=error.message)


def examine_daemon(daemon: Daemon, paths: RuntimePaths) -> list[Finding]:
    """Whether it runs, answers, is ready, and is of this version."""
    if daemon.silence is not None:
        pid = holder_pid(paths.lock)
        return [DAEMON_SILENT.found("daemon", daemon.silence, PID=pid or "its process id")]
    status = daemon.status
    if status is None:
        return [fine("daemon", "none runs; the next tool call starts one")]
    who = f"process {status.get('pid')}, started {status.get('started_at')}"
    state = status.get("state")
    if state == "ready":
        found = [fine("daemon", f"ready: {who}")]
    else:
        busy = status.get("work") or "no more is known"
        found = [DAEMON_NOT_READY.found("daemon", f"{state} ({busy}): {who}")]
    return [*found, _version(status)]


def _version(status: dict[str, Any]) -> Finding:
    versions = _mapping(status.get("versions"))
    package, protocol = versions.get("package"), versions.get("protocol")
    seen = f"agentbus {package}, protocol {protocol}"
    if (package, protocol) == (__version__, PROTOCOL_VERSION):
        return fine("daemon version", seen)
    here = f"this is agentbus {__version__}, protocol {PROTOCOL_VERSION}"
    return DAEMON_VERSION.found("daemon version", f"{seen}; {here}")


def examine_in_use(status: dict[str, Any], config: Config) -> Finding:
    """Whether the daemon uses what the file says now."""
    notes = configuration_notes(_mapping(status.get("config")), str(config.path))
    if notes:
        return DAEMON_CONFIGURATION.found("daemon configuration", "; ".join(notes))
    return fine("daemon configuration", f"as {config.path} says")


def examine_redis(status: dict[str, Any]) -> list[Finding]:
    """Whether it answers, and what searches."""
    redis = _mapping(status.get("redis"))
    if not redis:
        return [REDIS_UNHEALTHY.found("Redis", "none runs yet")]
    who = f"{redis.get('engine')} {redis.get('version')}, process {redis.get('pid')}"
    if redis.get("healthy") is True:
        found = [fine("Redis", f"{who}, {redis.get('executable')}")]
    else:
        found = [REDIS_UNHEALTHY.found("Redis", f"{who} does not answer")]
    wanted = _mapping(_mapping(status.get("config")).get("values")).get("search_engine")
    if redis.get("search_engine") == "redis":
        found.append(fine("search", f"Redis, module {redis.get('search_module')}"))
    elif wanted == "sqlite":
        found.append(fine("search", "SQLite, as the configuration says"))
    else:
        found.append(SEARCH_MISSING.found("search", f"SQLite: {redis.get('search_missing')}"))
    return found


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
