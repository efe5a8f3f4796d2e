"""The ledger's answer to an event of a job: in order, once, and nothing after the terminal one.

Owns what makes an event the next one, the message that carries it, and that its callback is written
with it. An event is an ordinary message of the channel `job/<id>`, so every reader of channels can
follow it. Runs on the ledger's thread.
"""

from __future__ import annotations

from typing import Any

from agentbus.encoding import encode
from agentbus.envelope import Body
from agentbus.errors import (
    ConflictError,
    JobClosedError,
    NotFoundError,
    TooLargeError,
    UnavailableError,
)
from agentbus.identity import SenderBinding
from agentbus.ids import Sequence
from agentbus.rules.jobs import channel_of
from agentbus.rules.receipts import digest
from agentbus.store.appending import append_message, draft_message
from agentbus.store.changes import ChannelMade, Done, Fact
from agentbus.store.jobs import rows
from agentbus.store.jobs.changes import (
    AppendJobEvent,
    CallbacksWaiting,
    CancelJob,
    CloseLostJob,
    ForgetJob,
    JobChanged,
    JobGone,
)
from agentbus.store.jobs.outbox import queue_callback
from agentbus.store.jobs.rows import NOTHING_YET, JobRow
from agentbus.store.receipts import require_rate
from agentbus.store.schema import PLACE, Agent, JobEvent, Session, insert_text, text
from agentbus.store.subscribing import insert_channel
from agentbus.store.work import Work

_INSERT_EVENT = insert_text(JobEvent)
_SELECT_SENDER = text(
    Session.select(Agent.name, Agent.id, Session.application, Session.display_name)
    .join(Agent, on=(Agent.id == Session.agent))
    .where(Session.id == PLACE)
)
_TERMINAL = ("succeeded", "failed")


def admit_event(work: Work, change: AppendJobEvent) -> JobRow | Done | None:
    """The row of the job that the event is the next one of, None where it is the first one; or the
    answer that a repeat gets.

    Raises what refuses the event.
    """
    work.require_current(change.attachment)
    job_id, seq = change.operation.job_id, change.operation.event["seq"]
    stored = rows.load(work, job_id)
    job = stored or rows.new_row(work, job_id)
    known = rows.event_of(work, job, seq)
    if known is not None and known[1] == change.fingerprint:
        return Done(_answer(job, seq, known[0]) | {"duplicate": True}, charged=False)
    if not job.is_open and (known is None or seq == job.last_seq):
        raise JobClosedError(f"job {job_id} has had its terminal event, {job.outcome}")
    if known is not None:
        raise change.key_reused()
    if seq <= job.last_seq:
        raise ConflictError(
            f"job {job_id} has come to sequence {job.last_seq}, and there is no event {seq} that "
            "this could repeat: events come in order"
        )
    if change.after is not None and change.after != job.last_seq:
        raise UnavailableError(
            f"event {change.after} of job {job_id} is to come before this one and is not there; "
            "emit it first"
        )
    require_rate(change)
    return stored


def append_event(work: Work, change: AppendJobEvent) -> Done:
    """Append an event once."""
    stored = admit_event(work, change)
    if isinstance(stored, Done):
        return stored
    job = stored or rows.new_row(work, change.operation.job_id)
    callback = job.callback
    if change.callback is not None:
        callback = encode(change.callback.as_data()).decode()
    job = job._replace(session=change.attachment.session_id, callback=callback)
    sequence, job, facts = _append(
        work, stored, job, change.operation.event, change.sender, change.fingerprint
    )
    answer = _answer(job, change.operation.event["seq"], sequence) | {"duplicate": False}
    return Done(answer, facts)


def close_lost_job(work: Work, change: CloseLostJob) -> Done:
    """Whether the job was closed now."""
    job = rows.load(work, change.job_id)
    seq = change.event["seq"]
    if job is None or not job.is_open or job.session is None or job.last_seq + 1 != seq:
        return Done(False)
    agent, agent_id, application, display_name = work.execute(
        _SELECT_SENDER, (job.session,)
    ).fetchone()
    sender = SenderBinding(
        agent, agent_id, job.session, application, None, display_name, repository=None
    )
    _, _, facts = _append(work, job, job, change.event, sender, digest(encode(change.event)))
    return Done(True, facts)


