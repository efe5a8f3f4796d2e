"""Connections to the private Redis, and what it says about itself.

A client is used by one thread. It never retries and never waits longer than its timeout, because a
Redis that hangs must become an error that the projector can act on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

from agentbus.projection.errors import redis_errors

COMMAND_TIMEOUT_SECONDS = 2.0
"""Far beyond any command that is sent, far below the patience of whoever waits."""

Client: TypeAlias = redis.Redis
"""One connection, answers as bytes. Made by `connect`, ended with `close()`."""

Command: TypeAlias = tuple[str | bytes | int, ...]
_pack: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]  # stub: 1-tuple
_MULTI, _EXEC = _pack(("MULTI",)), _pack(("EXEC",))


def connect(socket_path: Path, timeout_s: float = COMMAND_TIMEOUT_SECONDS) -> Client:
    """A client for one thread. Connects with its first command."""
    return redis.Redis(
        unix_socket_path=str(socket_path),
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        max_connections=1,
    )


def execute(client: Client, *command: str | bytes | int) -> Any:
    """Run one command; for those that redis-py has no typed method for."""
    return client.execute_command(*command)  # type: ignore[no-untyped-call]


def execute_many(client: Client, commands: Sequence[Command], *, atomic: bool) -> list[Any]:
    """Run commands in one round trip; the raw reply of each, or the error that it was answered.

    `atomic`: as one MULTI, of which either every command was run or this raises. What redis-py's
    pipelines do, at a third of their cost; the projector pays it once per message.
    """
    packed = [_pack(command) for command in commands]
    if atomic:
        packed = [_MULTI, *packed, _EXEC]
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        connection.send_packed_command([b"".join(packed)])  # type: ignore[no-untyped-call]
        replies = [_read_reply(connection) for _ in packed]
    finally:
        pool.release(connection)
    if not atomic:
        return replies
    ran = replies[-1]
    if isinstance(ran, redis.ResponseError):  # refused while queued: nothing was run
        raise next(reply for reply in replies if isinstance(reply, redis.ResponseError))
    return list(ran)


def _read_reply(connection: AbstractConnection) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def info(client: Client, section: str) -> dict[str, Any]:
    """One section of INFO."""
    with redis_errors(f"report its {section}"):
        return dict(client.info(section))


def dataset_bytes(client: Client) -> int:
    """What the Redis budget is compared with: data and indexes, without process overhead."""
    return int(info(client, "memory")["used_memory_dataset"])
