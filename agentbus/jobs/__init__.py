"""The event stream of a tool call: for tools that emit it and parents that follow it.

What a tool needs is importable from here; the rest stands in the modules: artifacts, the receiver
of callbacks, following a job. Nothing here needs a daemon, but the broker `agentbus:`.
"""

from __future__ import annotations

from agentbus.jobs.emitter import Cancellation, JobEmitter
from agentbus.jobs.errors import (
    DeliveryRefusedError,
    IntegrityError,
    JobCancelledError,
    SinkError,
)
from agentbus.jobs.events import (
    Accepted,
    ArtifactRef,
    Event,
    Failed,
    Progress,
    Succeeded,
    Warned,
    decode_event,
    encode_event,
)
from agentbus.jobs.settings import JobSettings, job_settings, open_job, open_sink
from agentbus.jobs.sinks.base import Sink
from agentbus.jobs.text import redact

__all__ = [
    "Accepted",
    "ArtifactRef",
    "Cancellation",
    "DeliveryRefusedError",
    "Event",
    "Failed",
    "IntegrityError",
    "JobCancelledError",
    "JobEmitter",
    "JobSettings",
    "Progress",
    "Sink",
    "SinkError",
    "Succeeded",
    "Warned",
    "decode_event",
    "encode_event",
    "job_settings",
    "open_job",
    "open_sink",
    "redact",
]
