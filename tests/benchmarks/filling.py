"""A database with many messages, made by the ledger itself, without a daemon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

from agentbus.clock import SystemClock
from agentbus.config import load_config
from agentbus.identity import Attachment, SenderBinding, SessionIdentity
from agentbus.protocol.operations import CreateChannel, Send
from agentbus.rules.receipts import fingerprint
from agentbus.store.changes import BindSession, Done, MakeChannel, SendMessage
from agentbus.store.ledger import LedgerStore
from tests.benchmarks.content import contents

CHANNELS = 10
AGENTS = 10
BATCH = 500


def fill(database: Path, messages: int, *, channels: int = CHANNELS) -> None:
    """Make the database of a bus that has seen so many, the same in every run."""
    config = load_config(database.parent / "no-config.json")
    with closing(LedgerStore(database, config, SystemClock())) as store:
        speakers = []
        for number in range(AGENTS):
            identity = SessionIdentity("test", f"conversation {number}", None)
            (done,) = store.apply([BindSession(f"agent{number}", identity, frozenset())])
            assert isinstance(done, Done)
            bound = done.result
            sender = SenderBinding(
                agent=bound.agent,
                agent_id=bound.agent_id,
                session_id=bound.session_id,
                application=bound.identity.application,
                child=None,
                display_name=bound.display_name,
                repository=None,
            )
            speakers.append((Attachment(bound.session_id, bound.generation), sender))
        attachment, _ = speakers[0]
        store.apply(
            [MakeChannel(CreateChannel(f"channel{n}"), attachment) for n in range(channels)]
        )
        sends = _sends(speakers, messages, channels)
        while batch := list(islice(sends, BATCH)):
            assert all(isinstance(outcome, Done) for outcome in store.apply(batch))
            store.attend_to_log()


def _sends(
    speakers: list[tuple[Attachment, SenderBinding]], messages: int, channels: int
) -> Iterator[SendMessage]:
    texts = contents()
    for number in range(messages):
        attachment, sender = speakers[number % AGENTS]
        operation = Send(
            f"channel{number * 7 % channels}",
            f"{texts[number % len(texts)]} job{number} callWorker{number % 1000}",
            tags=(f"tag{number % 100}",),
        )
        yield SendMessage(
            operation, f"op-{number}", fingerprint(operation), sender, attachment, rate_ok=True
        )
