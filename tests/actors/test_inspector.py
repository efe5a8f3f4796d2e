"""Mutations on their way through the inspection command: ledger, desk and inspectors together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors import inspections, inspector
from actors.base import FutureReply, start_actor, stop_actor
from actors.inspections import LOGGED_CHARACTERS, InspectionDesk, InspectionStatistics
from actors.messages import Fence, MutationSettled, RateRefunded, Submit, Unfence
from actors.receipt_ledger import ReceiptLedgerActor
from agentbus.errors import (
    BusError,
    ConflictError,
    InspectionRejectedError,
    InspectionUnavailableError,
    NotFoundError,
    OverloadedError,
    RateLimitedError,
    StaleAttachmentError,
    UnavailableError,
)
from agentbus.identity import SessionIdentity
from agentbus.ids import RecoveryEpoch
from agentbus.limits import INSPECTIONS_AT_ONCE
from agentbus.rules.peer import KEY_REUSED
from agentbus.store.changes import BindSession, Change
from agentbus.store.ledger import LedgerStore
from tests.clock import FakeClock
from tests.eventually import PATIENCE_S, eventually
from tests.hooks import Hook, is_there
from tests.probe import Probe
from tests.store.bus import Speaker, config
from tests.store.peers import peer_change

ALLOW = 'read(); answer("allow")'
DENY = 'read(); answer("deny", "holds a key")'
SLOW = 'read(); note("hanging", ""); wait_for("go"); answer("allow")'
HANG = "read(); hang()"

BYTES = 100
"""What every mutation here has reserved."""


class Stage:
    """A ledger with an inspection command, between two probes."""

    def __init__(self, folder: Path, body: str, timeout_s: float) -> None:
        self.hook = Hook(folder / "hook", body)
        self.path = folder / "bus.sqlite3"
        self.projector, self.origin = Probe("projector"), Probe("origin")
        self.crashed: list[str] = []
        self.desk = InspectionDesk(
            self.hook.argv, timeout_s, lambda actor, _: self.crashed.append(actor)
        )
        self.actor = ReceiptLedgerActor(
            lambda: LedgerStore(self.path, config(folder), FakeClock()),
            self.projector.address,
            config(folder),
            self.desk,
        )
        self.ledger = start_actor(self.actor)
        self.ledger.tell(Unfence(RecoveryEpoch(1)))
        self.sam = self.attach("Sam")

    def tell(self, change: Change) -> FutureReply:
        reply = FutureReply()
        self.ledger.tell(Submit(change, reply, self.origin.address, BYTES))
        return reply

    def ask(self, change: Change) -> Any:
        return self.tell(change).get(20.0)

    def refused(self, change: Change) -> BusError:
        """It must be refused, refunded and settled."""
        with pytest.raises(BusError) as caught:
            self.ask(change)
        assert self.origin.expect(RateRefunded).size_bytes == BYTES
        self.origin.expect(MutationSettled)
        return caught.value

    def attach(self, agent: str) -> Speaker:
        return Speaker(self.ask(BindSession(agent, SessionIdentity("codex", agent), frozenset())))

    def wait(self, condition: Callable[[InspectionStatistics], bool]) -> None:
        eventually(lambda: condition(self.desk.statistics()))

    def runs(self) -> int:
        return len(self.hook.pids())

    def close(self) -> None:
        assert stop_actor(self.ledger, PATIENCE_S)
        self.desk.cancel()
        for address in self.desk.addresses:
            assert stop_actor(address, PATIENCE_S)
        self.desk.close()
        self.projector.stop()
        self.origin.stop()
        assert not any(map(is_there, self.hook.pids()))


@contextmanager
def stage_with(folder: Path, body: str, timeout_s: float = 20.0) -> Iterator[Stage]:
    stage = Stage(folder, body, timeout_s)
    try:
        yield stage
    finally:
        stage.close()


# --- verdicts ---


def test_an_allowed_mutation_is_committed_and_settled(tmp_path: Path) -> None:
    with stage_with(tmp_path, ALLOW) as stage:
        receipt = stage.ask(stage.sam.send("hello", tags=("a",)))
        assert (receipt["sequence"], receipt["duplicate"]) == (1, False)
        stage.origin.expect(MutationSettled)
        stage.origin.expect_nothing_of(RateRefunded, through=(stage.ledger,))
        (document,) = stage.hook.documents()
        assert document["operation"] == "send"
        assert document["payload"] == {"channel": "general", "content": "hello", "tags": ["a"]}
        assert document["sender"]["session_id"] == stage.sam.session_id
        assert document["sender"]["display_name"] == "Sam"
        assert stage.desk.statistics() == InspectionStatistics(allowed=1)


def test_a_denied_mutation_is_refused_with_the_reason_and_refunded(tmp_path: Path) -> None:
    with stage_with(tmp_path, DENY) as stage:
        error = stage.refused(stage.sam.send("sk-1"))
        assert isinstance(error, InspectionRejectedError)
        assert error.reason == "holds a key"
        assert not error.retryable
        assert stage.actor.ledger_statistics().last_sequence == 0
        assert stage.desk.statistics() == InspectionStatistics(denied=1)


def test_a_failed_inspection_allows_nothing_and_is_refunded(tmp_path: Path) -> None:
    with stage_with(tmp_path, 'read(); answer("allow"); sys.exit(7)') as stage:
        error = stage.refused(stage.sam.send())
        assert isinstance(error, InspectionUnavailableError)
        assert "it exited with 7" in error.message
        assert error.retryable
        assert stage.actor.ledger_statistics().last_sequence == 0
        assert stage.desk.statistics() == InspectionStatistics(failed=1)


def test_a_command_that_vanished_allows_nothing(tmp_path: Path) -> None:
    with stage_with(tmp_path, ALLOW) as stage:
        stage.hook.path.unlink()
        error = stage.refused(stage.sam.send())
        assert isinstance(error, InspectionUnavailableError)
        assert "No such file" in error.message
        stage.hook.write(ALLOW)
        assert stage.ask(stage.sam.send())["sequence"] == 1


def test_an_allowed_mutation_is_still_checked_by_the_commit(tmp_path: Path) -> None:
    with stage_with(tmp_path, ALLOW) as stage:
        error = stage.refused(stage.sam.send(channel="nowhere"))
        assert isinstance(error, NotFoundError)


def test_edits_and_deletions_of_memories_are_inspected(tmp_path: Path) -> None:
    with stage_with(tmp_path, ALLOW) as stage:
        stage.ask(stage.sam.make("facts", "memory"))
        memory = stage.ask(stage.sam.send("one", "facts", subject="s"))["message_id"]
        stage.ask(stage.sam.edit(memory, "two", subject=None))
        stage.ask(stage.sam.delete(memory))
        _, edit, delete = stage.hook.documents()
        assert (edit["operation"], delete["operation"]) == ("edit_memory", "delete_memory")
        assert edit["payload"] == {"memory_id": memory, "content": "two", "subject": None}
        assert delete["payload"] == {"memory_id": memory}


def test_channels_and_subscriptions_are_not_inspected(tmp_path: Path) -> None:
    with stage_with(tmp_path, DENY) as stage:
        stage.ask(stage.sam.make("plans"))
        stage.ask(stage.sam.subscribe("plans"))
        assert stage.runs() == 0
        stage.origin.expect_nothing_of(MutationSettled, through=(stage.ledger,))


# --- what is answered without the command ---


def test_a_repeat_is_answered_without_the_command(tmp_path: Path) -> None:
    with stage_with(tmp_path, ALLOW) as stage:
        first = stage.ask(stage.sam.send("hello", operation_id="op"))
        stage.origin.expect(MutationSettled)
        stage.hook.write(DENY)
        again = stage.ask(stage.sam.send("hello", operation_id="op"))
        assert again == {**first, "duplicate": True}
        assert stage.origin.expect(RateRefunded).size_bytes == BYTES
        stage.origin.expect(MutationSettled)
        assert stage.runs() == 1


def test_a_repeat_is_answered_though_the_rate_is_used_up(tmp_path: Path) -> None:
    with stage_with(tmp_path, ALLOW) as stage:
        stage.ask(stage.sam.send("hello", operation_id="op"))
        again = stage.ask(stage.sam.send("hello", operation_id="op", rate_ok=False))
        assert again["duplicate"] is True


def test_a_reused_operation_id_is_refused_without_the_command(tmp_path: Path) -> None:
    with stage_with(tmp_path, ALLOW) as stage:
        stage.ask(stage.sam.send("hello", operation_id="op"))
        stage.origin.expect(MutationSettled)
        assert isinstance(stage.refused(stage.sam.send("other", operation_id="op")), ConflictError)
        assert stage.runs() == 1


def test_the_rate_is_checked_before_the_command_runs(tmp_path: Path) -> None:
    with stage_with(tmp_path, ALLOW) as stage:
        assert isinstance(stage.refused(stage.sam.send(rate_ok=False)), RateLimitedError)
        assert stage.runs() == 0


def test_a_replaced_attachment_is_refused_without_the_command(tmp_path: Path) -> None:
    with stage_with(tmp_path, ALLOW) as stage:
        stage.attach("Sam")
        assert isinstance(stage.refused(stage.sam.send()), StaleAttachmentError)
        assert stage.runs() == 0


@pytest.mark.parametrize("body", [DENY, "sys.exit(1)"])
def test_a_retry_after_a_refusal_runs_the_command_again(tmp_path: Path, body: str) -> None:
    with stage_with(tmp_path, body) as stage:
        stage.refused(stage.sam.send("hello", operation_id="op"))
        stage.refused(stage.sam.send("hello", operation_id="op"))
        assert stage.runs() == 2
        stage.hook.write(ALLOW)
        assert stage.ask(stage.sam.send("hello", operation_id="op"))["duplicate"] is False


# --- while the command runs ---


def test_an_equal_mutation_in_flight_is_joined(tmp_path: Path) -> None:
    with stage_with(tmp_path, SLOW) as stage:
        replies = [stage.tell(stage.sam.send("hello", operation_id="op")) for _ in range(3)]
        eventually(lambda: bool(stage.hook.lines("hanging")))
        stage.hook.release("go")
        receipts = [reply.get(20.0) for reply in replies]
        assert {receipt["message_id"] for receipt in receipts} == {receipts[0]["message_id"]}
        assert [receipt["duplicate"] for receipt in receipts] == [False, True, True]
        assert stage.runs() == 1
        for _ in replies:
            stage.origin.expect(MutationSettled)


class HoldingReply(FutureReply):
    """Holds whoever answers until `let_go` is set."""

    __slots__ = ("let_go",)

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def set(self, value: Any) -> None:
        assert self.let_go.wait(20.0)
        super().set(value)


def test_a_repeat_right_behind_the_verdict_gets_the_first_receipt(tmp_path: Path) -> None:
    """The first is allowed and not committed yet when the second is looked at."""
    with stage_with(tmp_path, ALLOW) as stage:
        held = HoldingReply()
        first = stage.tell(stage.sam.send("hello", operation_id="op"))
        stage.ledger.tell(Submit(stage.sam.make("plans"), held))
        eventually(lambda: stage.ledger.statistics().mailbox_length == 1)  # the verdict
        second = stage.tell(stage.sam.send("hello", operation_id="op"))
        held.let_go.set()
        assert second.get(20.0) == {**first.get(20.0), "duplicate": True}
        assert stage.runs() == 1


def test_equal_mutations_in_flight_share_a_denial(tmp_path: Path) -> None:
    with stage_with(tmp_path, SLOW.replace("allow", "deny")) as stage:
        replies = [stage.tell(stage.sam.send("hello", operation_id="op")) for _ in range(2)]
        stage.hook.release("go")
        for reply in replies:
            with pytest.raises(InspectionRejectedError):
                reply.get(20.0)
            stage.origin.expect(RateRefunded)
        assert stage.runs() == 1


def test_another_call_of_an_operation_id_in_flight_is_a_conflict(tmp_path: Path) -> None:
    with stage_with(tmp_path, SLOW) as stage:
        first = stage.tell(stage.sam.send("hello", operation_id="op"))
        assert isinstance(stage.refused(stage.sam.send("other", operation_id="op")), ConflictError)
        stage.hook.release("go")
        assert first.get(20.0)["sequence"] == 1


def test_another_call_of_an_idempotency_key_in_flight_is_refused_in_the_words_of_peers(
    tmp_path: Path,
) -> None:
    with stage_with(tmp_path, SLOW) as stage:

        def reply(body: str) -> Change:
            return peer_change(
                stage.sam, "reply", delivery_id="d1", body=body, idempotency_key="key"
            )

        first = stage.tell(reply("one"))
        assert stage.refused(reply("other")).reason == KEY_REUSED
        stage.hook.release("go")
        with pytest.raises(NotFoundError):  # nobody sent it that delivery
            first.get(20.0)


def test_a_session_that_attached_anew_repeats_what_is_in_flight(tmp_path: Path) -> None:
    with stage_with(tmp_path, SLOW) as stage:
        old = stage.tell(stage.sam.send("hello", operation_id="op"))
        new = stage.tell(stage.attach("Sam").send("hello", operation_id="op"))
        stage.hook.release("go")
        with pytest.raises(StaleAttachmentError):
            old.get(20.0)
        assert new.get(20.0)["duplicate"] is False
        assert stage.runs() == 1


def test_an_attachment_replaced_meanwhile_commits_nothing(tmp_path: Path) -> None:
    with stage_with(tmp_path, SLOW) as stage:
        reply = stage.tell(stage.sam.send())
        stage.attach("Sam")
        stage.hook.release("go")
        with pytest.raises(StaleAttachmentError):
            reply.get(20.0)
        assert stage.actor.ledger_statistics().last_sequence == 0


def test_one_session_has_never_two_runs_at_once(tmp_path: Path) -> None:
    with stage_with(tmp_path, SLOW) as stage:
        stage.tell(stage.sam.send("old"))
        new = stage.tell(stage.attach("Sam").send("new"))
        other = stage.tell(stage.attach("Eva").send("other"))
        stage.wait(lambda counts: (counts.running, counts.waiting) == (2, 1))
        eventually(lambda: stage.runs() == 2)
        stage.hook.release("go")
        assert {other.get(20.0)["sequence"], new.get(20.0)["sequence"]} == {1, 2}
        assert stage.runs() == 3


def test_other_changes_are_committed_while_the_command_hangs(tmp_path: Path) -> None:
    with stage_with(tmp_path, HANG) as stage:
        stage.tell(stage.sam.send())
        eventually(lambda: bool(stage.hook.lines("hanging")))
        stage.ask(stage.sam.make("plans"))
        stage.ask(stage.sam.subscribe("plans"))
        assert stage.desk.statistics().running == 1


def test_forty_senders_share_thirty_two_runs(tmp_path: Path) -> None:
    with stage_with(tmp_path, SLOW, timeout_s=60) as stage:
        speakers = [stage.attach(f"agent{n}") for n in range(40)]
        replies = [stage.tell(speaker.send()) for speaker in speakers]
        stage.wait(lambda counts: (counts.running, counts.waiting) == (32, 8))
        eventually(lambda: len(stage.hook.lines("hanging")) == 32, within_s=30)
        assert stage.runs() == INSPECTIONS_AT_ONCE == len(stage.desk.addresses)
        stage.hook.release("go")
        assert sorted(reply.get(30.0)["sequence"] for reply in replies) == list(range(1, 41))
        assert stage.desk.statistics() == InspectionStatistics(allowed=40)
        assert len(stage.desk.addresses) == INSPECTIONS_AT_ONCE


def test_forty_senders_behind_hanging_runs_all_get_their_answer(tmp_path: Path) -> None:
    """The last eight wait for a whole timeout first, which is no part of their own."""
    with stage_with(tmp_path, HANG, timeout_s=2.0) as stage:
        speakers = [stage.attach(f"agent{n}") for n in range(40)]
        replies = [stage.tell(speaker.send()) for speaker in speakers]
        for reply in replies:
            with pytest.raises(InspectionUnavailableError, match="did not finish in time"):
                reply.get(30.0)
        assert stage.desk.statistics() == InspectionStatistics(failed=40)


def test_a_full_queue_answers_overloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspections, "INSPECTIONS_AT_ONCE", 1)
    monkeypatch.setattr(inspections, "INSPECTIONS_WAITING", 2)
    with stage_with(tmp_path, SLOW) as stage:
        speakers = [stage.attach(f"agent{n}") for n in range(4)]
        replies = [stage.tell(speaker.send()) for speaker in speakers[:3]]
        error = stage.refused(speakers[3].send())
        assert isinstance(error, OverloadedError)
        assert error.retry_after_ms
        stage.hook.release("go")
        # One run at a time, so in the order in which they came.
        assert [reply.get(20.0)["sequence"] for reply in replies] == [1, 2, 3]
        assert stage.ask(speakers[3].send())["sequence"] == 4


def test_inspectors_are_kept(tmp_path: Path) -> None:
    with stage_with(tmp_path, ALLOW) as stage:
        for number in range(1, 6):
            assert stage.ask(stage.sam.send())["sequence"] == number
        assert len(stage.desk.addresses) == 1


def test_a_failed_inspector_is_replaced_and_its_mutation_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage_with(tmp_path, ALLOW) as stage:
        with monkeypatch.context() as patch:
            patch.setattr(inspector, "build_document", lambda *_: 1 / 0)
            error = stage.refused(stage.sam.send())
        assert isinstance(error, InspectionUnavailableError)
        assert stage.ask(stage.sam.send())["sequence"] == 1
        eventually(lambda: stage.crashed == ["InspectorActor-1"])
        assert [address.name for address in stage.desk.addresses] == ["InspectorActor-2"]


def test_an_inspector_that_cannot_be_started_refuses_its_mutation_and_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with stage_with(tmp_path, ALLOW) as stage:
        with monkeypatch.context() as patch:
            patch.setattr(inspections, "start_actor", no_thread)
            error = stage.refused(stage.sam.send())
        assert isinstance(error, InspectionUnavailableError)
        assert "no thread" in error.message
        assert stage.ask(stage.sam.send())["sequence"] == 1
        assert stage.crashed == []
        statistics = stage.desk.statistics()
        assert (statistics.failed, statistics.allowed, statistics.running) == (1, 1, 0)


# --- fence and stop ---


def test_a_fence_answers_what_is_in_flight_and_ignores_its_verdict(tmp_path: Path) -> None:
    with stage_with(tmp_path, SLOW) as stage:
        reply = stage.tell(stage.sam.send("hello", operation_id="op"))
        eventually(lambda: bool(stage.hook.lines("hanging")))
        stage.ledger.tell(Fence(RecoveryEpoch(2), retry_after_ms=123))
        with pytest.raises(UnavailableError) as caught:
            reply.get(PATIENCE_S)
        assert caught.value.retry_after_ms == 123
        stage.origin.expect(RateRefunded)
        stage.origin.expect(MutationSettled)
        stage.ledger.tell(Unfence(RecoveryEpoch(2)))
        again = stage.tell(stage.sam.send("hello", operation_id="op"))
        stage.wait(lambda counts: counts.waiting == 1)  # the earlier run is not over
        stage.hook.release("go")
        assert again.get(20.0)["sequence"] == 1
        stage.wait(lambda counts: counts.allowed == 2)
        assert stage.actor.ledger_statistics().last_sequence == 1


def test_what_waits_when_the_fence_goes_up_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspections, "INSPECTIONS_AT_ONCE", 1)
    with stage_with(tmp_path, SLOW) as stage:
        replies = [stage.tell(stage.attach(name).send()) for name in ("Eva", "Tom")]
        stage.ledger.tell(Fence(RecoveryEpoch(2), retry_after_ms=1))
        for reply in replies:
            with pytest.raises(UnavailableError):
                reply.get(PATIENCE_S)
        stage.hook.release("go")
        stage.wait(lambda counts: counts == InspectionStatistics(allowed=1))
        assert stage.runs() == 1


def test_a_mutation_behind_the_fence_is_settled(tmp_path: Path) -> None:
    with stage_with(tmp_path, ALLOW) as stage:
        stage.ledger.tell(Fence(RecoveryEpoch(2), retry_after_ms=1))
        assert isinstance(stage.refused(stage.sam.send()), UnavailableError)
        assert stage.runs() == 0


def test_the_end_of_the_ledger_answers_what_is_in_flight(tmp_path: Path) -> None:
    with stage_with(tmp_path, HANG) as stage:
        replies = [stage.tell(stage.attach(name).send()) for name in ("Eva", "Tom")]
        eventually(lambda: len(stage.hook.lines("hanging")) == 2)
        assert stop_actor(stage.ledger, PATIENCE_S)
        for reply in replies:
            with pytest.raises(UnavailableError, match="stopping"):
                reply.get(PATIENCE_S)


# --- the log ---


def test_the_log_names_operation_and_session_but_nothing_of_the_payload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        stage_with(tmp_path, 'answer("deny", "line\\nline" + "x" * 900)') as stage,
    ):
        stage.refused(stage.sam.send("sk-secret", operation_id="op\n1"))
        stage.hook.write("sys.exit(4)")
        stage.refused(stage.sam.send("sk-secret", operation_id="op-2"))
    denied, failed = [r.getMessage() for r in caplog.records if r.name == inspections.__name__]
    assert f"operation 'op\\n1' of session {stage.sam.session_id} was denied: 'line\\nli" in denied
    assert len(denied.partition("denied: ")[2]) == LOGGED_CHARACTERS
    assert f"operation 'op-2' of session {stage.sam.session_id} failed: it exited with 4" in failed
    assert "sk-secret" not in caplog.text
