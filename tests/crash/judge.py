"""The one judge: a history against what the bus holds at the end.

Pure. Each id is classified; what is in `FORBIDDEN` must not be found at all, an unknown outcome may
have happened or not. See docs/testing.md for what each count means.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.crash.history import Handed, History, Operation, Subscribed
from tests.crash.peer_judge import judge_peer
from tests.crash.truth import Stored, Truth, Verdict

END = 2**63


def judge(history: History, truth: Truth) -> Verdict:
    """Classify every id."""
    verdict = Verdict()
    _operations(history, truth, verdict)
    _commit_order(history, truth, verdict)
    for subscription in history.subscriptions:
        _delivered(history, truth, subscription, verdict)
    _memories(history, truth, verdict)
    _agreement(truth, verdict)
    judge_peer(history.peer, truth, verdict)
    for text in history.stuck:
        verdict.add("stuck", "", text)
    return verdict


# --- what was sent ------------------------------------------------------------


def _operations(history: History, truth: Truth, verdict: Verdict) -> None:
    stored: defaultdict[str, list[Stored]] = defaultdict(list)
    for row in truth.rows:
        stored[row.mark].append(row)
    marks = {operation.mark for operation in history.operations}
    for mark in stored.keys() - marks:
        verdict.add("unexpected", mark, "stored, but nobody sent it")
    for operation in history.operations:
        if operation.kind != "delete":
            _effect(operation, stored[operation.mark], truth, verdict)
        told = {answer.get("message_id") for answer in operation.answers}
        if len(told) > 1:
            verdict.add("doubled", operation.mark, f"its operation id was answered with {told}")


def _effect(operation: Operation, rows: list[Stored], truth: Truth, verdict: Verdict) -> None:
    outcome, mark = operation.outcome, operation.mark
    if len(rows) > 1:
        where = ", ".join(str(row.sequence) for row in rows)
        verdict.add("doubled", mark, f"one operation id has {len(rows)} effects: {where}")
    elif outcome == "ok" and rows:
        verdict.counts["ok"] += 1
        told = operation.answers[0]["sequence"]
        if rows[0].sequence != told:
            verdict.add("lost", mark, f"accepted as {told}, stored as {rows[0].sequence}")
    elif outcome == "ok":
        told = operation.answers[0]["sequence"]
        cause = _removal(truth, operation.channel, told)
        if cause is not None and truth.may_remove:
            verdict.counts["removed"] += 1
        elif cause is not None:
            verdict.add("lost", mark, f"accepted as {told}, removed by {cause} before its time")
        else:
            verdict.add("lost", mark, f"accepted as {told}, not there and not removed")
    elif outcome == "unknown":
        verdict.counts["recovered" if rows else "never_happened"] += 1
    elif rows:
        verdict.add("unexpected", mark, f"refused, but stored as {rows[0].sequence}")
    else:
        verdict.counts["failed"] += 1


def _removal(truth: Truth, channel: str, sequence: int) -> str | None:
    for one in truth.removed:
        if one.channel == channel and one.first <= sequence <= one.last:
            return one.cause
    return None


def _commit_order(history: History, truth: Truth, verdict: Verdict) -> None:
    """What began after another one was known to be accepted comes after it."""
    committed = {row.mark: row.sequence for row in truth.rows}
    known = [
        (operation.attempts[0].began_s, operation.accepted_s, committed[operation.mark], operation)
        for operation in history.operations
        if operation.mark in committed and operation.kind != "delete" and operation.attempts
    ]
    accepted = sorted(
        ((accepted_s, sequence) for _, accepted_s, sequence, _ in known if accepted_s is not None)
    )
    newest, index = 0, 0
    for began_s, _, sequence, operation in sorted(known, key=lambda one: one[0]):
        while index < len(accepted) and accepted[index][0] < began_s:
            newest = max(newest, accepted[index][1])
            index += 1
        if sequence < newest:
            text = f"committed as {sequence}, after {newest} had been accepted already"
            verdict.add("out_of_order", operation.mark, text)


# --- what was delivered -------------------------------------------------------


def _delivered(history: History, truth: Truth, subscription: Subscribed, verdict: Verdict) -> None:
    number, client = subscription.number, subscription.client
    handed = [one for one in history.handed if (one.client, one.subscription) == (client, number)]
    gaps = [one for one in history.gaps if (one.client, one.subscription) == (client, number)]
    places = {row.message_id: row.at for row in truth.rows}
    _duplicates_and_order(history, handed, places, verdict)
    _strangers(history, handed, verdict)
    last = max((places.get(one.message_id, one.sequence) for one in handed), default=0)
    through = END if subscription.open else last  # after an unsubscribe nothing more had to come
    came = {one.message_id for one in handed}
    for message_id, place in _owed(history, truth, subscription):
        if message_id in came or place > through:
            continue
        if not any(gap.first <= place <= gap.last for gap in gaps):
            text = f"{place} of {subscription.channel} never came to {client}"
            verdict.add("skipped", message_id, text)


def _duplicates_and_order(
    history: History, handed: list[Handed], places: dict[str, int], verdict: Verdict
) -> None:
    seen: set[str] = set()
    newest = 0
    for one in handed:
        place = places.get(one.message_id, one.sequence)
        if one.redelivered:
            verdict.counts["marked"] += 1
        elif one.message_id in seen:
            text = f"came to {one.client} again in result {one.result} without a mark"
            verdict.add("doubled", one.message_id, text)
        if one.message_id not in seen and place <= newest:
            text = f"{place} came to {one.client} first in result {one.result}, after {newest}"
            verdict.add("out_of_order", one.message_id, text)
        seen.add(one.message_id)
        newest = max(newest, place)


def _strangers(history: History, handed: list[Handed], verdict: Verdict) -> None:
    sent = {operation.mark: operation for operation in history.operations}
    for one in handed:
        operation = sent.get(one.mark)
        if operation is None:
            verdict.add("unexpected", one.mark, f"handed to {one.client}, but nobody sent it")
        elif operation.outcome == "fail":
            verdict.add("unexpected", one.mark, f"handed to {one.client}, but it was refused")
        elif operation.channel != one.channel:
            verdict.add("unexpected", one.mark, f"came to {one.client} in {one.channel}")


def _owed(history: History, truth: Truth, subscription: Subscribed) -> Iterator[tuple[str, int]]:
    """Message id and position of what a subscriber must be given or told of."""
    own = {
        operation.mark
        for operation in history.operations
        if operation.client == subscription.client and operation.kind == "send"
    }
    created = {row.message_id: row.mark for row in truth.rows if row.revision == 1}
    retained = set()
    for row in truth.rows:
        if row.channel != subscription.channel or not row.live:
            continue
        retained.add(row.message_id)
        if row.at >= subscription.from_sequence and created.get(row.message_id) not in own:
            yield row.message_id, row.at
    memories = {row.message_id for row in truth.rows if row.memory}
    for operation in history.operations:  # removed meanwhile: come before that, or in a gap
        if operation.kind != "send" or operation.channel != subscription.channel:
            continue
        message_id, mark = operation.message_id, operation.mark
        if message_id is None or message_id in retained or mark in own or message_id in memories:
            continue
        sequence = operation.answers[0]["sequence"]
        if sequence >= subscription.from_sequence and _removal(truth, operation.channel, sequence):
            yield message_id, sequence


# --- memories -----------------------------------------------------------------


def _memories(history: History, truth: Truth, verdict: Verdict) -> None:
    revisions: defaultdict[str, list[Stored]] = defaultdict(list)
    for row in truth.rows:
        if row.memory:
            revisions[row.message_id].append(row)
    ended: defaultdict[str, set[str]] = defaultdict(set)
    for operation in history.operations:
        if operation.kind == "delete" and operation.memory_id is not None:
            ended[operation.memory_id].add(operation.outcome)
    for memory_id, rows in revisions.items():
        _one_memory(memory_id, rows, ended[memory_id], verdict)


def _one_memory(memory_id: str, rows: list[Stored], ended: set[str], verdict: Verdict) -> None:
    live = [row for row in rows if row.live]
    newest = max(rows, key=lambda row: row.sequence)
    if len(live) > 1:
        verdict.add("memory", memory_id, f"{len(live)} live revisions")
    elif live and "ok" in ended:
        verdict.add("memory", memory_id, "deleted, and alive")
    elif live and live[0] != newest:
        text = f"revision {live[0].revision} is live, {newest.revision} was committed last"
        verdict.add("memory", memory_id, text)
    elif not live and not ended & {"ok", "unknown"}:
        verdict.add("memory", memory_id, "nobody deleted it, and none of its revisions is live")
    numbers = sorted(row.revision for row in rows)
    if numbers != list(range(1, len(numbers) + 1)):
        verdict.add("memory", memory_id, f"its revisions are {numbers}")


# --- one bus, several ways to look at it --------------------------------------


def _agreement(truth: Truth, verdict: Verdict) -> None:
    for complaint in truth.complaints:
        verdict.add("disagreement", "", complaint)
    live: defaultdict[str, list[Stored]] = defaultdict(list)
    for row in truth.rows:
        if row.live:
            live[row.channel].append(row)
    for name, shown in (("streams", truth.streams), ("history", truth.history)):
        for channel, ids in (shown or {}).items():
            by_place = name == "streams"
            rows = sorted(live[channel], key=lambda row: row.at if by_place else row.sequence)
            _same(f"{name} of {channel}", [row.message_id for row in rows], ids, verdict)
    if truth.found is not None:
        stored = sorted((row for rows in live.values() for row in rows), key=lambda r: -r.sequence)
        _same("search", [row.message_id for row in stored], truth.found, verdict)


def _same(what: str, stored: list[str], shown: list[str], verdict: Verdict) -> None:
    if stored == shown:
        return
    for message_id in sorted(set(stored) - set(shown)):
        verdict.add("disagreement", message_id, f"{what} does not show what is stored")
    for message_id in sorted(set(shown) - set(stored)):
        verdict.add("disagreement", message_id, f"{what} shows what is not stored")
    if sorted(stored) == sorted(shown):
        verdict.add("disagreement", "", f"{what} shows another order than what is stored")
    elif len(shown) != len(set(shown)):
        verdict.add("disagreement", "", f"{what} shows something twice")
