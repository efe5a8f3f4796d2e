"""What a tool or a parent can meet beside the errors of the bus."""

from __future__ import annotations

from agentbus.errors import UnavailableError


class SinkError(UnavailableError):
    """An event was not handed over; whether the other side has it is not known."""


class DeliveryRefusedError(SinkError):
    """The other side refused the event, or its address must not be used: no repeat will help."""

    retryable = False


class JobCancelledError(Exception):
    """The parent wants the job to end; raised where the tool looks."""


class IntegrityError(UnavailableError):
    """The bytes of an artifact are not those that its reference names."""

    retryable = False
