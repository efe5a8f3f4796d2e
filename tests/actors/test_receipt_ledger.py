"""The ledger through its mailbox: group commit, order, fence, refunds, an uncertain COMMIT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from actors.base import Address, FutureReply, start_actor, stop_actor
from actors.cleanup_messages import (
    CapacityChanged,
    CapacityReached,
    PruneWhileFenced,
    WatchCapacity,
)
from actors.messages import (
    CatchUp,
    Committed,
    Fence,
    LedgerMessage,
    ProjectionAdvanced,
    RateRefunded,
    Submit,
    SubscriptionsChanged,
    Unfence,
)
from actors.receipt_ledger import ReceiptLedgerActor
from agentbus.errors import (
    CapacityExhaustedError,
    ConflictError,
    NotFoundError,
    OverloadedError,
    RateLimitedError,
    UnavailableError,
    UnknownOutcomeError,
)
from agentbus.identity import SessionIdentity
from agentbus.ids import LeaseToken, RecoveryEpoch, Sequence
from agentbus.limits import BATCH_OPERATIONS
from agentbus.rules.peer import HUMAN_REQUIRED
from agentbus.store.changes import (
    BindSession,
    Change,
    MessageAppended,
    MoveCursors,
    PruneSlice,
    SubscriptionClosed,
    SubscriptionOpened,
)
from agentbus.store.ledger import LedgerStore
from agentbus.store.peer.changes import ClaimDelivery, DeliveryChanged
from agentbus.store.reader import Reader
from tests.clock import FakeClock
from tests.eventually import PATIENCE_S
from tests.probe import Probe, settle
from tests.store.bus import Speaker, config
from tests.store.peers import peer_change

FENCE_MS = 123


@dataclass
class Ledger:
    """The actor under test between two probes, on a file of its own."""

    path: Path
    actor: ReceiptLedgerActor
    address: Address[LedgerMessage]
    projector: Probe
    origin: Probe
    failures: list[BaseException]

    def start(self, *, fenced: bool = False) -> None:
        """Everything told before is in the mailbox already when it starts."""
        if not fenced:
            waiting = self.actor.actor_inbox
            told = [waiting.get() for _ in range(len(waiting))]
            for message in (Unfence(RecoveryEpoch(1)), *told):
                self.address.tell(message)
        start_actor(self.actor, crashed=lambda _, error: self.failures.append(error))

    def tell(self, change: Change, reserved_bytes: int = 0) -> FutureReply:
        reply = FutureReply()
        self.address.tell(Submit(change, reply, self.origin.address, reserved_bytes))
        return reply

    def ask(self, change: Change, reserved_bytes: int = 0) -> Any:
        return self.tell(change, reserved_bytes).get(PATIENCE_S)

    def attach(self, agent: str = "Sam") -> Speaker:
        bound = self.ask(BindSession(agent, SessionIdentity("codex", agent), frozenset()))
        self.origin.expect(SubscriptionsChanged)
        return Speaker(bound)


@contextmanager
def ledger_on(folder: Path, **settings: Any) -> Iterator[Ledger]:
    path = folder / "bus.sqlite3"
    with Probe("projector") as projector, Probe("origin") as origin:
        stores: list[LedgerStore] = []

        def open_store() -> LedgerStore:
            stores.append(LedgerStore(path, config(folder, **settings), FakeClock()))
            return stores[0]

        actor = ReceiptLedgerActor(open_store, projector.address, config(folder))
        yield Ledger(path, actor, actor.address, projector, origin, [])
        stop_actor(actor.address, PATIENCE_S)
        stores[0].close()  # what the end of the process does for a ledger that failed


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with ledger_on(tmp_path) as ledger:
        ledger.start()
        yield ledger


def test_a_drained_mailbox_is_one_commit(tmp_path: Path) -> None:
    with ledger_on(tmp_path) as first:
        first.start()
        sam = first.attach()
    with ledger_on(tmp_path) as ledger:
        replies = [ledger.tell(sam.send(f"m{n}")) for n in range(50)]
        ledger.start()
        assert [reply.get(PATIENCE_S)["sequence"] for reply in replies] == list(range(1, 51))
        committed = ledger.projector.expect(Committed)
        assert [f.sequence for f in committed.facts if isinstance(f, MessageAppended)] == list(
            range(1, 51)
        )
        assert committed.last_sequence == 50
        statistics = ledger.actor.ledger_statistics()
        assert (statistics.batches, statistics.largest_batch) == (1, 50)


def test_a_full_batch_is_committed_while_more_waits(tmp_path: Path) -> None:
    with ledger_on(tmp_path) as first:
        first.start()
        sam = first.attach()
    with ledger_on(tmp_path) as ledger:
        replies = [ledger.tell(sam.send(f"m{n}")) for n in range(BATCH_OPERATIONS + 7)]
        ledger.start()
        for reply in replies:
            reply.get(PATIENCE_S)
        sizes = [len(ledger.projector.expect(Committed).facts) for _ in range(2)]
        assert sizes == [BATCH_OPERATIONS, 7]


def test_a_lone_change_is_committed_at_once(ledger: Ledger) -> None:
    sam = ledger.attach()
    answer = ledger.ask(sam.send("hello"))
    assert answer["duplicate"] is False
    with closing(Reader(ledger.path)) as reader:
        assert reader.message(answer["message_id"]) is not None


def test_what_was_told_before_the_stop_is_committed(tmp_path: Path) -> None:
    with ledger_on(tmp_path) as first:
        first.start()
        sam = first.attach()
    with ledger_on(tmp_path) as ledger:
        replies = [ledger.tell(sam.send(f"m{n}")) for n in range(5)]
        ledger.start()
        assert stop_actor(ledger.address, PATIENCE_S)
        assert [reply.get(0)["sequence"] for reply in replies] == [1, 2, 3, 4, 5]
        assert len(ledger.projector.expect(Committed).facts) == 5


def test_facts_are_told_in_commit_order_and_never_for_refused_changes(ledger: Ledger) -> None:
    sam, ada = ledger.attach("Sam"), ledger.attach("Ada")
    while any(isinstance(message, Committed) for message in ledger.projector.received()):
        ledger.projector.expect(Committed)
    replies = [
        ledger.tell(sam.send("a")),
        ledger.tell(ada.send("lost", channel="nowhere")),
        ledger.tell(ada.send("b")),
        ledger.tell(sam.send("c")),
    ]
    with pytest.raises(NotFoundError):
        replies[1].get(PATIENCE_S)
    for reply in (replies[0], replies[2], replies[3]):
        reply.get(PATIENCE_S)
    settle(ledger.address)
    told = [m for m in ledger.projector.received() if isinstance(m, Committed)]
    sequences = [f.sequence for m in told for f in m.facts if isinstance(f, MessageAppended)]
    assert sequences == [1, 2, 3]


def test_equal_operations_in_one_batch_are_one_message(tmp_path: Path) -> None:
    with ledger_on(tmp_path) as first:
        first.start()
        sam = first.attach()
    with ledger_on(tmp_path) as ledger:
        replies = [ledger.tell(sam.send("once", operation_id="k"), 10) for _ in range(50)]
        ledger.start()
        answers = [reply.get(PATIENCE_S) for reply in replies]
        assert {answer["message_id"] for answer in answers} == {answers[0]["message_id"]}
        assert [answer["duplicate"] for answer in answers] == [False] + [True] * 49
        assert len(ledger.projector.expect(Committed).facts) == 1
        for _ in range(49):
            assert ledger.origin.expect(RateRefunded) == RateRefunded(10)
        ledger.origin.expect_nothing_of(RateRefunded, through=(ledger.address,))


def test_a_change_that_is_answered_by_an_error_is_committed_and_told(tmp_path: Path) -> None:
    """A refusal would have written nothing; this call has paused the work."""
    told: list[DeliveryChanged] = []
    with ledger_on(tmp_path, peer_max_extensions=0) as ledger:
        ledger.actor._tell_inboxes = told.append
        ledger.start()
        sam, ann = ledger.attach(), ledger.attach("Ann")
        ask: dict[str, Any] = {
            "to": ["Ann"],
            "body": "please",
            "kind": "request",
            "idempotency_key": "k",
        }
        ledger.ask(peer_change(sam, "send", **ask))
        token = LeaseToken("token")
        claimed = ledger.ask(ClaimDelivery(ann.attachment, ann.bound.agent_id, token))
        work = {"delivery_id": claimed.delivery["delivery_id"], "summary": "going on"}
        with pytest.raises(ConflictError) as caught:
            ledger.ask(peer_change(ann, "progress", token, **work, idempotency_key="l"), 10)
        assert caught.value.reason == HUMAN_REQUIRED
        assert [change.delivery.state for change in told] == ["queued", "leased", "paused"]
        assert ledger.ask(ann.send("next"), 10)["sequence"] == 2
        ledger.origin.expect_nothing_of(RateRefunded, through=(ledger.address,))  # it was charged


def test_what_is_not_charged_is_refunded(ledger: Ledger) -> None:
    sam = ledger.attach()
    ledger.ask(sam.send("once", operation_id="k"), 100)
    ledger.origin.expect_nothing_of(RateRefunded, through=(ledger.address,))

    assert ledger.ask(sam.send("once", operation_id="k"), 100)["duplicate"] is True
    assert ledger.origin.expect(RateRefunded) == RateRefunded(100)

    with pytest.raises(ConflictError):
        ledger.ask(sam.send("other", operation_id="k"), 101)
    assert ledger.origin.expect(RateRefunded) == RateRefunded(101)

    with pytest.raises(RateLimitedError):  # nothing was reserved, so nothing comes back
        ledger.ask(sam.send("late", rate_ok=False))
    ledger.origin.expect_nothing_of(RateRefunded, through=(ledger.address,))


def test_a_receipt_answers_before_the_rate_does(ledger: Ledger) -> None:
    sam = ledger.attach()
    first = ledger.ask(sam.send("once", operation_id="k"))
    again = ledger.ask(sam.send("once", operation_id="k", rate_ok=False))
    assert again == first | {"duplicate": True}


def test_nothing_is_accepted_before_the_first_unfence(tmp_path: Path) -> None:
    with ledger_on(tmp_path) as ledger:
        bind = BindSession("Sam", SessionIdentity("codex", "c1"), frozenset())
        ledger.start(fenced=True)
        with pytest.raises(UnavailableError, match="starting or recovering"):
            ledger.ask(bind)
        ledger.address.tell(Unfence(RecoveryEpoch(1)))
        assert ledger.ask(bind).generation == 1


def test_a_fence_lets_pass_what_moves_cursors_by_what_was_committed_before(ledger: Ledger) -> None:
    sam = ledger.attach()
    ledger.ask(sam.send("a"))
    general = ledger.ask(MoveCursors(sam.attachment, renewed=(1, 2)))[0].subscription_id
    ledger.address.tell(Fence(RecoveryEpoch(5), FENCE_MS))
    with pytest.raises(UnavailableError):
        ledger.ask(MoveCursors(sam.attachment, {general: Sequence(1)}))
    exposed = MoveCursors(sam.attachment, exposed={general: Sequence(99)})
    (row,) = ledger.ask(exposed)
    assert (row.handed_off, row.confirmed) == (1, 0)
    (row,) = ledger.ask(MoveCursors(sam.attachment, confirmed={general: Sequence(1)}))
    assert (row.handed_off, row.confirmed) == (1, 1)


def test_a_fence_commits_what_came_before_and_refuses_what_comes_after(ledger: Ledger) -> None:
    sam = ledger.attach()
    ledger.projector.received()
    before = ledger.tell(sam.send("before"))
    ledger.address.tell(Fence(RecoveryEpoch(5), FENCE_MS))
    after = ledger.tell(sam.send("after", operation_id="later"), 77)
    assert before.get(PATIENCE_S)["sequence"] == 1
    with pytest.raises(UnavailableError) as refused:
        after.get(PATIENCE_S)
    assert refused.value.retry_after_ms == FENCE_MS
    assert ledger.origin.expect(RateRefunded) == RateRefunded(77)
    committed, catch_up = ledger.projector.received()[-2:]
    assert isinstance(committed, Committed)
    assert committed.last_sequence == 1
    assert catch_up == CatchUp(RecoveryEpoch(5), Sequence(1), ledger.address)

    ledger.address.tell(Unfence(RecoveryEpoch(4)))  # of an older recovery
    with pytest.raises(UnavailableError):
        ledger.ask(sam.send("after", operation_id="later"))
    ledger.address.tell(Unfence(RecoveryEpoch(5)))
    assert ledger.ask(sam.send("after", operation_id="later"))["duplicate"] is False


def test_the_asker_hears_of_its_subscription_changes_after_the_answer(ledger: Ledger) -> None:
    sam = ledger.attach()
    ledger.ask(sam.make("work"))
    ledger.origin.expect_nothing_of(SubscriptionsChanged, through=(ledger.address,))
    opened = ledger.ask(sam.subscribe("work"))
    (fact,) = ledger.origin.expect(SubscriptionsChanged).facts
    assert isinstance(fact, SubscriptionOpened)
    assert fact.subscription.subscription_id == opened["subscription_id"]
    ledger.ask(sam.unsubscribe("work"))
    (fact,) = ledger.origin.expect(SubscriptionsChanged).facts
    assert isinstance(fact, SubscriptionClosed)


def test_a_commit_that_raises_is_unknown_for_the_whole_batch_and_ends_the_ledger(
    tmp_path: Path, armed: Callable[[str], None]
) -> None:
    with ledger_on(tmp_path) as first:
        first.start()
        sam = first.attach()
    with ledger_on(tmp_path) as ledger:
        armed("commit:raise")
        replies = [ledger.tell(sam.send(f"m{n}", operation_id=f"k{n}")) for n in range(3)]
        ledger.start()
        for reply in replies:
            with pytest.raises(UnknownOutcomeError, match="same operation id"):
                reply.get(PATIENCE_S)
        late = ledger.tell(sam.send("late"))
        with pytest.raises(UnavailableError):
            late.get(PATIENCE_S)
        ledger.actor.actor_stopped.wait(PATIENCE_S)
        ledger.projector.expect_nothing_of(Committed)
    assert [type(error).__name__ for error in ledger.failures] == ["CommitUncertain"]

    armed("")
    with ledger_on(tmp_path) as reopened:
        reopened.start()
        answers = [reopened.ask(sam.send(f"m{n}", operation_id=f"k{n}")) for n in range(3)]
        assert [answer["duplicate"] for answer in answers] == [False] * 3  # the truth of the disk


def test_a_failure_before_commit_refuses_the_batch_and_the_next_one_passes(
    ledger: Ledger, armed: Callable[[str], None]
) -> None:
    sam = ledger.attach()
    armed("before_commit:raise")
    with pytest.raises(UnavailableError, match="nothing was stored"):
        ledger.ask(sam.send("m", operation_id="k"), 9)
    assert ledger.origin.expect(RateRefunded) == RateRefunded(9)
    armed("")
    assert ledger.ask(sam.send("m", operation_id="k"))["duplicate"] is False


@contextmanager
def tiny_ledger(folder: Path) -> Iterator[tuple[Ledger, Speaker, Probe]]:
    """One whose budget of 1 MiB is all but full, and the scheduler's probe."""
    with ledger_on(folder, sqlite_budget_mib=1, max_message_kib=1024) as ledger, Probe() as watcher:
        ledger.start()
        ledger.address.tell(WatchCapacity(watcher.address))
        sam = ledger.attach()
        ledger.ask(sam.send("x" * 1_000_000, operation_id="first"))
        yield ledger, sam, watcher


