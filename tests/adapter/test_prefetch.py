"""The bookkeeping of fetched, given out and handed off messages, without any I/O."""

from __future__ import annotations

import pytest

from agentbus.adapter.prefetch import Batch, Budget, Prefetch, Report
from agentbus.adapter.subscription import Gap, parse_arrived
from agentbus.encoding import decode_frame, encode
from agentbus.errors import CursorExpiredError, NotFoundError
from agentbus.ids import Sequence
from agentbus.limits import GAPS_PER_RESULT
from agentbus.protocol.session import Delivery, GapRange
from tests.adapter.deliveries import OWN, PLENTY, arrive, attached, message, row, sequences, take


def test_a_delivery_of_the_wire_is_understood() -> None:
    delivery = Delivery(
        subscription=7,
        channel="general",
        after=Sequence(3),
        through=Sequence(9),
        redelivered_through=Sequence(4),
        records=((Sequence(8), encode(message(8))),),
        gaps=(GapRange(Sequence(5), Sequence(6), "age"),),
        oldest_retained=Sequence(7),
    )
    arrived = parse_arrived(decode_frame(encode(delivery.as_data())))
    assert arrived.records == ((8, message(8)),)
    assert arrived.gaps == delivery.gaps
    assert arrived.oldest_retained == 7


def test_messages_are_taken_in_order_over_all_channels() -> None:
    prefetch = attached(1, 2)
    arrive(prefetch, message(1), message(4), subscription=1)
    arrive(prefetch, message(2), message(3), subscription=2)
    assert sequences(take(prefetch)) == [1, 2, 3, 4]


def test_only_the_named_channels_are_read() -> None:
    prefetch = attached(1, 2)
    arrive(prefetch, message(1), subscription=1)
    arrive(prefetch, message(2), subscription=2)
    assert sequences(take(prefetch, "channel-2")) == [2]
    assert prefetch.pending == 1


def test_an_unknown_channel_is_named_together_with_the_known_ones() -> None:
    prefetch = attached(1)
    with pytest.raises(NotFoundError, match="channel-1"):
        take(prefetch, "nowhere")


def test_what_was_on_its_way_when_the_session_unsubscribed_gives_its_credit_back() -> None:
    prefetch = attached(1, 2)
    prefetch.left("channel-1")
    arrive(prefetch, message(1), subscription=1)
    arrive(prefetch, message(2), subscription=2)
    assert prefetch.pending == 1
    assert prefetch.credit_due() == (1, len(encode(message(1))))
    assert sequences(take(prefetch)) == [2]
    assert [queue.channel for queue in prefetch.select(())] == ["channel-2"]


def test_the_count_bounds_a_batch_and_the_rest_is_announced() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2), message(3))
    batch = take(prefetch, count=2)
    assert sequences(batch) == [1, 2]
    assert batch.more
    assert not take(prefetch, count=1).more


def test_characters_and_bytes_bound_a_batch_to_whole_records() -> None:
    prefetch = attached(1)
    arrive(prefetch, *(message(n, "x" * 100) for n in (1, 2, 3)))
    two = 2 * len(encode(message(1, "x" * 100))) + 60
    assert sequences(prefetch.take((), Budget(10, two, 10**9))) == [1, 2]
    assert sequences(prefetch.take((), Budget(10, 10**9, two))) == [3]


def test_characters_are_not_bytes() -> None:
    prefetch = attached(1)
    arrive(prefetch, *(message(n, "ü" * 100) for n in (1, 2, 3)))
    two = 2 * len(encode(message(1, "ü" * 100)).decode()) + 60
    assert sequences(prefetch.take((), Budget(10, two, 10**9))) == [1, 2]


def test_a_record_beyond_the_budget_is_taken_alone() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2, "x" * 500), message(3))
    small = Budget(10, 200, 10**9)
    assert sequences(prefetch.take((), small)) == [1]
    batch = prefetch.take((), small)
    assert sequences(batch) == [2]
    assert batch.oversize
    assert batch.more
    assert sequences(prefetch.take((), small)) == [3]


