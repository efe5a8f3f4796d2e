"""What a parent sees of a job, and time that passes for the bus, its emitters and its readers."""

from __future__ import annotations

from typing import Any

from agentbus.transport.client import Client
from tests.eventually import PATIENCE_S, eventually
from tests.integration.in_process import InProcessBus


def events(client: Client, job_id: str = "cake", **asked: Any) -> Any:
    return client.request("job_events", {"job_id": job_id, **asked}, PATIENCE_S)


def pass_time(bus: InProcessBus, seconds: float) -> None:
    """When the jobs' actors have heard of everything before."""
    jobs = bus.system._jobs
    assert jobs is not None

    def is_idle() -> bool:
        told = [address.statistics() for address, _ in list(jobs._streams._jobs.values())]
        return not any(actor.busy or actor.mailbox_length for actor in told)

    eventually(is_idle)
    bus.clock.advance(seconds)
