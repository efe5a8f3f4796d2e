"""The judge of directed work: what clients saw against every state that was ever committed.

Pure. Uses the classes of `truth.py`; docs/testing.md says what each of them means here.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from tests.crash.journal import Entry
from tests.crash.peer_history import Claim, PeerHistory, PeerOperation, Shown
from tests.crash.person import PERSON
from tests.crash.truth import Truth, Verdict

OPEN = ("queued", "leased", "paused")
FINAL = ("acked", "rejected", "cancelled", "reassigned")


def judge_peer(history: PeerHistory, truth: Truth, verdict: Verdict) -> None:
    """Classify every operation, claim, answer and delivery."""
    entries: dict[str, list[Entry]] = {}
    for entry in truth.journal:
        entries.setdefault(entry.delivery_id, []).append(entry)
    _sent(history, truth, verdict)
    for delivery_id, ones in entries.items():
        _one_life(delivery_id, ones, verdict)
    _one_at_a_time(truth, verdict)
    _claims(history, truth, entries, verdict)
    for operation in history.operations:
        verdict.counts["fenced"] += operation.fenced
        if operation.delivery_id is not None and operation.outcome == "ok":
            _done(operation, truth, entries.get(operation.delivery_id, []), verdict)
            _not_stale(operation, history.claims, verdict)
    _tracked(truth, entries, verdict)
    _answers(history, truth, entries, verdict)
    _shown_once(history, verdict)
    _left_open(history, truth, entries, verdict)


# --- what was sent ------------------------------------------------------------


def _sent(history: PeerHistory, truth: Truth, verdict: Verdict) -> None:
    stored: defaultdict[str, list[str]] = defaultdict(list)
    for row in truth.direct:
        stored[row.mark].append(row.message_id)
    sends = [one for one in history.operations if one.kind in ("send", "reply")]
    for mark in stored.keys() - {operation.mark for operation in sends}:
        verdict.add("unexpected", mark, "stored, but nobody sent it")
    made = {entry.message_id for entry in truth.journal}
    for operation in sends:
        _effect(operation, stored[operation.mark], made, truth, verdict)
    for operation in history.operations:
        told = {(one.get("message_id"), one.get("extension_count")) for one in operation.answers}
        if len(told) > 1:
            verdict.add("doubled", operation.mark, f"its key was answered with {told}")


def _effect(
    operation: PeerOperation, ids: list[str], made: set[str], truth: Truth, verdict: Verdict
) -> None:
    mark, told = operation.mark, operation.message_id
    if len(ids) > 1:
        verdict.add("doubled", mark, f"one key has {len(ids)} effects: {', '.join(ids)}")
    elif operation.outcome == "ok":
        if told not in made:
            verdict.add("lost", mark, f"accepted as {told}, of which no delivery was ever made")
        elif ids == [told]:
            verdict.counts["ok"] += 1
        elif not ids and truth.may_remove:
            verdict.counts["removed"] += 1
        else:
            verdict.add("lost", mark, f"accepted as {told}, stored as {ids}")
    elif operation.outcome == "unknown":
        verdict.counts["recovered" if ids else "never_happened"] += 1
    elif ids:
        verdict.add("unexpected", mark, f"refused, but stored as {ids[0]}")
    else:
        verdict.counts["failed"] += 1


# --- leases -------------------------------------------------------------------


def _one_life(delivery_id: str, entries: list[Entry], verdict: Verdict) -> None:
    """A delivery goes from holder to holder only through the queue, and ends once."""
    first = entries[0]
    if (first.state, first.attempt, first.token) != ("queued", 0, None):
        verdict.add("lease", delivery_id, f"it began as {first.state}, attempt {first.attempt}")
    tokens: set[str] = set()
    for before, now in pairwise(entries):
        trouble = _wrong_step(before, now, tokens)
        if trouble is not None:
            verdict.add("lease", delivery_id, trouble)
        if now.token is not None:
            tokens.add(now.token)


def _wrong_step(before: Entry, now: Entry, tokens: set[str]) -> str | None:
    if before.state in FINAL and now.state not in (before.state, "gone"):
        return f"it was {before.state}, then {now.state}"
    if (now.state == "leased") != (now.token is not None):
        return f"{now.state} with the token {now.token}"
    if now.state != "leased":
        if now.state == "acked" and before.state == "queued" and now.kind != "response":
            return "acked, and nobody held it"
        return None
    if before.state == "leased":
        if now.holder != before.holder:
            return f"{now.holder} got it while {before.holder} had it"
        return None if now.attempt == before.attempt else "its attempt changed within a lease"
    if before.state != "queued":
        return f"leased although {before.state}"
    if now.token in tokens:
        return f"the token {now.token} came back"
    same = (now.holder, now.holder_generation) == (before.holder, before.holder_generation)
    if now.attempt == before.attempt and not (same and before.attempt > 0):
        return f"attempt {now.attempt} of another holder than before"
    if now.attempt not in (before.attempt, before.attempt + 1):
        return f"attempt {now.attempt} after {before.attempt}"
    return None


def _one_at_a_time(truth: Truth, verdict: Verdict) -> None:
    """A session holds one delivery, and of those to its agent as a whole its agent has one."""
    held: defaultdict[str, set[str]] = defaultdict(set)
    by_agent: defaultdict[str, set[str]] = defaultdict(set)
    for entry in truth.journal:
        for ones in held.values():
            ones.discard(entry.delivery_id)
        by_agent[entry.recipient_agent].discard(entry.delivery_id)
        if entry.state == "leased" and entry.holder is not None:
            held[entry.holder].add(entry.delivery_id)
            if len(held[entry.holder]) > 1:
                verdict.add("lease", entry.delivery_id, f"{entry.holder} holds another one too")
        if entry.state in ("leased", "paused") and entry.recipient_session is None:
            by_agent[entry.recipient_agent].add(entry.delivery_id)
            if len(by_agent[entry.recipient_agent]) > 1:
                verdict.add("lease", entry.delivery_id, "its agent has another one in work too")


def _claims(
    history: PeerHistory, truth: Truth, entries: dict[str, list[Entry]], verdict: Verdict
) -> None:
    last: dict[str, Claim] = {}
    decided = {one.delivery_id for one in history.decided}
    for claim in sorted(history.claims, key=lambda one: one.ended_s):
        was_so = any(
            entry.state == "leased"
            and truth.sessions.get(entry.holder or "") == claim.client
            and entry.attempt == claim.attempt
            and claim.token in (None, entry.token)
            for entry in entries.get(claim.delivery_id, ())
        )
        if not was_so:
            text = f"{claim.client} was given attempt {claim.attempt}, which is on record nowhere"
            verdict.add("unexpected", claim.delivery_id, text)
        verdict.counts["claimed"] += 1
        before = last.get(claim.delivery_id)
        last[claim.delivery_id] = claim
        if before is None or before.client == claim.client:
            continue
        verdict.counts["taken_over"] += 1
        is_later = before.ended_s < claim.began_s and claim.delivery_id not in decided
        if is_later and claim.attempt <= before.attempt:
            text = f"{claim.client} has attempt {claim.attempt}, after {before.client} had "
            verdict.add("lease", claim.delivery_id, f"{text}{before.attempt}")


# --- what was done under a lease ----------------------------------------------


def _done(operation: PeerOperation, truth: Truth, entries: list[Entry], verdict: Verdict) -> None:
    """What finished a delivery was done by its holder, under the token of that moment."""
    is_first = any(attempt.said == "first" for attempt in operation.attempts)
    if operation.kind not in ("reply", "ack") or not operation.finishes or not is_first:
        return
    delivery_id = str(operation.delivery_id)
    for before, now in pairwise(entries):
        if now.state != "acked" or before.state == "acked":
            continue
        holder = truth.sessions.get(before.holder or "")
        if before.state != "leased" or holder != operation.client:
            text = f"{operation.client} finished it, while {holder} had it as {before.state}"
            verdict.add("stale", delivery_id, text)
        elif any(operation.tokens) and before.token not in operation.tokens:
            text = f"{operation.client} finished it under {operation.tokens}, not {before.token}"
            verdict.add("stale", delivery_id, text)
        return
    verdict.add("lost", delivery_id, f"{operation.client} finished it, and it is not finished")


def _not_stale(operation: PeerOperation, claims: list[Claim], verdict: Verdict) -> None:
    """Nothing new was accepted under a token after somebody else was given the delivery."""
    for attempt, token in zip(operation.attempts, operation.tokens, strict=True):
        if attempt.said != "first" or token is None:
            continue
        mine = [one for one in claims if one.token == token]
        for other in claims:
            if other.delivery_id != operation.delivery_id or other.client == operation.client:
                continue
            if all(one.ended_s < other.began_s for one in mine) and other.ended_s < attempt.began_s:
                text = f"{operation.mark} was accepted after {other.client} had been given it"
                verdict.add("stale", str(operation.delivery_id), text)


# --- answers ------------------------------------------------------------------


def _tracked(truth: Truth, entries: dict[str, list[Entry]], verdict: Verdict) -> None:
    """Every request that was answered knows its answer."""
    answers: defaultdict[str, set[str]] = defaultdict(set)
    for entry in truth.journal:
        if entry.kind == "response" and entry.reply_to is not None:
            answers[entry.reply_to].add(entry.message_id)
    for delivery_id, ones in entries.items():
        last = ones[-1]
        known = {last.reply_message_id, last.late_reply_message_id} - {None}
        if not known <= answers.get(last.message_id, set()):
            verdict.add("unexpected", delivery_id, f"answered with {known}, which nobody sent")
    requests = {one.message_id: one for one in truth.journal if one.kind == "request"}
    for message_id in answers.keys() & requests.keys():
        slots = [ones[-1] for ones in entries.values() if ones[-1].message_id == message_id]
        if any(one.reply_message_id or one.late_reply_message_id for one in slots):
            verdict.counts["answered"] += 1
        elif any(one.state in ("queued", "leased", "paused", "acked") for one in slots):
            verdict.add("lost", message_id, "its answer is there, and it waits for one")


def _answers(
    history: PeerHistory, truth: Truth, entries: dict[str, list[Entry]], verdict: Verdict
) -> None:
    """Every answer that was committed was shown to whom it was sent."""
    shown = {(one.client, one.message_id) for one in history.shown if not one.marked}
    closed = {one.delivery_id for one in history.decided if one.action in ("reject", "cancel")}
    for delivery_id, ones in entries.items():
        last = ones[-1]
        if last.kind != "response" or last.recipient_session is None:
            continue
        client = _client(truth, last)
        if client is None or (client, last.message_id) in shown:
            continue
        if delivery_id in closed or (truth.may_remove and last.state in ("cancelled", "gone")):
            verdict.counts["removed"] += 1
        else:
            text = f"committed as {delivery_id}, now {last.state}, never shown to {client}"
            verdict.add("lost", last.message_id, text)


def _client(truth: Truth, entry: Entry) -> str | None:
    """The client that a delivery to a session is for."""
    if truth.agents.get(entry.recipient_agent, "").startswith("human:"):
        return PERSON
    return truth.sessions.get(entry.recipient_session or "")


def _shown_once(history: PeerHistory, verdict: Verdict) -> None:
    """To one session an answer is shown once; again only as the delivery that it has not finished,
    or after the end of the process that had shown it.
    """
    earlier: defaultdict[tuple[str, str], list[Shown]] = defaultdict(list)
    for one in sorted(history.shown, key=lambda shown: shown.at_s):
        before = earlier[one.client, one.message_id]
        if one.marked:
            verdict.counts["marked"] += 1
            continue
        if before and one.client.startswith("adapter"):
            held = one.way == "wait" and any(other.way == "wait" for other in before)
            if held or before[-1].incarnation != one.incarnation:
                verdict.counts["shown_again"] += 1
            else:
                text = f"shown to {one.client} by {before[-1].way}, then by {one.way}, unmarked"
                verdict.add("doubled", one.message_id, text)
        before.append(one)


def _left_open(
    history: PeerHistory, truth: Truth, entries: dict[str, list[Entry]], verdict: Verdict
) -> None:
    """When all have taken what there was, nothing is left that somebody could have taken."""
    agents = set(history.agents.values())
    for delivery_id, ones in entries.items():
        last = ones[-1]
        if last.state not in OPEN or truth.agents.get(last.recipient_agent) not in agents:
            continue
        text = f"{last.state} after all of its agent had taken what there was"
        verdict.add("skipped", delivery_id, text)