def is_answered(reply: FutureReply) -> bool:
    try:
        reply.get(0)
    except TimeoutError:
        return False
    return True


LARGE = "x" * 100_000
OLDEST = PruneSlice("messages_by_capacity", 500, free_bytes=1)


def test_what_finds_no_room_waits_in_order_and_goes_on_when_there_is_some(tmp_path: Path) -> None:
    with tiny_ledger(tmp_path) as (ledger, sam, watcher):
        waiting = [ledger.tell(sam.send(LARGE), 9), ledger.tell(sam.send("small"), 9)]
        reached = watcher.expect(CapacityReached)
        assert (reached.budget, reached.needed_bytes > 100_000) == ("sqlite", True)
        later = ledger.tell(sam.send("later"), 9)
        repeat = ledger.ask(sam.send("x" * 1_000_000, operation_id="first"))
        assert repeat["duplicate"]
        ledger.ask(sam.subscribe("general"))
        settle(ledger.address)
        assert not any(map(is_answered, (*waiting, later)))
        ledger.ask(OLDEST)
        sequences = [reply.get(PATIENCE_S)["sequence"] for reply in (*waiting, later)]
        assert sequences == [2, 3, 4]
        watcher.expect_nothing_of(CapacityReached, through=(ledger.address,))


def test_when_no_room_can_be_made_those_who_wait_are_refused_and_refunded(tmp_path: Path) -> None:
    with tiny_ledger(tmp_path) as (ledger, sam, watcher):
        reply = ledger.tell(sam.send(LARGE), 9)
        watcher.expect(CapacityReached)
        ledger.address.tell(CapacityChanged(exhausted=frozenset({"sqlite"})))
        for refused in (reply, ledger.tell(sam.send(LARGE), 9)):
            with pytest.raises(CapacityExhaustedError, match="sqlite_budget_mib"):
                refused.get(PATIENCE_S)
            assert ledger.origin.expect(RateRefunded) == RateRefunded(9)
        assert ledger.ask(sam.send("small enough"))["sequence"] == 2
        watcher.expect_nothing_of(CapacityReached, through=(ledger.address,))


