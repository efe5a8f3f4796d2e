"""Bringing a Redis into step with the ledger: decide by its marker, then replay or rebuild.

Knows nothing of SQLite: the caller yields batches of entries. Runs on the projector's thread. A
rebuild that dies halfway leaves no marker, so the next one starts from nothing again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from agentbus.failpoints import reach
from agentbus.ids import BusId, ChannelId, Sequence
from agentbus.projection import keys
from agentbus.projection.connection import Client, Exchange, execute, info
from agentbus.projection.errors import EMPTIED, ProjectionError, redis_errors
from agentbus.projection.launching import Check
from agentbus.projection.search import has_index
from agentbus.projection.streams import Projection, StreamEntry, StreamWriter

Progress: TypeAlias = Callable[[int, int], None]
"""Called after each batch with entries done and in all. What it raises ends the work."""

_FREE_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class UpToDate:
    """Nothing is missing."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Only what was committed after `after` is missing."""

    after: Sequence


@dataclass(frozen=True, slots=True)
class Rebuild:
    """What is there cannot be trusted, because `reason`."""

    reason: str


def needs(
    client: Client,
    bus_id: BusId,
    last_sequence: Sequence,
    replay_from: Sequence,
    *,
    search: bool,
) -> UpToDate | Replay | Rebuild:
    """What must be done until this Redis has all of `bus_id` up to `last_sequence`.

    Before `replay_from` the ledger no longer knows everything that happened. `search`: this Redis
    is the search engine too.
    """
    with redis_errors("read its marker"):
        found_bus_id, found_sequence, found_layout = execute(
            client,
            *("HMGET", keys.MARKER),
            *(keys.MARKER_BUS_ID, keys.MARKER_SEQUENCE, keys.MARKER_LAYOUT),
        )
    if found_bus_id is None or found_sequence is None:
        return Rebuild("Redis is empty or was never filled completely")
    if found_bus_id != bus_id.encode():
        return Rebuild(f"Redis holds another bus ({found_bus_id.decode()})")
    if found_layout != keys.LAYOUT:
        return Rebuild("Redis was filled by another version")
    sequence = Sequence(int(found_sequence))
    if sequence > last_sequence:
        return Rebuild(f"Redis is ahead of the ledger ({sequence} > {last_sequence})")
    if sequence < replay_from:
        return Rebuild(f"Redis may hold memories whose end was purged ({sequence} < {replay_from})")
    if search and not has_index(client):
        return Rebuild("Redis has lost its search index")
    return UpToDate() if sequence == last_sequence else Replay(after=sequence)


def check_filled(client: Client, bus_id: BusId) -> None:
    """Raises ProjectionError when this Redis is not, or no longer, the projection of `bus_id`."""
    with redis_errors("read its marker"):
        found = execute(client, "HGET", keys.MARKER, keys.MARKER_BUS_ID)
    if found != bus_id.encode():
        raise ProjectionError(EMPTIED)


def clear(client: Client, go_on: Check) -> None:
    """Remove everything, the search index included. Only ever call it on our own instance.

    Memory that is still held would count against the refill, so it waits until that is free:
    seconds for a full dataset of the largest budget, in commands that each end at once.
    """
    with redis_errors("clear itself"):
        execute(client, "FLUSHALL", "ASYNC")
    while int(info(client, "memory")["lazyfree_pending_objects"]):
        go_on()
        time.sleep(_FREE_POLL_S)


def make_up_removals(writer: StreamWriter, removed: Mapping[ChannelId, Sequence]) -> None:
    """Remove what the ledger has removed and this Redis still has.

    A removal has no sequence: the mark does not tell whether it got here.
    """
    known = writer.removed()
    for channel_id, removed_through in removed.items():
        if removed_through > known.get(channel_id, 0):
            writer.remove_found(channel_id, removed_through)


def replay(
    writer: StreamWriter,
    memories: Iterator[list[Projection]],
    source: Iterator[list[StreamEntry]],
    through: Sequence,
    removed: Mapping[ChannelId, Sequence],
    total: int,
    progress: Progress,
) -> None:
    """Append what a marked Redis misses. `source` yields it in commit order.

    `memories` yields what became of memories since: all of it is applied before the mark moves,
    since it is known as it is now and not step by step. `removed` has the ledger's highest removed
    sequence of every channel: a removal that was committed but not projected is made up for.
    """
    for changes in memories:
        writer.restate(changes)
    done = 0
    for batch in source:
        if batch:
            writer.project(batch, batch[-1].sequence)
            done += len(batch)
            reach("during_replay")
            progress(done, total)
    make_up_removals(writer, removed)
    writer.project([], through)


def rebuild(
    writer: StreamWriter,
    bus_id: BusId,
    source: Iterator[list[Projection] | list[StreamEntry]],
    through: Sequence,
    removed: Mapping[ChannelId, Sequence],
    total: int,
    progress: Progress,
) -> None:
    """Fill a cleared Redis. `source` yields each channel in order, the most wanted first.

    The marker is set last: until then this Redis counts as never filled. Whoever empties it
    meanwhile takes the marker's draft along, and then the marker cannot be set.
    """
    writer.begin_mark(bus_id, through)
    writer.set_removed(removed)
    done = 0
    for size in _loaded(writer, source):
        done += size
        reach("during_rebuild")
        progress(done, total)
    reach("before_mark")
    writer.mark()


def _loaded(
    writer: StreamWriter, source: Iterator[list[Projection] | list[StreamEntry]]
) -> Iterator[int]:
    """Load each batch, and yield its size when Redis has it.

    The next one is made while Redis takes it: either costs about the same.
    """
    loading: Exchange | None = None
    size = 0
    try:
        for batch in source:
            if loading is not None:
                finishing, loading = loading, None
                writer.finish_load(finishing)
                yield size
            loading, size = writer.begin_load(batch), len(batch)
        if loading is not None:
            finishing, loading = loading, None
            writer.finish_load(finishing)
            yield size
    finally:
        if loading is not None:
            loading.abandon()
