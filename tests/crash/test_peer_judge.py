"""The judge of directed work: what is wrong with a history is found, and nothing else is.

The honest one: Ann asks; Bob claims the request and stands still; his other session claims it too,
reports progress and answers; Ann takes the answer and acknowledges it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.attempts import Attempt
from tests.crash.history import History
from tests.crash.journal import Entry
from tests.crash.judge import judge
from tests.crash.peer_history import Claim, Decided, PeerHistory, PeerKind, PeerOperation, Shown
from tests.crash.truth import Stored, Truth, Verdict

REQUEST = Entry(
    delivery_id="d-ask",
    message_id="m-ask",
    sequence=1,
    kind="request",
    reply_to=None,
    sender_session="s-ann",
    recipient_agent="a-bob",
    recipient_session=None,
    state="queued",
    holder=None,
    holder_generation=None,
    token=None,
    attempt=0,
    extensions=0,
    reply_state="awaiting",
    reply_message_id=None,
    late_reply_message_id=None,
)
FIRST = REQUEST._replace(
    state="leased", holder="s-bob1", holder_generation=1, token="t1", attempt=1
)
LAPSED = FIRST._replace(state="queued", token=None)
SECOND = FIRST._replace(holder="s-bob2", token="t2", attempt=2)
EXTENDED = SECOND._replace(extensions=1)
REPLIED = EXTENDED._replace(reply_state="replied", reply_message_id="m-answer")
DONE = REPLIED._replace(state="acked", token=None)
ANSWER = REQUEST._replace(
    delivery_id="d-answer",
    message_id="m-answer",
    sequence=2,
    kind="response",
    reply_to="m-ask",
    sender_session="s-bob2",
    recipient_agent="a-ann",
    recipient_session="s-ann",
    reply_state=None,
)
TAKEN = ANSWER._replace(state="leased", holder="s-ann", holder_generation=2, token="t3", attempt=1)
READ = TAKEN._replace(state="acked", token=None)
JOURNAL = [REQUEST, FIRST, LAPSED, SECOND, EXTENDED, ANSWER, REPLIED, DONE, TAKEN, READ]


def operation(
    client: str, kind: PeerKind, mark: str, at_s: float, token: str | None = None, **answer: Any
) -> PeerOperation:
    delivery = {"t1": "d-ask", "t2": "d-ask", "t3": "d-answer"}.get(token or "")
    done = PeerOperation(client, kind, mark, mark, delivery_id=delivery)
    done.finishes = kind in ("reply", "ack")
    done.tokens = [token]
    done.attempts = [Attempt(at_s, at_s + 0.5, "ok", "first")]
    done.answers = [{"duplicate": False, **answer}]
    return done


def claim(client: str, token: str, attempt: int, at_s: float) -> Claim:
    of = ("d-answer", "m-answer", "response", "answer")
    if client != "adapter-ann":
        of = ("d-ask", "m-ask", "request", "ask")
    return Claim(client, 1, *of, attempt, token, at_s, at_s + 0.5)


def honest() -> tuple[PeerHistory, Truth]:
    history = PeerHistory(
        operations=[
            operation("adapter-ann", "send", "ask", 1, message_id="m-ask"),
            operation("bob2", "progress", "half", 11, "t2", extension_count=1),
            operation("bob2", "reply", "answer", 12, "t2", message_id="m-answer"),
            operation("adapter-ann", "ack", "thanks", 14, "t3"),
        ],
        claims=[
            claim("bob1", "t1", 1, 2),
            claim("bob2", "t2", 2, 10),
            claim("adapter-ann", "t3", 1, 13),
        ],
        shown=[Shown("adapter-ann", 1, "m-answer", "wait", False, 13.5)],
        agents={"adapter-ann": "Ann", "bob1": "Bob", "bob2": "Bob"},
    )
    truth = Truth(
        rows=[],
        direct=[
            Stored(1, "m-ask", "@Bob", "ask"),
            Stored(2, "m-answer", "@Ann", "answer"),
        ],
        journal=list(JOURNAL),
        sessions={"s-ann": "adapter-ann", "s-bob1": "bob1", "s-bob2": "bob2"},
        agents={"a-ann": "Ann", "a-bob": "Bob"},
    )
    return history, truth


def judged(history: PeerHistory, truth: Truth) -> Verdict:
    return judge(History(peer=history), truth)


def found(verdict: Verdict) -> set[str]:
    return {finding.kind for finding in verdict.findings}


def test_an_honest_exchange_is_clean_and_everything_has_its_class() -> None:
    verdict = judged(*honest())
    assert verdict.findings == []
    counts = {name: count for name, count in verdict.counts.items() if count}
    assert counts == {"ok": 2, "claimed": 3, "taken_over": 1, "answered": 1}


Forgery = Callable[[PeerHistory, Truth], object]


def a_lost_request(history: PeerHistory, truth: Truth) -> None:
    truth.journal.clear()
    truth.direct.clear()


def a_request_that_vanished(history: PeerHistory, truth: Truth) -> None:
    del truth.direct[0]


def a_lost_reply(history: PeerHistory, truth: Truth) -> None:
    history.shown.clear()


def a_reply_that_was_only_mentioned(history: PeerHistory, truth: Truth) -> None:
    history.shown[:] = [Shown("adapter-ann", 1, "m-answer", "collect", True, 13.5)]


def a_reply_that_its_request_does_not_know(history: PeerHistory, truth: Truth) -> None:
    truth.journal.remove(REPLIED)
    truth.journal[truth.journal.index(DONE)] = EXTENDED._replace(state="acked", token=None)


def an_end_that_was_accepted_and_forgotten(history: PeerHistory, truth: Truth) -> None:
    truth.journal.remove(DONE)


def a_reply_that_was_never_sent(history: PeerHistory, truth: Truth) -> None:
    truth.journal[truth.journal.index(DONE)] = DONE._replace(reply_message_id="m-other")


def two_effects_of_one_key(history: PeerHistory, truth: Truth) -> None:
    truth.direct.append(Stored(3, "m-again", "@Ann", "answer"))


def two_answers_to_one_key(history: PeerHistory, truth: Truth) -> None:
    history.operations[2].answers.append({"duplicate": True, "message_id": "m-again"})


def progress_that_counted_twice(history: PeerHistory, truth: Truth) -> None:
    history.operations[1].answers.append({"duplicate": True, "extension_count": 2})


def an_answer_shown_twice(history: PeerHistory, truth: Truth) -> None:
    history.shown.append(Shown("adapter-ann", 1, "m-answer", "collect", False, 15))


def an_answer_collected_and_then_delivered(history: PeerHistory, truth: Truth) -> None:
    history.shown.insert(0, Shown("adapter-ann", 1, "m-answer", "collect", False, 13))


def a_message_of_nobody(history: PeerHistory, truth: Truth) -> None:
    del history.operations[0]


def a_message_that_was_refused(history: PeerHistory, truth: Truth) -> None:
    history.operations[0].attempts[0].outcome = "fail"


def a_claim_of_nothing(history: PeerHistory, truth: Truth) -> None:
    history.claims.append(claim("bob1", "t9", 3, 20))


def left_in_the_queue(history: PeerHistory, truth: Truth) -> None:
    del history.operations[3], history.claims[2]
    del truth.journal[-2:]


def a_claim_while_another_one_holds(history: PeerHistory, truth: Truth) -> None:
    truth.journal.remove(LAPSED)


def a_doubled_claim(history: PeerHistory, truth: Truth) -> None:
    """Both are told that it is their first attempt."""
    history.claims[1] = claim("bob2", "t2", 1, 10)
    truth.journal[3] = SECOND._replace(attempt=1)


def a_token_that_comes_back(history: PeerHistory, truth: Truth) -> None:
    truth.journal[3] = SECOND._replace(token="t1")


def work_after_its_end(history: PeerHistory, truth: Truth) -> None:
    truth.journal.append(DONE._replace(state="queued"))


def two_deliveries_of_one_session(history: PeerHistory, truth: Truth) -> None:
    other = REQUEST._replace(delivery_id="d-other", recipient_session="s-bob2")
    taken = SECOND._replace(delivery_id="d-other", recipient_session="s-bob2", token="t8")
    truth.journal[5:5] = [other, taken._replace(attempt=1), other._replace(state="rejected")]


def two_deliveries_of_one_agent(history: PeerHistory, truth: Truth) -> None:
    other = REQUEST._replace(delivery_id="d-other")
    taken = FIRST._replace(delivery_id="d-other", token="t8")
    truth.journal[5:5] = [other, taken, other._replace(state="rejected")]


def an_end_that_nobody_held(history: PeerHistory, truth: Truth) -> None:
    truth.journal[:] = [REQUEST, REQUEST._replace(state="acked")]


def a_reply_under_a_stale_lease(history: PeerHistory, truth: Truth) -> None:
    history.operations[2] = operation("bob1", "reply", "answer", 12, "t1", message_id="m-answer")


def a_reply_under_an_older_token_of_its_own(history: PeerHistory, truth: Truth) -> None:
    history.operations[2].tokens = ["t0"]


def progress_under_a_stale_lease(history: PeerHistory, truth: Truth) -> None:
    history.operations[1] = operation("bob1", "progress", "half", 11, "t1", extension_count=1)


FORGERIES: list[tuple[str, Forgery]] = [
    ("lost", a_lost_request),
    ("lost", a_request_that_vanished),
    ("lost", a_lost_reply),
    ("lost", a_reply_that_was_only_mentioned),
    ("lost", a_reply_that_its_request_does_not_know),
    ("lost", an_end_that_was_accepted_and_forgotten),
    ("doubled", two_effects_of_one_key),
    ("doubled", two_answers_to_one_key),
    ("doubled", progress_that_counted_twice),
    ("doubled", an_answer_shown_twice),
    ("doubled", an_answer_collected_and_then_delivered),
    ("unexpected", a_reply_that_was_never_sent),
    ("unexpected", a_message_of_nobody),
    ("unexpected", a_message_that_was_refused),
    ("unexpected", a_claim_of_nothing),
    ("skipped", left_in_the_queue),
    ("lease", a_claim_while_another_one_holds),
    ("lease", a_doubled_claim),
    ("lease", a_token_that_comes_back),
    ("lease", work_after_its_end),
    ("lease", two_deliveries_of_one_session),
    ("lease", two_deliveries_of_one_agent),
    ("lease", an_end_that_nobody_held),
    ("stale", a_reply_under_a_stale_lease),
    ("stale", a_reply_under_an_older_token_of_its_own),
    ("stale", progress_under_a_stale_lease),
]


@pytest.mark.parametrize(("kind", "forge"), FORGERIES, ids=[f.__name__ for _, f in FORGERIES])
def test_a_forged_exchange_is_found_out(kind: str, forge: Forgery) -> None:
    history, truth = honest()
    forge(history, truth)
    assert kind in found(judged(history, truth))


def test_what_comes_again_from_a_lease_or_to_another_process_or_without_its_text_is_allowed() -> (
    None
):
    history, truth = honest()
    again = [
        Shown("adapter-ann", 1, "m-answer", "wait", False, 14),
        Shown("adapter-ann", 1, "m-answer", "collect", True, 15),
        Shown("adapter-ann", 2, "m-answer", "collect", False, 16),
    ]
    history.shown += again
    verdict = judged(history, truth)
    assert verdict.findings == []
    assert (verdict.counts["shown_again"], verdict.counts["marked"]) == (2, 1)


def test_work_that_a_person_lets_go_on_begins_with_its_first_attempt() -> None:
    history, truth = honest()
    paused = FIRST._replace(state="paused", token=None)
    anew = REQUEST._replace(holder="s-bob1", holder_generation=1)
    second = SECOND._replace(attempt=1)
    truth.journal[2:5] = [paused, anew, second, EXTENDED._replace(attempt=1)]
    truth.journal[7:9] = [REPLIED._replace(attempt=1), DONE._replace(attempt=1)]
    history.claims[1] = claim("bob2", "t2", 1, 10)
    history.decided.append(Decided("d-ask", "approve", "ok"))
    assert judged(history, truth).findings == []


def test_the_repeat_of_a_reply_under_a_stale_lease_may_have_its_receipt() -> None:
    history, truth = honest()
    reply = history.operations[2]
    reply.tokens.append("t1")
    reply.attempts.append(Attempt(20, 21, "ok", "repeat"))
    assert judged(history, truth).findings == []


def test_a_finding_is_explained_by_the_history_of_its_delivery() -> None:
    history, _ = honest()
    about = "\n".join(History(peer=history).about("d-ask"))
    assert "bob1/1 holds d-ask, request ask, attempt 1" in about
    assert "bob2 reply answer for d-ask, key answer: ok (first)" in about