def test_nothing_is_reported_before_the_handoff() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1))
    batch = take(prefetch)
    assert prefetch.report_due() is None
    prefetch.settle(batch, handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {1: 1}, ())
    assert prefetch.report_due() is None


def test_a_result_that_failed_waits_again_in_front() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2), message(3))
    batch = take(prefetch, count=2)
    prefetch.settle(batch, handed_off=False, bytes_left=False)
    again = take(prefetch)
    assert sequences(again) == [1, 2, 3]
    assert not any(record.redelivered for record in again.records)
    assert prefetch.report_due() is None


def test_a_result_of_which_bytes_had_left_is_marked_redelivered() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    prefetch.settle(take(prefetch, count=1), handed_off=False, bytes_left=True)
    assert [record.redelivered for record in take(prefetch).records] == [True, False]


def test_a_later_result_is_not_reported_over_an_unsettled_earlier_one() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    first, second = take(prefetch, count=1), take(prefetch, count=1)
    prefetch.settle(second, handed_off=True)
    assert prefetch.report_due() is None
    prefetch.settle(first, handed_off=False)
    assert prefetch.report_due() is None
    again = take(prefetch)
    assert sequences(again) == [1]
    prefetch.settle(again, handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {1: 2}, ())


def test_own_messages_that_were_left_out_are_passed_over_by_a_receive() -> None:
    prefetch = attached(1)
    arrive(prefetch, after=0, through=5)
    assert prefetch.report_due() is None
    prefetch.settle(take(prefetch), handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {1: 5}, ())


def test_credit_comes_back_with_the_handoff_and_for_what_is_dropped() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    arrive(prefetch, message(2), after=1)
    assert prefetch.credit_due() == (1, len(encode(message(2))))
    batch = take(prefetch)
    assert prefetch.credit_due() == (0, 0)
    prefetch.settle(batch, handed_off=True)
    assert prefetch.credit_due() == (2, 2 * len(encode(message(1))))


def test_pulled_records_never_used_credit() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), pushed=False)
    arrive(prefetch, message(1))
    assert prefetch.credit_due() == (1, len(encode(message(1))))
    prefetch.settle(take(prefetch), handed_off=True)
    assert prefetch.credit_due() == (0, 0)


def test_a_new_epoch_drops_the_queue_and_gives_no_credit_back() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2), message(3))
    batch = take(prefetch, count=1)
    prefetch.new_epoch(2)
    assert prefetch.pending == 0
    prefetch.settle(batch, handed_off=True)
    assert prefetch.credit_due() == (0, 0)
    arrive(prefetch, message(2), after=0, epoch=1)
    assert prefetch.pending == 0
    arrive(prefetch, message(1), message(2), message(3), epoch=2)
    assert prefetch.credit_due() == (1, len(encode(message(1))))
    assert sequences(take(prefetch)) == [2, 3]


def test_positions_that_a_recovery_ignored_are_reported_again() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1))
    prefetch.settle(take(prefetch), handed_off=True)
    assert prefetch.report_due() is not None
    prefetch.new_epoch(2)
    assert prefetch.report_due() is None
    arrive(prefetch, message(1), epoch=2)
    assert prefetch.report_due() == Report(2, 2, {1: 1}, ())


def test_a_committed_report_is_not_repeated_after_a_recovery() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1))
    prefetch.settle(take(prefetch), handed_off=True)
    report = prefetch.report_due()
    assert report is not None
    prefetch.committed(report)
    prefetch.new_epoch(2)
    assert prefetch.report_due() is None


def test_a_failed_result_survives_a_recovery_in_order() -> None:
    prefetch = attached(1)
    arrive(prefetch, *(message(n) for n in range(1, 6)))
    first, second = take(prefetch, count=2), take(prefetch, count=2)
    prefetch.settle(first, handed_off=False)
    prefetch.new_epoch(2)
    prefetch.settle(second, handed_off=False)
    assert sequences(take(prefetch)) == [1, 2, 3, 4]
    arrive(prefetch, *(message(n) for n in range(1, 6)), epoch=2)
    assert sequences(take(prefetch)) == [5]


