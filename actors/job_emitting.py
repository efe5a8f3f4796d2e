"""From a frame with an event to the change that appends it: the part of an attachment that emits.

Owns the judgement whether that is an event, whose it is and where it may be posted to. Runs on the
attachment's thread, as events may be large.
"""

from __future__ import annotations

from dataclasses import replace

from agentbus.errors import ForbiddenError
from agentbus.jobs.delivery import destination
from agentbus.jobs.events import check_job_id, event_data, parse_event
from agentbus.limits import JOB_APPLICATION, JOBS_AGENT
from agentbus.protocol.jobs import EmitJobEvent, JobEventFrame
from agentbus.store.changes import SessionBound


def emission(frame: JobEventFrame, bound: SessionBound) -> EmitJobEvent:
    """The event, bound to the job of its session. Raises what refuses it."""
    if (bound.agent, bound.identity.application) != (JOBS_AGENT, JOB_APPLICATION):
        raise ForbiddenError(
            f"job_event: only sessions of the agent {JOBS_AGENT!r} and the application "
            f"{JOB_APPLICATION!r} emit events, of the job that their conversation names"
        )
    job_id = check_job_id(bound.identity.conversation)
    event = parse_event(frame.event)
    if event.job_id != job_id:
        event = replace(event, job_id=job_id, source_job_id=event.job_id)
    if frame.callback is not None:
        callback = frame.callback
        destination(callback.url, callback.allowed_hosts, callback.secret)
    return EmitJobEvent(job_id, event_data(event))