def test_a_full_budget_is_told_again_when_the_answer_made_no_room(tmp_path: Path) -> None:
    with tiny_ledger(tmp_path) as (ledger, sam, watcher):
        ledger.tell(sam.send(LARGE))
        watcher.expect(CapacityReached)
        ledger.address.tell(CapacityChanged())
        watcher.expect(CapacityReached)


def test_new_mutations_wait_for_redis_and_are_refused_when_it_is_exhausted(
    ledger: Ledger,
) -> None:
    sam = ledger.attach()
    done = sam.send("before", operation_id="k")
    ledger.ask(done)
    ledger.address.tell(CapacityChanged(waiting=frozenset({"redis"})))
    replies = [ledger.tell(sam.send("waits")) for _ in range(2)]
    assert ledger.ask(done)["duplicate"]
    assert not any(map(is_answered, replies))
    ledger.address.tell(CapacityChanged())
    assert [reply.get(PATIENCE_S)["sequence"] for reply in replies] == [2, 3]
    ledger.address.tell(CapacityChanged(exhausted=frozenset({"redis"})))
    with pytest.raises(CapacityExhaustedError, match="redis_budget_mib"):
        ledger.ask(sam.send("refused"))
    assert ledger.ask(done)["duplicate"]
    ledger.ask(sam.subscribe("general"))