def test_attaching_again_does_not_deliver_what_was_handed_off_but_reports_it() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    prefetch.settle(take(prefetch, count=1), handed_off=True)
    prefetch.attached(OWN, 4, [row(1, confirmed=0)])
    arrive(prefetch, message(1), message(2), epoch=4)
    assert prefetch.report_due() == Report(1, 4, {1: 1}, ())
    assert sequences(take(prefetch)) == [2]


def test_what_another_adapter_handed_off_meanwhile_is_not_delivered() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    prefetch.attached(OWN, 4, [row(1, confirmed=2)])
    assert prefetch.pending == 0
    arrive(prefetch, message(3), after=2, epoch=4)
    assert sequences(take(prefetch)) == [3]


def test_unconfirmed_messages_come_marked_to_a_new_adapter() -> None:
    prefetch = Prefetch()
    prefetch.attached(OWN, 1, [{**row(1, confirmed=1), "handed_off": 2}])
    arrive(prefetch, message(2), message(3), after=1, redelivered_through=2)
    batch = take(prefetch)
    assert [(r.position, r.redelivered) for r in batch.records] == [(2, True), (3, False)]
    prefetch.settle(batch, handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {1: 3}, ())


def gaps(*ranges: tuple[int, int, str]) -> tuple[GapRange, ...]:
    return tuple(GapRange(Sequence(first), Sequence(last), cause) for first, last, cause in ranges)


def told(batch: Batch) -> list[tuple[str, int, int, str]]:
    return [(gap.channel, gap.first, gap.last, gap.cause) for gap in batch.gaps]


def test_gaps_are_told_at_their_place_and_count_as_handed_off() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(5), gaps=gaps((2, 4, "age")))
    batch = take(prefetch)
    assert [entry.last for _, entry in batch.entries] == [1, 4, 5]
    assert batch.gaps == (Gap("channel-1", 2, 4, "age", None),)
    prefetch.settle(batch, handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {1: 5}, ())


def test_a_gap_is_not_told_twice_and_comes_back_after_a_failure() -> None:
    prefetch = attached(1)
    gone = gaps((1, 4, "capacity"))
    arrive(prefetch, gaps=gone)
    arrive(prefetch, gaps=gone, pushed=False)
    batch = take(prefetch)
    assert len(batch.gaps) == 1
    prefetch.settle(batch, handed_off=False)
    again = take(prefetch)
    assert len(again.gaps) == 1
    prefetch.settle(again, handed_off=True)
    arrive(prefetch, gaps=gone)
    assert take(prefetch).is_empty


def test_gaps_of_several_causes_and_channels_are_told_in_order() -> None:
    prefetch = attached(1, 2)
    arrive(prefetch, message(12), gaps=gaps((1, 3, "age"), (5, 7, "capacity"), (9, 10, "age")))
    arrive(prefetch, message(11), subscription=2, gaps=gaps((2, 6, "capacity"), (8, 8, "age")))
    batch = take(prefetch)
    assert told(batch) == [
        ("channel-1", 1, 3, "age"),
        ("channel-2", 2, 6, "capacity"),
        ("channel-1", 5, 7, "capacity"),
        ("channel-2", 8, 8, "age"),
        ("channel-1", 9, 10, "age"),
    ]
    assert sequences(batch) == [11, 12]
    prefetch.settle(batch, handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {1: 12, 2: 11}, ())


def test_what_waits_here_is_delivered_and_in_no_gap_though_it_was_removed() -> None:
    """A pull with own messages reads again what was pushed, which is gone by then."""
    prefetch = attached(1)
    arrive(prefetch, message(1), message(3))
    arrive(prefetch, gaps=gaps((1, 4, "age")), pushed=False, own=True)
    arrive(prefetch, gaps=gaps((1, 4, "age")), pushed=False, own=True)
    batch = take(prefetch, own=True)
    assert sequences(batch) == [1, 3]
    assert told(batch) == [("channel-1", 4, 4, "age")]


