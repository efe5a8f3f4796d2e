"""The ledger's desk for mutations that are being inspected or wait for it.

Owns which mutation is at which inspector, who waits, and the inspectors themselves, which it starts
as they are needed and keeps. Never touches the store and decides about nothing but turns. Runs on
the ledger's thread; `stop`, `addresses` and `statistics` may be called on any.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from actors.base import Address, Crashed, start_actor
from actors.inspector import InspectorActor
from actors.messages import Inspect, Inspected, InspectorMessage, LedgerMessage, Submit
from actors.replies import TellReply
from agentbus.command_guard import Guard
from agentbus.command_run import Cancellation
from agentbus.errors import (
    BusError,
    InspectionRejectedError,
    InspectionUnavailableError,
    OverloadedError,
)
from agentbus.ids import SessionId
from agentbus.inspection import Allowed, Denied, Failed, Verdict, inspect
from agentbus.limits import INSPECTIONS_AT_ONCE, INSPECTIONS_WAITING
from agentbus.store.mutation import Mutation

_log = logging.getLogger(__name__)

OVERLOADED_RETRY_MS = 500
LOGGED_CHARACTERS = 200
"""Of a reason, escaped: it may quote what was denied, and a log is no second store of messages."""


@dataclass(frozen=True, slots=True)
class InspectionStatistics:
    """Verdicts since the start, and the mutations on their way to one."""

    allowed: int = 0
    denied: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0


@dataclass(slots=True, eq=False)
class _Inspection:
    """One mutation on its way to a verdict. `submits`: everybody who asked for it, oldest first."""

    ticket: int
    mutation: Mutation
    submits: list[Submit]
    ledger: Address[LedgerMessage]

    @property
    def session_id(self) -> SessionId:
        return self.mutation.attachment.session_id

    @property
    def key(self) -> tuple[SessionId, str]:
        return (self.session_id, self.mutation.operation_id)


class InspectionDesk:
    """Who is inspected now, and who next.

    1. At most `INSPECTIONS_AT_ONCE` runs, and of one session never two.
    2. Equal mutations share one run (a session that attached anew repeats itself); their submits
       come back together.
    3. What waits is bounded and starts in the order in which it came, except that a session's next
       run stands back while an earlier one of it is not over.
    4. Every run ends with one `Inspected` at the ledger, also when its inspector fails.
    """

    def __init__(self, argv: Sequence[str], timeout_s: float, crashed: Crashed) -> None:
        self._argv = tuple(argv)
        self._timeout_s = timeout_s
        self._crashed = crashed
        self._cancellation = Cancellation()
        self._guard = Guard()
        self._last_ticket = self._started = 0
        self._open: dict[tuple[SessionId, str], _Inspection] = {}
        self._waiting: deque[_Inspection] = deque()
        self._running: dict[int, tuple[_Inspection, Address[InspectorMessage] | None]] = {}
        self._idle: list[Address[InspectorMessage]] = []
        self._addresses: tuple[Address[InspectorMessage], ...] = ()
        self._allowed = self._denied = self._failed = 0

    # --- for the ledger, on its thread ---

    def enter(self, mutation: Mutation, submit: Submit, ledger: Address[LedgerMessage]) -> None:
        """Have it inspected; `ledger` is told. Raises ConflictError and OverloadedError."""
        key = (mutation.attachment.session_id, mutation.operation_id)
        earlier = self._open.get(key)
        if earlier is not None:
            if earlier.mutation.fingerprint != mutation.fingerprint:
                raise mutation.key_reused()
            earlier.submits.append(submit)
            return
        if len(self._waiting) >= INSPECTIONS_WAITING:
            raise OverloadedError(
                f"{INSPECTIONS_AT_ONCE} inspections run and {len(self._waiting)} wait; nothing was "
                "done, try again shortly with the same operation id",
                retry_after_ms=OVERLOADED_RETRY_MS,
            )
        self._last_ticket += 1
        self._open[key] = inspection = _Inspection(self._last_ticket, mutation, [submit], ledger)
        self._waiting.append(inspection)
        self._start_waiting()

    def settle(self, inspected: Inspected) -> list[Submit]:
        """Whom the verdict is for; nobody, when they were answered before it came."""
        inspection, inspector = self._running.pop(inspected.ticket)
        if inspector is not None and inspector.alive:  # a failed one has used its last breath
            self._idle.append(inspector)
        self._count(inspected.verdict)
        self._start_waiting()
        if self._open.get(inspection.key) is not inspection:
            return []
        del self._open[inspection.key]
        return inspection.submits

    def abandon(self) -> list[Submit]:
        """Give up what has no verdict yet: all of them, for the ledger to answer."""
        submits = [submit for inspection in self._open.values() for submit in inspection.submits]
        self._open.clear()
        self._waiting.clear()
        return submits

    def _start_waiting(self) -> None:
        busy = {inspection.session_id for inspection, _ in self._running.values()}
        for inspection in list(self._waiting):
            if len(self._running) >= INSPECTIONS_AT_ONCE:
                return
            if inspection.session_id not in busy:
                busy.add(inspection.session_id)
                self._waiting.remove(inspection)
                self._start(inspection)

    def _start(self, inspection: _Inspection) -> None:
        try:
            inspector = self._inspector()
        except (RuntimeError, MemoryError):
            self._running[inspection.ticket] = (inspection, None)
            inspection.ledger.tell(
                Inspected(inspection.ticket, Failed("no thread could be started to run it"))
            )
            return
        self._running[inspection.ticket] = (inspection, inspector)
        verdict = TellReply(
            inspection.ledger,
            partial(Inspected, inspection.ticket),
            lambda _: Inspected(inspection.ticket, Failed("the bus itself failed to run it")),
        )
        inspector.tell(Inspect(inspection.mutation, verdict))

    def _inspector(self) -> Address[InspectorMessage]:
        if self._idle:
            return self._idle.pop()
        living = [address for address in self._addresses if address.alive]
        self._started += 1
        new = start_actor(
            InspectorActor(self._run),
            label=str(self._started),
            crashed=self._crashed,
            within_s=None,
        )
        self._addresses = (*living, new)
        return new

    def _run(self, document: bytes) -> Verdict:
        return inspect(self._argv, document, self._timeout_s, self._cancellation, self._guard)

    def _count(self, verdict: Verdict) -> None:
        match verdict:
            case Allowed():
                self._allowed += 1
            case Denied():
                self._denied += 1
            case Failed():
                self._failed += 1
            case _:
                assert_never(verdict)

    # --- for the composition root, on any thread ---

    @property
    def addresses(self) -> tuple[Address[InspectorMessage], ...]:
        return self._addresses

    def cancel(self) -> None:
        """End every run and its processes, now and from now on; their verdict is a failure."""
        self._cancellation.cancel()

    def close(self) -> None:
        """The last thing: no inspector works any more."""
        self._guard.close()

    def statistics(self) -> InspectionStatistics:
        return InspectionStatistics(
            allowed=self._allowed,
            denied=self._denied,
            failed=self._failed,
            running=len(self._running),
            waiting=len(self._waiting),
        )


def refusal(mutation: Mutation, verdict: Denied | Failed) -> BusError:
    """What the caller hears instead of a receipt. Logs it, without anything of the payload."""
    operation_id = ascii(mutation.operation_id)
    session_id = mutation.attachment.session_id
    match verdict:
        case Denied(reason):
            said = ascii(reason)[:LOGGED_CHARACTERS]
            _log.info("operation %s of session %s was denied: %s", operation_id, session_id, said)
            return InspectionRejectedError(
                f"the inspection command of this bus denied the {mutation.operation.NAME}; change "
                "the content as the reason asks, the same content is denied again",
                reason=reason,
            )
        case Failed(what):
            _log.warning(
                "inspection of operation %s of session %s failed: %s",
                operation_id,
                session_id,
                what,
            )
            return InspectionUnavailableError(
                f"the inspection command gave no verdict: {what}; nothing was stored. Try again "
                "with the same operation id; if it persists, a person has to repair the command"
            )
        case _:
            assert_never(verdict)
