"""From a frame with an event to the change that appends it: the part of an attachment that emits.

Owns the judgement whether that is an event, whose it is and where it may be posted to. Runs on the
attachment's thread, as events may be large.
"""

from __future__ import annotations

from dataclasses import replace

from agentbus.errors import ForbiddenError
from agentbus.identity import SessionIdentity
from agentbus.jobs.delivery import destination
from agentbus.jobs.events import check_job_id, event_data, parse_event
from agentbus.protocol.jobs import EmitJobEvent, JobEventFrame

APPLICATION = "job"
"""Of the sessions that emit; their conversation is the id of the job."""


def emission(frame: JobEventFrame, identity: SessionIdentity) -> EmitJobEvent:
    """The event, bound to the job of its session. Raises what refuses it."""
    if identity.application != APPLICATION:
        raise ForbiddenError(
            f"job_event: only a session of the application {APPLICATION!r} emits events, of the "
            "job that its conversation names"
        )
    job_id = check_job_id(identity.conversation)
    event = parse_event(frame.event)
    if event.job_id != job_id:
        event = replace(event, job_id=job_id, source_job_id=event.job_id)
    if frame.callback is not None:
        callback = frame.callback
        destination(callback.url, callback.allowed_hosts, callback.secret)
    return EmitJobEvent(job_id, event_data(event))
