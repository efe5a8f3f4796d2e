"""A session of somebody who is no agent: a person, or a caller over talk.

Owns the session that the daemon binds for such a name, and what waits to be written from it. Never
decides anything: what is written is the ledger's to accept. Agents cannot have such a session, as
`attach` refuses these names. Belongs to the thread of its desk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from actors.base import Address, Reply
from actors.issued_session_messages import (
    SessionIssued,
    ToIssuedSession,
    WriteDone,
    WriteRefused,
)
from actors.messages import LedgerMessage, Submit
from actors.replies import TellReply
from agentbus.errors import BusError, StaleAttachmentError
from agentbus.identity import Attachment, SenderBinding, SessionIdentity
from agentbus.store.changes import BindSession, Change, SessionBound

Make = Callable[[SenderBinding, Attachment], Change]


@dataclass(slots=True)
class _Write:
    """A change that needs the session. Without a reply nobody waits for it."""

    make: Make
    reply_to: Reply | None = None
    bound_again: bool = False


class IssuedSession:
    """Its writes are submitted one after the other, as an inspection needs it; the first of them
    binds the session, and one that finds it stale binds it again, once."""

    def __init__(
        self,
        agent: str,
        identity: SessionIdentity,
        ledger: Address[LedgerMessage],
        owner: Address[ToIssuedSession],
    ) -> None:
        self._agent = agent
        self._identity = identity
        self._ledger = ledger
        self._owner = owner
        self._bound: SessionBound | None = None
        self._writes: deque[_Write] = deque()  # the first one is at the ledger while `_submitted`
        self._submitted = False

    def write(self, make: Make, reply_to: Reply | None = None) -> None:
        self._writes.append(_Write(make, reply_to))
        self._submit_next()

    def take(self, message: ToIssuedSession) -> None:
        match message:
            case SessionIssued(_, bound):
                self._bound = bound
                self._submitted = False
                self._submit_next()
            case WriteDone(_, result):
                reply_to = self._settled().reply_to
                if reply_to is not None:
                    reply_to.set(result)
                self._submit_next()
            case WriteRefused(_, error):
                self._refused(error)
            case _:
                assert_never(message)

    def end(self, error: BusError) -> None:
        """Answer everybody who waits with this error."""
        for write in self._writes:
            if write.reply_to is not None:
                write.reply_to.set_exception(error)

    def _submit_next(self) -> None:
        if self._submitted or not self._writes:
            return
        self._submitted = True
        agent, bound = self._agent, self._bound
        done: Callable[..., ToIssuedSession]
        if bound is None:
            change: Change = BindSession(agent, self._identity, names_in_use=frozenset())
            done = SessionIssued
        else:
            attachment = Attachment(bound.session_id, bound.generation)
            change = self._writes[0].make(_sender(bound), attachment)
            done = WriteDone
        reply = TellReply(
            self._owner,
            lambda result: done(agent, result),
            lambda error: WriteRefused(agent, error),
        )
        self._ledger.tell(Submit(change, reply))

    def _settled(self) -> _Write:
        self._submitted = False
        return self._writes.popleft()

    def _refused(self, error: BaseException) -> None:
        write = self._writes[0]
        if isinstance(error, StaleAttachmentError) and not write.bound_again:
            write.bound_again = True
            self._bound = None
            self._submitted = False
        else:
            self._settled()
            if write.reply_to is not None:
                write.reply_to.set_exception(error)
        self._submit_next()


def _sender(bound: SessionBound) -> SenderBinding:
    return SenderBinding(
        agent=bound.agent,
        agent_id=bound.agent_id,
        session_id=bound.session_id,
        application=bound.identity.application,
        child=None,
        display_name=bound.display_name,
        repository=None,
    )
