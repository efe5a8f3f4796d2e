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

Ask: TypeAlias = Callable[..., Any]
"""Sends one command, its words as arguments, and returns the reply; raises redis.RedisError."""

Command: TypeAlias = tuple[str | bytes | int, ...]
_pack: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]  # stub: 1-tuple
_MULTI, _EXEC = _pack(("MULTI",)), _pack(("EXEC",))


def connect(
    socket_path: Path,
    timeout_s: float = COMMAND_TIMEOUT_SECONDS,
    check: Callable[[Ask], None] | None = None,
) -> Client:
    """A client for one thread. Connects with its first command, and anew where it finds the
    connection ended: `check` asks who is there each time, and refuses by raising a RedisError."""

    def begin(connection: AbstractConnection) -> None:
        def ask(*command: str) -> Any:
            connection.send_command(*command)  # type: ignore[no-untyped-call]
            return connection.read_response()

        connection.on_connect()  # type: ignore[no-untyped-call]
        if check is not None:
            check(ask)

    return redis.Redis(
        unix_socket_path=str(socket_path),
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        max_connections=1,
        redis_connect_func=begin,  # type: ignore[arg-type]  # stub: without the connection
    )


def execute(client: Client, *command: str | bytes | int) -> Any:
    """Run one command; for those that redis-py has no typed method for."""
    return client.execute_command(*command)  # type: ignore[no-untyped-call]


class Exchange:
    """Commands on their way in one round trip: sent, and their replies not read yet.

    Until `replies` or `abandon` the client does nothing else. What redis-py's pipelines do, at a
    third of their cost; the projector pays it once per message.
    """

    __slots__ = ("_atomic", "_commands", "_connection", "_pool")

    def __init__(self, client: Client, commands: Sequence[Command], *, atomic: bool) -> None:
        """Send them. `atomic`: as one MULTI."""
        packed = [_pack(command) for command in commands]
        if atomic:
            packed = [_MULTI, *packed, _EXEC]
        self._atomic = atomic
        self._commands = len(packed)
        self._pool = client.connection_pool
        self._connection = self._pool.get_connection()
        try:
            self._connection.send_packed_command([b"".join(packed)])  # type: ignore[no-untyped-call]
        except BaseException:
            self._pool.release(self._connection)
            raise

    def replies(self) -> list[Any]:
        """The raw reply of each command, or the error that it was answered.

        Of a MULTI either every command was run or this raises.
        """
        try:
            replies = [_read_reply(self._connection) for _ in range(self._commands)]
        finally:
            self._pool.release(self._connection)
        if not self._atomic:
            return replies
        ran = replies[-1]
        if isinstance(ran, redis.ResponseError):  # refused while queued: nothing was run
            raise next(reply for reply in replies if isinstance(reply, redis.ResponseError))
        return list(ran)

    def abandon(self) -> None:
        """Nobody reads the replies: the connection is of no use any more."""
        self._connection.disconnect()  # type: ignore[no-untyped-call]
        self._pool.release(self._connection)


def execute_many(client: Client, commands: Sequence[Command], *, atomic: bool) -> list[Any]:
    """Run commands in one round trip; see `Exchange`."""
    return Exchange(client, commands, atomic=atomic).replies()


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
    """What the Redis budget is compared with: data and indexes, without process overhead.

    Redis counts buffers of clients that have just been freed as overhead for up to a second. Where
    they are more than all data, its own `used_memory_dataset` wraps around to 16 EiB.
    """
    memory = info(client, "memory")
    return max(0, int(memory["used_memory"]) - int(memory["used_memory_overhead"]))
