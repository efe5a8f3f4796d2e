"""Events on a broker: durable, in order, and readable from the first one by whoever comes late.

Owns the transport. What `emit` returned for, the broker has acknowledged. The emitter's thread.
"""

from __future__ import annotations

from agentbus.jobs.brokers.base import JobTransport
from agentbus.jobs.emitter import Cancellation
from agentbus.jobs.events import Event, encode_event, is_terminal


class BrokerSink:
    """The events of one job, over any transport; its cancel goes to `cancellation`."""

    def __init__(
        self, transport: JobTransport, job_id: str, cancellation: Cancellation | None = None
    ) -> None:
        """The transport belongs to the sink from now on."""
        self._transport = transport
        if cancellation is not None:
            transport.listen(job_id, cancellation.request)

    def emit(self, event: Event) -> None:
        self._transport.publish(
            event.job_id, event.seq, encode_event(event), is_terminal=is_terminal(event)
        )

    def close(self) -> None:
        self._transport.close()
