"""Many messages in a database in little time: committed straight into it, no daemon involved."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from agentbus.clock import SystemClock
from agentbus.config import Config
from agentbus.identity import SessionIdentity
from agentbus.store.changes import BindSession, Done
from agentbus.store.ledger import LedgerStore
from tests.store.bus import Speaker

BATCH = 500


def fill(
    database: Path, config: Config, messages: int, *, conversation: str, channel: str = "general"
) -> None:
    """Sent by Sam in that conversation of the application "test", who reads `general` only."""
    quick = replace(config, sqlite_synchronous="normal")
    database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with closing(LedgerStore(database, quick, SystemClock())) as store:
        identity = SessionIdentity("test", conversation, None)
        (bound,) = store.apply([BindSession("Sam", identity, frozenset())])
        assert isinstance(bound, Done)
        sam = Speaker(bound.result)
        if channel != "general":
            store.apply([sam.make(channel)])
        for first in range(0, messages, BATCH):
            numbers = range(first, min(first + BATCH, messages))
            outcomes = store.apply([sam.send(f"message {n}", channel) for n in numbers])
            assert all(isinstance(outcome, Done) for outcome in outcomes)
