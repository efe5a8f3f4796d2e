"""Jobs on a ledger: an emitter that makes changes, and what is read back."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from agentbus.encoding import decode_strict
from agentbus.errors import BusError
from agentbus.limits import JOB_APPLICATION, JOBS_AGENT
from agentbus.protocol.jobs import EmitJobEvent, JobCallback
from agentbus.rules.receipts import fingerprint
from agentbus.store.changes import Done
from agentbus.store.jobs.changes import AppendJobEvent
from agentbus.store.jobs.reading import JobReader
from tests.store.bus import Bus

TS = "2026-01-02T03:04:05.678Z"
CALLBACK = JobCallback("http://127.0.0.1:9/job", ("127.0.0.1",), 2, "secret")


class Emitting:
    """The session that emits for one job."""

    def __init__(self, bus: Bus, job_id: str = "cake") -> None:
        self.bus = bus
        self.job_id = job_id
        self.speaker = bus.attach(JOBS_AGENT, job_id, application=JOB_APPLICATION)

    def event(
        self,
        seq: int,
        kind: str = "warning",
        *,
        callback: JobCallback | None = None,
        rate_ok: bool = True,
        after: int | None = None,
        **fields: Any,
    ) -> AppendJobEvent:
        fields = fields or _FIELDS[kind]
        event = {"job_id": self.job_id, "seq": seq, "ts": TS, "type": kind, **fields}
        operation = EmitJobEvent(self.job_id, event)
        speaker = self.speaker
        return AppendJobEvent(
            operation,
            str(seq),
            fingerprint(operation),
            speaker.sender,
            speaker.attachment,
            rate_ok,
            callback=callback,
            after=after,
        )

    def emit(self, seq: int, kind: str = "warning", **fields: Any) -> Done:
        return self.bus.done(self.event(seq, kind, **fields))

    def refused(self, seq: int, kind: str = "warning", **fields: Any) -> BusError:
        return self.bus.refused(self.event(seq, kind, **fields))


_FIELDS: dict[str, dict[str, Any]] = {
    "accepted": {"url": "u"},
    "progress": {"stage": "s"},
    "warning": {"message": "m"},
    "succeeded": {"result": 1},
    "failed": {"code": "general", "message": "m"},
}


def read(bus: Bus, job_id: str = "cake", from_seq: int = 0, count: int = 1000) -> dict[str, Any]:
    """What a follower is told."""
    with closing(JobReader(bus.path)) as reader:
        page = reader.job_events(job_id, from_seq, count)
    return {
        "seqs": [decode_strict(event)["seq"] for event in page.events],
        "types": [decode_strict(event)["type"] for event in page.events],
        "missing": list(page.missing),
        "next": page.next_seq,
        "closed": page.is_last,
    }
