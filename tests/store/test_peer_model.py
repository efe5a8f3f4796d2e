"""Directed work against a model: whatever happens in whatever order, no lease is held twice."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentbus.ids import DeliveryId, LeaseToken
from agentbus.limits import PEER_ATTEMPTS
from agentbus.rules.peer import (
    CONSULTATION_BUDGET,
    CONSULTATION_CYCLE,
    DELIVERY_UNAVAILABLE,
    HUMAN_REQUIRED,
    STALE_LEASE,
)
from agentbus.store.changes import Done, Refused
from agentbus.store.peer.changes import AbandonLease, CloseWindow, Decide
from tests.store.bus import Bus
from tests.store.peers import Peer, deliveries, intervention, require_exact_accounting

EXTENSIONS = 2
OPEN = ("queued", "leased", "paused")
WHO = st.integers(0, 4)
WHICH = st.integers(0, 11)
OPS = st.sampled_from(("reply", "part", "progress", "checkpoint", "human", "ack"))


@dataclass(frozen=True, slots=True)
class Work:
    """What must be true of a delivery. Sessions are numbers; an agent is the number of its first.

    `tokens`: all that it was ever leased by, the last one that in force while it is leased.
    `holding`: session and generation of the last claim.
    """

    sender: int
    agent: int
    session: int | None
    kind: str
    parent: str | None = None
    state: str = "queued"
    holding: tuple[int, int] | None = None
    attempt: int = 0
    extensions: int = 0
    tokens: tuple[LeaseToken, ...] = ()
    reply_state: str | None = None


class PeerModel(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.bus = Bus(
            Path(self.folder.name), sqlite_synchronous="normal", peer_max_extensions=EXTENSIONS
        )
        self.peers = [
            Peer(self.bus, agent, conversation)
            for agent, conversation in (
                ("Sam", "1"),
                ("Sam", "2"),
                ("Ann", "3"),
                ("Ann", "4"),
                ("Kim", "5"),
            )
        ]
        self.agents = [0, 0, 2, 2, 4]
        self.work: dict[str, Work] = {}  # in the order in which it was sent
        self.asked: Counter[tuple[int, str]] = Counter()

    # --- what sessions do ---

    @rule(who=WHO, to=WHO, one_session=st.booleans(), kind=st.sampled_from(("request", "info")))
    def send(self, who: int, to: int, one_session: bool, kind: str) -> None:
        if one_session and who == to:
            return
        sender, recipient = self.peers[who], self.peers[to]
        word = recipient.session_id if one_session else recipient.agent
        (outcome,) = self.bus.store.apply([sender.sending(word, kind=kind)])
        held = self.held_by(who)
        if kind == "request":
            if self.agents[to] in self.waiting_for(held):
                assert isinstance(outcome, Refused)
                assert outcome.error.reason == CONSULTATION_CYCLE
                return
            scope = held if held is not None and self.work[held].state != "paused" else ""
            if self.asked[who, scope] == 4:
                assert isinstance(outcome, Refused)
                assert outcome.error.reason == CONSULTATION_BUDGET
                return
            self.asked[who, scope] += 1
        assert isinstance(outcome, Done)
        (one,) = outcome.result["recipients"]
        self.work[one["delivery_id"]] = Work(
            who,
            self.agents[to],
            to if one_session else None,
            kind,
            held,
            reply_state="awaiting" if kind == "request" else None,
        )

    @rule(who=WHO)
    def wait(self, who: int) -> None:
        peer = self.peers[who]
        expected = self.next_for(who)
        claimed = peer.wait()
        if expected is None:
            assert claimed.delivery is None
            return
        assert claimed.delivery is not None
        assert claimed.delivery["delivery_id"] == expected
        assert claimed.token is not None
        work = self.work[expected]
        holding = (who, peer.speaker.attachment.generation)
        goes_on = work.state == "leased" or (work.attempt > 0 and work.holding == holding)
        self.change(
            expected,
            state="leased",
            holding=holding,
            attempt=work.attempt if goes_on else work.attempt + 1,
            extensions=work.extensions if goes_on else 0,
            tokens=(*work.tokens, claimed.token),
        )

    @precondition(lambda self: any(work.state == "leased" for work in self.work.values()))
    @rule(which=WHICH, op=OPS, old_token=st.booleans())
    def go_on(self, which: int, op: str, old_token: bool) -> None:
        """The holder does something with its work, or believes so."""
        leased = [key for key, work in self.work.items() if work.state == "leased"]
        delivery_id = leased[which % len(leased)]
        self.act(self.number_of(self.work[delivery_id]), delivery_id, op, old_token)

    @precondition(lambda self: self.work)
    @rule(who=WHO, which=WHICH, op=OPS)
    def meddle(self, who: int, which: int, op: str) -> None:
        """Whoever it is, with whatever work, and the newest token that there was."""
        self.act(who, list(self.work)[-1 - which % len(self.work)], op, False)

    def act(self, who: int, delivery_id: str, op: str, old_token: bool) -> None:
        work, peer = self.work[delivery_id], self.peers[who]
        if self.agents[who] != work.agent:
            assert self.bus.refused(peer.held("ack", delivery_id)).code == "not_found"
            return
        args: dict[str, Any] = {"ack": False} if op == "part" else {}
        name = "reply" if op == "part" else op
        tokens = [LeaseToken("none"), *work.tokens]
        change = peer.held(name, delivery_id, token=tokens[-2 if old_token else -1], **args)
        (outcome,) = self.bus.store.apply([change])
        holds = work.state == "leased" and work.holding is not None and work.holding[0] == who
        if holds and not old_token:
            self.did(delivery_id, work, op, outcome)
        elif work.state == "acked" and op == "ack":
            assert isinstance(outcome, Done)
            assert outcome.result["duplicate"]
        else:
            error = outcome.error if isinstance(outcome, (Done, Refused)) else None
            assert error is not None
            assert error.reason == {
                "queued": STALE_LEASE,
                "leased": STALE_LEASE,
                "paused": HUMAN_REQUIRED,
            }.get(work.state, DELIVERY_UNAVAILABLE)

    def did(self, delivery_id: str, work: Work, op: str, outcome: Any) -> None:
        """What an operation of the holder has made of it."""
        assert isinstance(outcome, Done)
        if op in ("reply", "part"):
            if work.reply_state is not None:
                self.change(delivery_id, reply_state="replied")
            if op == "reply":
                self.change(delivery_id, state="acked")
            (one,) = outcome.result["recipients"]
            self.work[one["delivery_id"]] = Work(
                self.number_of(work), self.agents[work.sender], work.sender, "response", delivery_id
            )
        elif op == "ack":
            self.change(delivery_id, state="acked")
        elif op == "human":
            self.change(delivery_id, state="paused")
        elif work.extensions == EXTENSIONS:
            assert outcome.error is not None
            self.change(delivery_id, state="paused")
        else:
            assert outcome.result["extension_count"] == work.extensions + 1
            self.change(delivery_id, extensions=work.extensions + 1)

    @rule(who=WHO)
    def attach_again(self, who: int) -> None:
        self.peers[who].attach()

    # --- what time and people do ---

    @precondition(lambda self: any(work.tokens for work in self.work.values()))
    @rule(which=WHICH, old_token=st.booleans(), window=st.booleans())
    def end(self, which: int, old_token: bool, window: bool) -> None:
        """Of a lease or of its processing window, or of one that was before."""
        leased = [key for key, work in self.work.items() if work.tokens]
        delivery_id = leased[which % len(leased)]
        work = self.work[delivery_id]
        (row,) = [row for row in deliveries(self.bus) if row.id == delivery_id]
        token = work.tokens[0 if old_token else -1]
        in_force = work.state == "leased" and token == work.tokens[-1]
        change = (
            CloseWindow(row.id, token, row.deadline_us or 0)
            if window
            else AbandonLease(row.id, token)
        )
        assert self.bus.done(change).result is in_force
        if in_force:
            if window and work.kind != "request":
                self.change(delivery_id, state="queued", extensions=0)
            else:
                pauses = window or work.attempt >= PEER_ATTEMPTS
                self.change(delivery_id, state="paused" if pauses else "queued")

    @precondition(lambda self: any(work.state == "paused" for work in self.work.values()))
    @rule(which=WHICH, action=st.sampled_from(("approve", "redirect", "reject", "cancel")))
    def decide(self, which: int, action: Any) -> None:
        paused = [key for key, work in self.work.items() if work.state == "paused"]
        delivery_id = paused[which % len(paused)]
        asked = intervention(self.bus, delivery_id)
        text = "do it otherwise" if action == "redirect" else None
        change = Decide(asked.id, asked.version, action, "a person", text)
        self.bus.done(change)
        self.bus.refused(change)
        if action in ("approve", "redirect"):
            self.change(delivery_id, state="queued", attempt=0, extensions=0)
            return
        tracked = self.work[delivery_id].reply_state
        self.change(
            delivery_id,
            state="rejected" if action == "reject" else "cancelled",
            reply_state="cancelled" if tracked == "awaiting" else tracked,
        )

    @rule()
    def restart(self) -> None:
        self.bus.reopen()

    # --- the model's own rules ---

    def change(self, delivery_id: str, **fields: Any) -> None:
        self.work[delivery_id] = replace(self.work[delivery_id], **fields)

    @staticmethod
    def number_of(work: Work) -> int:
        assert work.holding is not None
        return work.holding[0]

    def held_by(self, who: int) -> str | None:
        mine = [
            (OPEN.index(work.state) if work.state != "queued" else 3, delivery_id)
            for delivery_id, work in self.work.items()
            if work.state in OPEN and work.holding is not None and work.holding[0] == who
        ]
        return min(mine)[1] if mine else None

    def waiting_for(self, held: str | None) -> set[int]:
        """Agents that wait for this work to be answered."""
        agents = set()
        while held is not None and self.work[held].kind == "request":
            agents.add(self.agents[self.work[held].sender])
            held = self.work[held].parent
        return agents

    def next_for(self, who: int) -> str | None:
        held = self.held_by(who)
        if held is not None and self.work[held].state != "queued":
            return held if self.work[held].state == "leased" else None
        taken = any(
            work.agent == self.agents[who]
            and work.session is None
            and work.state in ("leased", "paused")
            for work in self.work.values()
        )
        for delivery_id, work in self.work.items():
            if (
                work.state == "queued"
                and work.agent == self.agents[who]
                and work.sender != who
                and (work.session == who or (work.session is None and not taken))
            ):
                return delivery_id
        return None

    # --- what must be so ---

    @invariant()
    def the_rows_are_those_of_the_model(self) -> None:
        if not hasattr(self, "work"):
            return
        rows = {row.id: row for row in deliveries(self.bus)}
        assert list(rows) == list(self.work)
        for delivery_id, work in self.work.items():
            row = rows[DeliveryId(delivery_id)]
            assert (row.state, row.attempt, row.extensions, row.reply_state) == (
                work.state,
                work.attempt,
                work.extensions,
                work.reply_state,
            )
            assert row.token == (work.tokens[-1] if work.state == "leased" else None)
            assert row.parent == work.parent
            assert (row.intervention is None) or work.tokens
        require_exact_accounting(self.bus)

    @invariant()
    def nothing_is_held_twice(self) -> None:
        if not hasattr(self, "work"):
            return
        claimed = [work for work in self.work.values() if work.state in ("leased", "paused")]
        sessions = Counter(self.number_of(work) for work in claimed)
        agents = Counter(work.agent for work in claimed if work.session is None)
        assert max(sessions.values(), default=0) <= 1
        assert max(agents.values(), default=0) <= 1
        tokens = [token for work in self.work.values() for token in work.tokens]
        assert len(set(tokens)) == len(tokens)

    def teardown(self) -> None:
        if hasattr(self, "bus"):
            self.bus.close()
            self.folder.cleanup()


@pytest.mark.timeout(180)  # some thousand commits, on a disk that others use
def test_whatever_happens_no_lease_is_held_twice_and_every_word_is_true() -> None:
    run_state_machine_as_test(
        PeerModel,
        settings=settings(
            max_examples=40,
            stateful_step_count=50,
            derandomize=True,  # a failure is one wherever the test runs
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
