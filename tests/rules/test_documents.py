"""A message is found in the same way whether it was just sent or read back for a rebuild."""

from __future__ import annotations

import pytest

from agentbus.envelope import Body, Reference, encode_envelope
from agentbus.identity import SenderBinding
from agentbus.ids import AgentId, MessageId, Sequence, SessionId
from agentbus.rules.documents import document_of_envelope, document_of_message

SENDER = SenderBinding(
    agent="Sam",
    agent_id=AgentId("agent-1"),
    session_id=SessionId("session-1"),
    application="claude_code",
    child=None,
    display_name="Sam2",
    repository=None,
)

BODIES = {
    "plain": Body("just text"),
    "full": Body(
        "Die Größe von fooBar",
        type="question",
        subject="HTTPServer",
        reply_to="0190a1b2-0000-7000-8000-000000000001",
        thread="Größe",
        metadata={"not": "indexed"},
        references=(Reference("url", "https://example.org/a_b"), Reference("unix_path", "/x/y")),
        tags=("one", "two words"),
    ),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("sent_at_us", [0, 1_700_000_000_123_456, 1_700_000_000_999_999])
def test_a_new_message_and_its_stored_envelope_give_one_document(
    name: str, sent_at_us: int
) -> None:
    body = BODIES[name]
    envelope = encode_envelope(
        message_id=MessageId("0190a1b2-0000-7000-8000-000000000002"),
        revision=1,
        sequence=Sequence(7),
        channel="general",
        channel_kind="ordinary",
        sender=SENDER,
        sent_at_us=sent_at_us,
        body=body,
    )
    document = document_of_message(
        body,
        channel="general",
        sender=SENDER.agent,
        session_id=SENDER.session_id,
        sent_at_ms=sent_at_us // 1000,
    )
    assert document == document_of_envelope(envelope)