def cancel_job(work: Work, change: CancelJob) -> Done:
    """What is known of the job; one that has ended cannot be cancelled."""
    job = rows.load(work, change.job_id)
    if job is None:
        if not change.ahead:
            raise unknown_job(change.job_id)
        job = rows.new_row(work, change.job_id)._replace(
            cancel_requested_us=work.now_us, cancel_reason=change.reason
        )
        return Done({"state": job.state, "reason": change.reason}, (rows.insert(work, job),))
    if not job.is_open:
        raise JobClosedError(f"job {change.job_id} has ended already, with {job.outcome}")
    if job.cancel_reason is not None:
        return Done({"state": job.state, "reason": job.cancel_reason})
    job = rows.change(work, job, cancel_requested_us=work.now_us, cancel_reason=change.reason)
    return Done({"state": job.state, "reason": change.reason}, (JobChanged(job.view()),))


def forget_job(work: Work, change: ForgetJob) -> Done:
    job = rows.load(work, change.job_id)
    if job is None or job.last_seq != NOTHING_YET:
        return Done(False)
    rows.delete(work, job)
    return Done(True, (JobGone(job.id),))


def unknown_job(job_id: str) -> NotFoundError:
    """What is answered about a job that the bus does not have."""
    return NotFoundError(
        f"there is no job {job_id!r} on the bus: it has not begun, or it is over and was removed"
    )


def _append(
    work: Work,
    stored: JobRow | None,
    job: JobRow,
    event: dict[str, Any],
    sender: SenderBinding,
    fingerprint: bytes,
) -> tuple[Sequence, JobRow, tuple[Fact, ...]]:
    """`stored`: the job's row as the table has it, if it has one; `job`: as it is to be."""
    name = channel_of(job.id)
    channel = work.channel(name)
    content = encode(event)
    body = Body(content=content.decode(), type=event["type"])
    try:
        draft = draft_message(work, name, "job", sender, body)
    except TooLargeError as error:
        raise TooLargeError(f"{error.message}; a result can be stored as an artifact") from None

    # Nothing is refused from here on.
    facts: list[Fact] = []
    if channel is None:
        channel = insert_channel(work, name, "job")
        facts.append(ChannelMade(channel.channel_id, name, "job"))
    facts.append(append_message(work, draft, channel.channel_id))
    work.insert(_INSERT_EVENT, (channel.channel_id, event["seq"], draft.sequence, fingerprint))
    job = _advance(work, stored, job._replace(channel=channel.channel_id), event)
    facts.append(JobChanged(job.view()))
    if job.callback is not None:
        queue_callback(work, job, content)
        facts.append(CallbacksWaiting())
    return draft.sequence, job, tuple(facts)


def _advance(work: Work, stored: JobRow | None, job: JobRow, event: dict[str, Any]) -> JobRow:
    """Write the job with this event as its last one."""
    is_first = job.last_seq == NOTHING_YET
    job = job._replace(
        last_seq=event["seq"],
        last_event_us=work.now_us,
        opened_at_us=work.now_us if is_first else job.opened_at_us,
    )
    if event["type"] in _TERMINAL:
        job = job._replace(
            state="closed",
            closed_at_us=work.now_us,
            outcome=event["type"],
            code=event.get("code"),
            synthetic=event.get("synthetic", False),
        )
    if stored is None:
        rows.insert(work, job)
        return job
    return rows.change(work, stored, **job._asdict())


def _answer(job: JobRow, seq: int, sequence: Sequence) -> dict[str, Any]:
    """`cancel`: why the job shall end, if somebody has asked for it."""
    answer: dict[str, Any] = {"job_id": job.id, "seq": seq, "sequence": sequence}
    if job.cancel_reason is not None:
        answer["cancel"] = job.cancel_reason
    return answer