@pytest.mark.parametrize("when", ["new attachment", "recovery"])
def test_what_waits_again_or_is_on_its_way_is_in_no_gap_after_a(when: str) -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2), message(3))
    failed, under_way = take(prefetch, count=1), take(prefetch, count=1)
    prefetch.settle(failed, handed_off=False)
    if when == "recovery":
        prefetch.new_epoch(2)
    else:
        prefetch.attached(OWN, 2, [row(1)])
    arrive(prefetch, message(5), gaps=gaps((1, 4, "capacity")), epoch=2)
    batch = take(prefetch)
    assert sequences(batch) == [1, 5]
    assert told(batch) == [("channel-1", 3, 4, "capacity")]
    prefetch.settle(under_way, handed_off=True)
    prefetch.settle(batch, handed_off=True)
    assert prefetch.report_due() == Report(1, 2, {1: 5}, ())


def test_a_gap_moves_the_cursor_only_when_it_was_handed_off() -> None:
    prefetch = attached(1)
    arrive(prefetch, gaps=gaps((1, 4, "age")))
    assert prefetch.report_due() is None
    batch = take(prefetch)
    assert prefetch.report_due() is None
    prefetch.settle(batch, handed_off=False, bytes_left=True)
    assert prefetch.report_due() is None
    prefetch.settle(take(prefetch), handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {1: 4}, ())


def test_a_gap_that_was_not_confirmed_comes_again_to_a_new_adapter() -> None:
    prefetch = attached(1)
    arrive(prefetch, gaps=gaps((1, 4, "age")))
    prefetch.settle(take(prefetch), handed_off=True)
    successor = Prefetch()
    successor.attached(OWN, 1, [{**row(1, confirmed=0), "handed_off": 4}])
    arrive(successor, gaps=gaps((1, 4, "age")), redelivered_through=4)
    assert told(take(successor)) == [("channel-1", 1, 4, "age")]


def test_a_replay_tells_the_gaps_again() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(5), gaps=gaps((2, 4, "age")))
    prefetch.settle(take(prefetch), handed_off=True)
    for _ in range(2):
        replay = prefetch.replay(PLENTY)
        assert (sequences(replay), told(replay)) == ([1, 5], [("channel-1", 2, 4, "age")])
        prefetch.settle(replay, handed_off=True)
    arrive(prefetch, gaps=gaps((6, 7, "age")))
    prefetch.settle(take(prefetch), handed_off=True)
    prefetch.left("channel-1")
    alone = prefetch.replay(PLENTY)
    assert (sequences(alone), told(alone)) == ([], [("channel-1", 6, 7, "age")])


def test_gaps_are_bounded_per_result() -> None:
    prefetch = attached(1)
    firsts = range(1, 2 * GAPS_PER_RESULT + 2, 2)
    arrive(prefetch, gaps=gaps(*((n, n, "age") for n in firsts)))
    batch = take(prefetch)
    assert len(batch.gaps) == GAPS_PER_RESULT
    assert batch.more
    assert len(take(prefetch).gaps) == 1


def test_an_expiry_is_repeated_until_the_result_with_it_is_confirmed() -> None:
    prefetch = attached(1, 2)
    prefetch.expire(2, "channel-2", "2026-01-01T00:00:00.000Z")
    failed = take(prefetch)
    assert [e.channel for e in failed.expired] == ["channel-2"]
    prefetch.settle(failed, handed_off=False)
    assert prefetch.report_due() is None
    prefetch.settle(take(prefetch), handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {}, (2,))
    assert len(take(prefetch).expired) == 1
    assert prefetch.confirms(prefetch.arrival()) == 1
    assert take(prefetch).expired == ()


def test_a_gap_and_an_expiry_are_told_together_and_only_the_expiry_again() -> None:
    prefetch = attached(1, 2)
    arrive(prefetch, message(5), gaps=gaps((1, 4, "age")))
    prefetch.expire(2, "channel-2", "2026-01-01T00:00:00.000Z")
    batch = take(prefetch)
    assert told(batch) == [("channel-1", 1, 4, "age")]
    assert [expiry.channel for expiry in batch.expired] == ["channel-2"]
    prefetch.settle(batch, handed_off=True)
    assert prefetch.report_due() == Report(1, 1, {1: 5}, (2,))
    again = take(prefetch)
    assert (told(again), len(again.expired)) == ([], 1)
    assert prefetch.confirms(prefetch.arrival()) == 1
    assert take(prefetch).expired == ()


