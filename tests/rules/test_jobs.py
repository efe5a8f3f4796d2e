"""What a reader of a job may take."""

from __future__ import annotations

from agentbus.rules.jobs import JobOrder, Missing, Verdict


def test_each_sequence_has_one_content_and_a_repeat_keeps_its_answer_after_the_end() -> None:
    order = JobOrder()
    assert order.judge(0, b"a") is Verdict.NEW
    order.take(0, b"a", is_terminal=False)
    assert order.judge(0, b"a") is Verdict.REPEATED
    assert order.judge(0, b"b") is Verdict.CONFLICT
    order.take(1, b"end", is_terminal=True)
    assert order.terminal_seq == 1
    assert order.judge(1, b"end") is Verdict.REPEATED
    assert order.judge(1, b"other end") is Verdict.CONFLICT
    assert order.judge(0, b"a") is Verdict.REPEATED
    assert order.judge(2, b"c") is Verdict.CLOSED


def test_judging_remembers_nothing() -> None:
    order = JobOrder()
    for _ in range(2):
        assert order.judge(5, b"a") is Verdict.NEW
    assert order.next_seq == 0


def test_what_is_passed_over_is_named_once_with_both_ends() -> None:
    order = JobOrder()
    taken = [order.take(seq, b"", is_terminal=False) for seq in (2, 3, 0, 9, 10)]
    assert taken == [Missing(0, 1), None, None, Missing(4, 8), None]
    assert order.next_seq == 11
