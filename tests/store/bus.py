"""A ledger on a real file, and the changes that tests put into it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from agentbus.config import Config, load_config
from agentbus.errors import BusError
from agentbus.identity import Attachment, SenderBinding, SessionIdentity
from agentbus.protocol.operations import (
    CreateChannel,
    DeleteMemory,
    EditMemory,
    Send,
    Subscribe,
    Unsubscribe,
)
from agentbus.rules.receipts import fingerprint
from agentbus.store.changes import (
    BindSession,
    Change,
    CloseSubscription,
    Done,
    MakeChannel,
    OpenSubscription,
    PruneResult,
    PruneSlice,
    Refused,
    RemoveMemory,
    ReviseMemory,
    SendMessage,
    SessionBound,
)
from agentbus.store.ledger import LedgerStore
from agentbus.store.peer.reading import PeerReader
from tests.clock import FakeClock


def config(folder: Path, **settings: Any) -> Config:
    return replace(load_config(folder / "no-config.json"), **settings)


_OPERATION_IDS = count(1)


class Speaker:
    """An attached session that makes changes."""

    def __init__(self, bound: SessionBound) -> None:
        self.bound = bound
        self.session_id = bound.session_id
        self.attachment = Attachment(bound.session_id, bound.generation)
        self.sender = SenderBinding(
            agent=bound.agent,
            agent_id=bound.agent_id,
            session_id=bound.session_id,
            application=bound.identity.application,
            child=bound.identity.child,
            display_name=bound.display_name,
            repository=bound.repository,
        )

    def send(
        self,
        content: str = "hello",
        channel: str = "general",
        *,
        operation_id: str | None = None,
        rate_ok: bool = True,
        depth: int = 0,
        **fields: Any,
    ) -> SendMessage:
        operation = Send(channel, content, **fields)
        return SendMessage(
            operation,
            operation_id or f"op-{next(_OPERATION_IDS)}",
            fingerprint(operation),
            self.sender,
            self.attachment,
            rate_ok,
            depth=depth,
        )

    def edit(
        self,
        memory_id: str,
        content: str = "edited",
        *,
        operation_id: str | None = None,
        rate_ok: bool = True,
        depth: int = 0,
        **fields: Any,
    ) -> ReviseMemory:
        operation = EditMemory(memory_id, content, **fields)
        return ReviseMemory(
            operation,
            operation_id or f"op-{next(_OPERATION_IDS)}",
            fingerprint(operation),
            self.sender,
            self.attachment,
            rate_ok,
            depth=depth,
        )

    def delete(
        self, memory_id: str, *, operation_id: str | None = None, rate_ok: bool = True
    ) -> RemoveMemory:
        operation = DeleteMemory(memory_id)
        return RemoveMemory(
            operation,
            operation_id or f"op-{next(_OPERATION_IDS)}",
            fingerprint(operation),
            self.sender,
            self.attachment,
            rate_ok,
        )

    def make(self, channel: str, kind: Any = "ordinary") -> MakeChannel:
        return MakeChannel(CreateChannel(channel, kind), self.attachment)

    def subscribe(self, channel: str, from_: str = "now") -> OpenSubscription:
        return OpenSubscription(Subscribe(channel, from_), self.attachment)

    def unsubscribe(self, channel: str) -> CloseSubscription:
        return CloseSubscription(Unsubscribe(channel), self.attachment)


class Bus:
    """A ledger with a clock that stands still, on a file that outlives it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.path = folder / "bus.sqlite3"
        self.clock = FakeClock()
        self.config = config(folder, **settings)
        self.store = self._open()
        self._readers: list[PeerReader] = []

    def _open(self) -> LedgerStore:
        return LedgerStore(self.path, self.config, self.clock)

    def reopen(self) -> LedgerStore:
        self.store.close()
        self.store = self._open()
        return self.store

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self.store.close()

    def reader(self) -> PeerReader:
        """A reader that is closed with the bus, if not before."""
        reader = PeerReader(self.path)
        self._readers.append(reader)
        return reader

    def attach(
        self,
        agent: str = "Sam",
        conversation: str = "c1",
        *,
        application: str = "codex",
        child: str | None = None,
        in_use: frozenset[str] = frozenset(),
        **fields: Any,
    ) -> Speaker:
        identity = SessionIdentity(application, conversation, child)
        return Speaker(self.done(BindSession(agent, identity, in_use, **fields)).result)

    def done(self, change: Change) -> Done:
        """Apply one change that must succeed."""
        (outcome,) = self.store.apply([change])
        assert isinstance(outcome, Done), outcome
        return outcome

    def refused(self, change: Change) -> BusError:
        """Apply one change that must be refused."""
        (outcome,) = self.store.apply([change])
        assert isinstance(outcome, Refused), outcome
        return outcome.error

    def prune(self, what: Any, max_rows: int = 500) -> tuple[PruneResult, Done]:
        outcome = self.done(PruneSlice(what, max_rows))
        return outcome.result, outcome
