"""The judge itself: what is wrong with a history is found, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.crash import test_peer_judge
from tests.crash.attempts import Attempt, Outcome
from tests.crash.history import (
    Fault,
    Gap,
    Handed,
    History,
    Kind,
    Operation,
    Subscribed,
)
from tests.crash.judge import judge
from tests.crash.truth import FORBIDDEN, Removed, Stored, Truth, Verdict


def sent(sequence: int, outcome: Outcome = "ok", kind: Kind = "send") -> Operation:
    """Number `sequence`, at that second."""
    memory_id = None if kind == "send" else "id-1"
    operation = Operation("sender", kind, f"m{sequence}", f"op-{sequence}", "general", memory_id)
    operation.attempts = [Attempt(sequence, sequence + 0.5, outcome, "")]
    if outcome == "ok":
        operation.answers = [{"message_id": memory_id or f"id-{sequence}", "sequence": sequence}]
    return operation


def row(sequence: int, **changes: object) -> Stored:
    stored = Stored(sequence, f"id-{sequence}", "general", f"m{sequence}")
    return replace(stored, **changes)  # type: ignore[arg-type]


def handed(sequence: int, at_s: float, *, redelivered: bool = False) -> Handed:
    name = f"m{sequence}", f"id-{sequence}"
    return Handed("reader", 1, "general", *name, sequence, redelivered, round(at_s), at_s)


def honest() -> tuple[History, Truth]:
    """Four messages: accepted, unknown but stored, unknown and not there, refused; two read."""
    history = History(
        operations=[sent(1), sent(2, "unknown"), sent(3, "unknown"), sent(4, "fail")],
        subscriptions=[Subscribed("reader", "general", 1, 1)],
        handed=[handed(1, 11), handed(2, 12)],
    )
    rows = [row(1), row(2)]
    ids = ["id-1", "id-2"]
    truth = Truth(rows, streams={"general": ids}, history={"general": ids}, found=ids[::-1])
    return history, truth


def found(verdict: Verdict) -> set[str]:
    return {finding.kind for finding in verdict.findings}


def test_an_honest_history_is_clean_and_every_id_has_its_class() -> None:
    verdict = judge(*honest())
    assert verdict.findings == []
    assert verdict.counts == {"ok": 1, "recovered": 1, "never_happened": 1, "failed": 1}


Forgery = Callable[[History, Truth], object]


def _unread(history: History, truth: Truth) -> None:
    truth.streams = truth.history = truth.found = None


def lost(history: History, truth: Truth) -> None:
    _unread(history, truth)
    truth.rows = [row(2)]


def lost_by_an_early_removal(history: History, truth: Truth) -> None:
    lost(history, truth)
    truth.removed = [Removed("general", 1, 1, "age")]


def stored_elsewhere(history: History, truth: Truth) -> None:
    _unread(history, truth)
    truth.rows = [row(7, mark="m1", message_id="id-1"), row(2)]


def doubled_without_a_mark(history: History, truth: Truth) -> None:
    history.handed.append(handed(2, 13))


def doubled_effect(history: History, truth: Truth) -> None:
    _unread(history, truth)
    truth.rows.append(row(5, mark="m2"))
    history.handed.append(handed(5, 13))
    history.handed[-1] = replace(history.handed[-1], mark="m2")


def doubled_answer(history: History, truth: Truth) -> None:
    history.operations[0].answers.append({"message_id": "id-9", "sequence": 1})


def stored_although_nobody_sent_it(history: History, truth: Truth) -> None:
    del history.operations[1]


def stored_although_it_was_refused(history: History, truth: Truth) -> None:
    history.operations[1] = sent(2, "fail")


def handed_although_nobody_sent_it(history: History, truth: Truth) -> None:
    history.handed.append(handed(9, 13))


def handed_in_another_channel(history: History, truth: Truth) -> None:
    history.operations[1].channel = "work"
    truth.rows[1] = row(2)


def delivered_backwards(history: History, truth: Truth) -> None:
    history.handed.reverse()


def committed_backwards(history: History, truth: Truth) -> None:
    history.operations[0].attempts = [Attempt(30, 31, "ok", "")]
    history.operations[1].attempts = [Attempt(20, 21, "ok", "")]
    history.operations[1].answers = [{"message_id": "id-2", "sequence": 2}]


def skipped(history: History, truth: Truth) -> None:
    del history.handed[0]


def skipped_at_the_end(history: History, truth: Truth) -> None:
    del history.handed[1]


def skipped_beside_a_gap(history: History, truth: Truth) -> None:
    del history.handed[0]
    history.gaps.append(Gap("reader", 1, "general", 2, 3, "age", 1, 10))


def removed_without_a_gap(history: History, truth: Truth) -> None:
    lost_by_an_early_removal(history, truth)
    truth.may_remove = True
    del history.handed[0]


def two_live_revisions(history: History, truth: Truth) -> None:
    _memory(history, truth, row(1), row(2))


def an_older_revision_won(history: History, truth: Truth) -> None:
    _memory(history, truth, row(1), row(2, live=False))


def a_memory_without_a_live_revision(history: History, truth: Truth) -> None:
    _memory(history, truth, row(1, live=False), row(2, live=False))


def a_deleted_memory_that_lives(history: History, truth: Truth) -> None:
    _memory(history, truth, row(1, live=False), row(2))
    history.operations.append(sent(3, "ok", "delete"))


def a_missing_revision(history: History, truth: Truth) -> None:
    _memory(history, truth, row(1, live=False), row(2))
    truth.rows[1] = replace(truth.rows[1], revision=3)


def _memory(history: History, truth: Truth, first: Stored, second: Stored) -> None:
    _unread(history, truth)
    history.operations = [sent(1), sent(2, "ok", "edit")]
    history.handed = [handed(1, 11)]
    again = replace(second, message_id="id-1", revision=2, position=1, memory=True)
    truth.rows = [replace(first, memory=True), again]


def stream_without_a_message(history: History, truth: Truth) -> None:
    truth.streams = {"general": ["id-1"]}


def history_in_another_order(history: History, truth: Truth) -> None:
    truth.history = {"general": ["id-2", "id-1"]}


def search_finds_what_is_gone(history: History, truth: Truth) -> None:
    truth.found = ["id-3", "id-2", "id-1"]


def search_finds_something_twice(history: History, truth: Truth) -> None:
    truth.found = ["id-2", "id-1", "id-1"]


def counters_that_are_wrong(history: History, truth: Truth) -> None:
    truth.complaints = ["100 bytes on record, 90 in the rows"]


def a_call_without_an_answer(history: History, truth: Truth) -> None:
    history.stuck = ["reader had no answer"]


FORGERIES: list[tuple[str, Forgery]] = [
    ("lost", lost),
    ("lost", lost_by_an_early_removal),
    ("lost", stored_elsewhere),
    ("doubled", doubled_without_a_mark),
    ("doubled", doubled_effect),
    ("doubled", doubled_answer),
    ("unexpected", stored_although_nobody_sent_it),
    ("unexpected", stored_although_it_was_refused),
    ("unexpected", handed_although_nobody_sent_it),
    ("unexpected", handed_in_another_channel),
    ("out_of_order", delivered_backwards),
    ("out_of_order", committed_backwards),
    ("skipped", skipped),
    ("skipped", skipped_at_the_end),
    ("skipped", skipped_beside_a_gap),
    ("skipped", removed_without_a_gap),
    ("memory", two_live_revisions),
    ("memory", an_older_revision_won),
    ("memory", a_memory_without_a_live_revision),
    ("memory", a_deleted_memory_that_lives),
    ("memory", a_missing_revision),
    ("disagreement", stream_without_a_message),
    ("disagreement", history_in_another_order),
    ("disagreement", search_finds_what_is_gone),
    ("disagreement", search_finds_something_twice),
    ("disagreement", counters_that_are_wrong),
    ("stuck", a_call_without_an_answer),
]


@pytest.mark.parametrize(("kind", "forge"), FORGERIES, ids=[f.__name__ for _, f in FORGERIES])
def test_a_forged_history_is_found_out(kind: str, forge: Forgery) -> None:
    history, truth = honest()
    forge(history, truth)
    assert kind in found(judge(history, truth))


def test_every_forbidden_class_has_a_forgery() -> None:
    forged = {kind for kind, _ in FORGERIES} | {kind for kind, _ in test_peer_judge.FORGERIES}
    assert forged == set(FORBIDDEN)


def test_what_comes_again_marked_or_is_covered_by_a_gap_is_allowed() -> None:
    history, truth = honest()
    history.handed.append(handed(2, 13, redelivered=True))
    removed_without_a_gap(history, truth)
    history.gaps.append(Gap("reader", 1, "general", 1, 1, "age", 1, 10))
    verdict = judge(history, truth)
    assert verdict.findings == []
    assert verdict.counts["marked"] == verdict.counts["removed"] == 1


def test_own_messages_and_those_after_an_unsubscribe_are_not_owed() -> None:
    history, truth = honest()
    history.handed.clear()
    history.operations[0].client = "reader"
    history.subscriptions[0].open = False
    assert judge(history, truth).clean


def test_a_finding_is_explained_by_the_history_of_its_id() -> None:
    history, truth = honest()
    lost(history, truth)
    history.faults = [Fault("kill_redis", "kill Redis", 1.2, 1.3), Fault("cut", "cut", 50, 50)]
    about = "\n".join(history.about("m1"))
    assert "sender send m1 on general, operation op-1: ok" in about
    assert "reader got m1 (1) in result 11" in about
    assert "kill Redis until" in about
    assert "cut" not in about
