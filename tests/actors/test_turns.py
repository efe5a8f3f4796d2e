"""One mutation of an attachment at a time, in the order in which they came."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.base import FutureReply
from actors.messages import Submit
from actors.turns import MutationTurns
from agentbus.store.changes import PruneSlice
from tests.probe import Probe


@pytest.fixture
def ledger() -> Iterator[Probe]:
    with Probe("ledger") as probe:
        yield probe


def submits(count: int) -> list[Submit]:
    """Told apart by `reserved_bytes`; what they change is nobody's business here."""
    return [Submit(PruneSlice("receipts", 1), FutureReply(), None, n) for n in range(count)]


def told(ledger: Probe) -> list[int]:
    return [m.reserved_bytes for m in ledger.received() if isinstance(m, Submit)]


def test_the_next_mutation_goes_when_the_one_before_has_settled(ledger: Probe) -> None:
    turns = MutationTurns(ledger.address)
    for submit in submits(3):
        turns.submit(submit)
    assert told(ledger) == [0]
    turns.settled()
    assert told(ledger) == [0, 1]
    turns.settled()
    assert told(ledger) == [0, 1, 2]


def test_a_mutation_without_others_before_it_goes_at_once(ledger: Probe) -> None:
    turns = MutationTurns(ledger.address)
    for number, submit in enumerate(submits(3), 1):
        turns.submit(submit)
        assert len(told(ledger)) == number
        turns.settled()


def test_what_is_held_can_be_taken_out(ledger: Probe) -> None:
    turns = MutationTurns(ledger.address)
    first, second, third = submits(3)
    for submit in (first, second, third):
        turns.submit(submit)
    assert turns.abandon() == [second, third]
    turns.settled()
    assert told(ledger) == [0]
