"""Answers that only read: who am I, which channels, what was said.

Owns nothing but what was bound at attach; reads the committed state through the reader that it is
given. Runs on the attachment's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actors.feeds import Feeds
from actors.searching import require_readable
from agentbus.config import Config
from agentbus.encoding import decode_trusted, raw
from agentbus.errors import NotFoundError, ValidationError
from agentbus.identity import IdentitySource, SenderBinding
from agentbus.ids import BusId, MessageId, Sequence
from agentbus.limits import GAPS_PER_RESULT, INBOX_PREFIX, KIB, RESULT_BYTES
from agentbus.protocol.operations import GetMemory, History, ListChannels
from agentbus.store.changes import SessionBound
from agentbus.store.memories import no_memory
from agentbus.store.reader import Page, Reader, RemovedPart


@dataclass(frozen=True, slots=True)
class Profile:
    """One attached session, and the questions that it can ask about the bus."""

    bound: SessionBound
    identity_source: IdentitySource
    parent_conversation: str | None
    bus_id: BusId
    config: Config

    @property
    def sender(self) -> SenderBinding:
        """What the envelopes of this session carry."""
        bound = self.bound
        return SenderBinding(
            agent=bound.agent,
            agent_id=bound.agent_id,
            session_id=bound.session_id,
            application=bound.identity.application,
            child=bound.identity.child,
            display_name=bound.display_name,
            repository=bound.repository,
        )

    @property
    def inbox(self) -> str:
        """The channel of what is sent to this agent directly."""
        return INBOX_PREFIX + self.bound.agent

    def whoami(self, store: Reader, feeds: Feeds) -> dict[str, Any]:
        bound = self.bound
        answer: dict[str, Any] = {
            "display_name": bound.display_name,
            "agent": bound.agent,
            "agent_id": bound.agent_id,
            "session_id": bound.session_id,
            "application": bound.identity.application,
            "conversation": bound.identity.conversation,
            "identity_source": self.identity_source,
            "generation": bound.generation,
            "bus_id": self.bus_id,
            "subscriptions": [
                {
                    "channel": feed.channel,
                    "lag": store.lag(feed.channel_id, feed.handed_off),
                    "last_handed_off": feed.handed_off,
                }
                for feed in feeds
            ],
        }
        optional = {
            "child": bound.identity.child,
            "parent": self.parent_conversation,
            "repository": bound.repository,
        }
        return answer | {key: value for key, value in optional.items() if value is not None}

    def list_channels(self, store: Reader, feeds: Feeds, operation: ListChannels) -> dict[str, Any]:
        positions = {feed.channel_id: feed.handed_off for feed in feeds}
        return {
            "channels": [
                {
                    "channel": row.channel,
                    "kind": row.kind,
                    "retained": row.retained,
                    "newest": row.newest,
                    "lag": store.lag(row.channel_id, positions[row.channel_id])
                    if row.channel_id in positions
                    else None,
                }
                for row in store.channels(operation.prefix)
                if row.kind != "inbox"
            ]
        }

    def get_memory(self, store: Reader, operation: GetMemory) -> dict[str, Any]:
        memory = store.memory(MessageId(operation.memory_id))
        if memory is None:
            raise no_memory(operation.memory_id)
        return {"memory": raw(memory.envelope)}

    def history(self, store: Reader, operation: History) -> dict[str, Any]:
        if operation.message_id is not None:
            return self._one_message(store, operation)
        count = operation.count if operation.count is not None else self.config.recv_default_count
        if count > self.config.recv_max_count:
            raise ValidationError(
                f"history: count must be at most {self.config.recv_max_count} (recv_max_count), "
                f"not {count}"
            )
        assert operation.channel is not None
        row = require_readable(store, operation.channel, self.inbox)
        page = store.history(
            row.channel_id,
            before=Sequence(operation.before) if operation.before is not None else None,
            after=Sequence(operation.after) if operation.after is not None else None,
            count=count,
            inbox_of=self.bound.agent_id if row.kind == "inbox" else None,
        )
        return self._page(operation, row.channel, page)

    def _page(self, operation: History, channel: str, page: Page) -> dict[str, Any]:
        """As many whole messages as the ceiling holds, at least one, from the asked end.

        Gaps lie below all messages. So a page that is read forwards begins with them, and one that
        is read backwards has them only when it holds its oldest message. Of very many, those next
        to where the reading began come first, and the messages behind them in a later page.
        """
        ceiling_kib = operation.max_kib or self.config.result_default_kib
        left_bytes = min(ceiling_kib * KIB, RESULT_BYTES)
        forwards = operation.after is not None
        removed, more = page.removed, page.more
        messages = page.messages if forwards else page.messages[::-1]
        if len(removed) > GAPS_PER_RESULT:
            more = True
            if forwards:
                removed, messages = removed[:GAPS_PER_RESULT], []
            else:
                removed = removed[-GAPS_PER_RESULT:]
        taken: list[bytes] = []
        for message in messages:
            if taken and len(message.envelope) > left_bytes:
                break
            taken.append(message.envelope)
            left_bytes -= len(message.envelope)
        if len(taken) < len(messages):
            more = True
            removed = removed if forwards else []
        if not forwards:
            taken.reverse()
        return {
            "channel": channel,
            "messages": [raw(envelope) for envelope in taken],
            "gaps": [
                RemovedPart(channel, part, page.oldest_retained).as_data() for part in removed
            ],
            "more": more,
        }

    def _one_message(self, store: Reader, operation: History) -> dict[str, Any]:
        """One message with its content cut to the ceiling, from an offset in characters."""
        assert operation.message_id is not None
        message = store.message(MessageId(operation.message_id))
        if message is None or not store.visible([message.sequence], self.bound.agent_id):
            raise NotFoundError(
                f"no message {operation.message_id!r} is retained; it never was or has been "
                "cleaned up"
            )
        data: dict[str, Any] = decode_trusted(message.envelope)
        content: str = data["content"]
        if operation.offset > len(content):
            raise ValidationError(
                f"history: offset must be at most {len(content)}, the length of the content"
            )
        ceiling_kib = operation.max_kib or self.config.result_default_kib
        part = content[operation.offset : operation.offset + ceiling_kib * KIB // 2]
        end = operation.offset + len(part)
        return {
            "message": data | {"content": part},
            "offset": operation.offset,
            "content_characters": len(content),
            "next_offset": end if end < len(content) else None,
        }