def test_a_fence_and_the_end_answer_those_who_wait(tmp_path: Path) -> None:
    with tiny_ledger(tmp_path) as (ledger, sam, _):
        waits = ledger.tell(sam.send(LARGE))
        ledger.address.tell(Fence(RecoveryEpoch(2), FENCE_MS))
        with pytest.raises(UnavailableError):
            waits.get(PATIENCE_S)
        ledger.address.tell(Unfence(RecoveryEpoch(2)))
        waits = ledger.tell(sam.send(LARGE))
        settle(ledger.address)
        stop_actor(ledger.address, PATIENCE_S)
        with pytest.raises(UnavailableError, match="stopping"):
            waits.get(PATIENCE_S)


def test_slices_pass_only_the_fence_that_they_name(tmp_path: Path) -> None:
    with tiny_ledger(tmp_path) as (ledger, _, _watcher):
        for epoch, passes in ((2, False), (3, True)):
            ledger.address.tell(Fence(RecoveryEpoch(3), FENCE_MS))
            reply = FutureReply()
            ledger.address.tell(PruneWhileFenced(RecoveryEpoch(epoch), OLDEST, reply))
            if passes:
                assert reply.get(PATIENCE_S).removed_rows == 1
            else:
                with pytest.raises(UnavailableError):
                    reply.get(PATIENCE_S)
        with pytest.raises(UnavailableError):
            ledger.ask(OLDEST)


def test_a_projection_that_falls_behind_holds_senders_back_until_it_advances(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger.actor, "_unprojected_limit_bytes", 2000)
    sam = ledger.attach()
    ledger.projector.received()
    for number in range(3):
        ledger.ask(sam.send("x" * 600, operation_id=f"fills {number}"))
    waiting = sum(m.size_bytes for m in ledger.projector.received() if isinstance(m, Committed))
    assert waiting > 2000
    refused = ledger.tell(sam.send("one too many", operation_id="again"), 77)
    with pytest.raises(OverloadedError) as overloaded:
        refused.get(PATIENCE_S)
    assert overloaded.value.retryable
    assert ledger.origin.expect(RateRefunded) == RateRefunded(77)

    ledger.address.tell(ProjectionAdvanced(RecoveryEpoch(9), waiting))  # of another recovery
    with pytest.raises(OverloadedError):
        ledger.ask(sam.send("one too many", operation_id="again"))
    ledger.address.tell(ProjectionAdvanced(RecoveryEpoch(0), waiting))
    assert ledger.ask(sam.send("one too many", operation_id="again"))["sequence"] == 4
