"""Every error that a caller of the bus can see, with its stable code.

A `BusError` is data for the caller: `code` never changes meaning, `retryable` answers "can the same
call succeed later without anybody repairing anything", the message says what was wrong, where, and
what to do. The table in docs/errors.md is checked against this module by a test.
"""

from __future__ import annotations

from typing import Any, ClassVar


class BusError(Exception):
    """Base of all errors that are answered to a caller. Shape on the wire: see `as_data`."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        retry_after_ms: int | None = None,
        state: str | None = None,
        status: int | None = None,
        detail: dict[str, Any] | None = None,
    ) -> None:
        """The last three are of peer messaging: what the delivery is now, the number that peers of
        other buses know the error by, and what else there is to know."""
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.retry_after_ms = retry_after_ms
        self.state = state
        self.status = status
        self.detail = detail

    def as_data(self) -> dict[str, Any]:
        """`{code, message, retryable, reason?, retry_after_ms?, state?, status?, detail?}`."""
        data: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "retryable": self.retryable,
        }
        if self.reason is not None:
            data["reason"] = self.reason
        for key in ("retry_after_ms", "state", "status", "detail"):
            value = getattr(self, key)
            if value is not None:
                data[key] = value
        return data


class ValidationError(BusError):
    """The call itself is malformed; nothing was done."""

    code = "validation"


class NotFoundError(BusError):
    """A channel, message, memory or tool of that name does not exist (or no longer does)."""

    code = "not_found"


class ConflictError(BusError):
    """The name or operation id is already in use for something else."""

    code = "conflict"


class RateLimitedError(BusError):
    """The session's send rate is used up; `retry_after_ms` says when it is not."""

    code = "rate_limited"
    retryable = True


class UnavailableError(BusError):
    """The daemon is starting, recovering, stopping or not reachable; nothing was committed."""

    code = "unavailable"
    retryable = True


class SessionAlreadyConnectedError(BusError):
    """Another live attachment carries this conversation; the first one is kept."""

    code = "session_already_connected"
    retryable = True


class StaleAttachmentError(BusError):
    """The attachment or its generation was replaced; attach again."""

    code = "stale_attachment"
    retryable = True


class ConfigMismatchError(BusError):
    """The running daemon uses another configuration; restart it to apply the change."""

    code = "config_mismatch"


class VersionMismatchError(BusError):
    """Client and daemon are of incompatible versions; restart the older one."""

    code = "version_mismatch"


class CursorExpiredError(BusError):
    """An explicitly named subscription has expired; subscribe again."""

    code = "cursor_expired"


class InspectionRejectedError(BusError):
    """The inspection command denied the content; `reason` is what it said."""

    code = "inspection_rejected"


class InspectionUnavailableError(BusError):
    """The inspection command failed, so nothing was allowed."""

    code = "inspection_unavailable"
    retryable = True


class CapacityExhaustedError(BusError):
    """A budget is full and nothing can be evicted; nothing was committed."""

    code = "capacity_exhausted"


class TooLargeError(BusError):
    """The envelope or frame is over its limit; nothing was committed."""

    code = "too_large"


class OverloadedError(BusError):
    """Too many requests in flight; wait for answers, then try again."""

    code = "overloaded"
    retryable = True


class DiscoveryDisabledError(BusError):
    """The agent directory is switched off in the configuration."""

    code = "discovery_disabled"


class ForbiddenError(BusError):
    """The caller may not do this."""

    code = "forbidden"


class JobClosedError(BusError):
    """The job has already had its terminal event."""

    code = "job_closed"


class UnknownOutcomeError(BusError):
    """The commit may or may not have happened: retry with the same operation id."""

    code = "unknown"
    retryable = True


class InternalError(BusError):
    """A fault of the bus itself; the daemon's log has the details."""

    code = "internal"


def _all_errors() -> dict[str, type[BusError]]:
    return {cls.code: cls for cls in BusError.__subclasses__()}


ERRORS_BY_CODE: dict[str, type[BusError]] = _all_errors()


def error_from_data(data: dict[str, Any]) -> BusError:
    """The error that `as_data` described; an unknown code becomes `internal` and keeps its text."""
    cls = ERRORS_BY_CODE.get(str(data.get("code")), InternalError)
    retry_after_ms = data.get("retry_after_ms")
    reason, state, status, detail = (
        data.get(key) for key in ("reason", "state", "status", "detail")
    )
    return cls(
        str(data.get("message", "no message")),
        reason=reason if isinstance(reason, str) else None,
        retry_after_ms=retry_after_ms if isinstance(retry_after_ms, int) else None,
        state=state if isinstance(state, str) else None,
        status=status if isinstance(status, int) else None,
        detail=detail if isinstance(detail, dict) else None,
    )