def test_an_expiry_survives_attaching_again() -> None:
    prefetch = attached(1, 2)
    prefetch.expire(2, "channel-2", "2026-01-01T00:00:00.000Z")
    prefetch.settle(take(prefetch), handed_off=True)
    assert prefetch.report_due() is not None
    prefetch.attached(OWN, 2, [row(1), row(2, expired_at="2026-01-01T00:00:00.000Z")])
    assert prefetch.report_due() == Report(1, 2, {}, (2,))


def test_naming_an_expired_channel_is_an_error_until_it_is_subscribed_again() -> None:
    prefetch = attached(1, 2)
    prefetch.expire(2, "channel-2", "2026-01-01T00:00:00.000Z")
    with pytest.raises(CursorExpiredError, match="subscribe again"):
        take(prefetch, "channel-2")
    prefetch.subscribed(3, "channel-2", 10)
    assert take(prefetch, "channel-2").is_empty


def test_only_a_call_that_arrived_later_confirms() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    early = prefetch.arrival()
    prefetch.settle(take(prefetch, count=1), handed_off=True)
    assert prefetch.report_due() is not None
    assert prefetch.confirms(early) == 0
    assert prefetch.confirms(prefetch.arrival()) == 1
    assert prefetch.confirms(prefetch.arrival()) == 0


def test_replay_gives_the_last_result_again_without_moving_anything() -> None:
    prefetch = attached(1)
    assert prefetch.replay(PLENTY).is_empty
    arrive(prefetch, message(1), message(2), message(3))
    prefetch.settle(take(prefetch, count=2), handed_off=True)
    assert prefetch.report_due() is not None
    prefetch.settle(take(prefetch), handed_off=False)
    replay = prefetch.replay(PLENTY)
    assert sequences(replay) == [1, 2]
    prefetch.settle(replay, handed_off=True)
    assert prefetch.report_due() is None
    assert sequences(take(prefetch)) == [3]


def test_a_replay_keeps_the_ceiling_of_the_call_that_asks_for_it() -> None:
    prefetch = attached(1)
    arrive(prefetch, *(message(n, "x" * 100) for n in (1, 2, 3)))
    prefetch.settle(take(prefetch), handed_off=True)
    replay = prefetch.replay(Budget(1000, 200, 10**9))
    assert sequences(replay) == [1]
    assert replay.more
    assert prefetch.replay(Budget(1000, 50, 10**9)).oversize


def test_unsubscribing_forgets_what_waits_and_what_is_under_way() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1), message(2))
    batch = take(prefetch, count=1)
    prefetch.left("channel-1")
    assert prefetch.credit_due()[0] == 1
    prefetch.settle(batch, handed_off=True)
    assert prefetch.credit_due()[0] == 1
    assert prefetch.report_due() is None


def test_own_messages_are_given_only_to_who_asks() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(2), through=3)
    assert prefetch.pull_positions((), own=True) == {1: 0}
    asked = (message(1, session=OWN), message(2), message(3, session=OWN))
    arrive(prefetch, *asked, pushed=False, own=True)
    batch = take(prefetch, count=1, own=True)
    assert sequences(batch) == [1]
    assert prefetch.pending == 1
    prefetch.settle(batch, handed_off=True)
    assert prefetch.pull_positions((), own=True) == {1: 1}
    assert sequences(take(prefetch)) == [2]


def test_own_messages_of_a_failed_result_come_again_to_who_asks() -> None:
    prefetch = attached(1)
    arrive(prefetch, message(1, session=OWN), message(2), pushed=False, own=True)
    prefetch.settle(take(prefetch, own=True), handed_off=False)
    assert sequences(take(prefetch, own=True)) == [1, 2]
