"""What a running Redis can do, found out by doing it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import redis

from agentbus.projection import keys
from agentbus.projection.connection import Client, execute, info
from agentbus.projection.errors import redis_errors

MODULE_ARGUMENTS = ("MAXEXPANSIONS", "1000000", "MINPREFIX", "1", "ON_TIMEOUT", "FAIL")
"""Without them a prefix query stops at 200 terms and a slow one answers with what it has so far."""

_STREAM = keys.PROBE_PREFIX + "stream"
_INDEX = keys.PROBE_PREFIX + "index"
_DOCUMENT = keys.PROBE_PREFIX + "document"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`streams_error` and `search_error` are None where the capability is there."""

    engine: str
    version: str
    streams_error: str | None
    search_error: str | None


def probe(client: Client) -> Capabilities:
    """Try every kind of command that the bus needs, on keys that are removed again."""
    server = info(client, "server")
    engine = str(server.get("server_name", "redis"))
    version = str(server.get(f"{engine}_version", server["redis_version"]))
    with redis_errors("be probed"):
        return Capabilities(engine, version, _try_streams(client), _try_search(client))


def set_search_limits(client: Client) -> None:
    """Give a built-in search module the arguments that a loaded one is started with."""
    with redis_errors("set the limits of its search module"):
        for name, value in zip(MODULE_ARGUMENTS[::2], MODULE_ARGUMENTS[1::2], strict=True):
            execute(client, "FT.CONFIG", "SET", name, value)


def _try_streams(client: Client) -> str | None:
    try:
        execute(client, "XADD", _STREAM, "5-0", "field", "value")
        if len(execute(client, "XRANGE", _STREAM, "5-0", "+")) != 1:
            return "XRANGE does not find what XADD wrote"
        execute(client, "XTRIM", _STREAM, "MINID", "6-0")
    except redis.ResponseError as error:
        return str(error)
    finally:
        execute(client, "DEL", _STREAM)
    return None


def _try_search(client: Client) -> str | None:
    prefix = (_INDEX, "ON", "HASH", "PREFIX", 1, _DOCUMENT)
    try:
        execute(client, "FT.CREATE", *prefix, "STOPWORDS", 0, "SCHEMA", "text", "TEXT", "NOSTEM")
        execute(client, "HSET", _DOCUMENT, "text", "found")
        answer = execute(client, "FT.SEARCH", _INDEX, "@text:found", "NOCONTENT")
        if answer[b"total_results"] != 1:
            return "FT.SEARCH does not find what was indexed"
    except redis.ResponseError as error:
        return str(error)
    finally:
        with suppress(redis.ResponseError):  # there is none where FT.CREATE failed
            execute(client, "FT.DROPINDEX", _INDEX)
        execute(client, "DEL", _DOCUMENT)
    return None
