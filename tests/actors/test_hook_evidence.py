"""What hooks said, as the registrar remembers it."""

from __future__ import annotations

from actors.hook_evidence import KEPT, HookEvidence
from actors.messages import HookHeard
from agentbus.protocol.session import HookEvent


def test_the_last_word_of_each_event_is_remembered_and_the_longest_silent_is_forgotten() -> None:
    evidence = HookEvidence()
    for number in range(KEPT + 1):
        evidence.seen(HookEvent("codex", f"e{number}", "c1"), now_s=0.0, at_us=number)
    evidence.seen(HookEvent("codex", "e1", "c1"), now_s=0.0, at_us=999)
    heard = evidence.heard()
    assert len(heard) == KEPT
    assert heard[0] == HookHeard("codex", "e2", 2)
    assert heard[-1] == HookHeard("codex", "e1", 999)
