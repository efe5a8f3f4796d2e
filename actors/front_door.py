"""From frames to messages: which actor gets what a client sent.

Implements the transport's `Handler`; runs on the transport thread and never blocks. Owns nothing
but what a connection said in its `hello`. It parses and addresses; it decides nothing else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from actors.base import Address
from actors.human_desk_messages import HumanDeskMessage, PersonAsked
from actors.inbox_messages import LeasesRenewed
from actors.job_messages import JobAsked, JobDeskMessage, JobEventAsked
from actors.messages import (
    STARTING,
    CallSeen,
    CompareHeldMemories,
    CreditGranted,
    DetachAsked,
    Disconnected,
    Greeted,
    HandingOff,
    HandoffReported,
    HookSeen,
    PullAsked,
    PullCancelled,
    ReadinessChanged,
    Register,
    RegistrarMessage,
    TalkAsked,
)
from actors.messages import Request as OperationRequest
from actors.peer_messages import PeerAsked, PeerCancelled, PeerResultShown
from actors.reporter import ReportAsked, ReporterMessage
from actors.routes import Route, Routes, WaitReply
from actors.supervisor_messages import StopAsked, SupervisorMessage
from actors.wait_keeper import WaitAsked, WaitKeeperMessage
from agentbus import __version__
from agentbus.clock import Clock
from agentbus.config import Config
from agentbus.errors import BusError, ValidationError, VersionMismatchError
from agentbus.identity import Attachment
from agentbus.ids import BusId
from agentbus.limits import PROTOCOL_VERSION
from agentbus.protocol.jobs import JOB_REQUESTS, parse_job_event, parse_job_request
from agentbus.protocol.jsonrpc import (
    METHOD_NOT_FOUND,
    Notification,
    ProtocolError,
    Request,
    encode_notification,
)
from agentbus.protocol.operations import OPERATIONS, Receive, parse_operation
from agentbus.protocol.peer import PeerCollect, PeerWait
from agentbus.protocol.peer_frames import (
    parse_cancel_peer,
    parse_peer_request,
    parse_peer_shown,
    parse_renew,
)
from agentbus.protocol.people import PERSONS_REQUESTS, parse_persons_request
from agentbus.protocol.session import (
    Fields,
    Hello,
    parse_attach,
    parse_cancel_pull,
    parse_credit,
    parse_detach,
    parse_handing_off,
    parse_handoff,
    parse_hello,
    parse_hook,
    parse_memories,
    parse_pull,
    parse_used,
    parse_wait,
)
from agentbus.protocol.talk import PARSERS as TALK_PARSERS
from agentbus.transport.connection import Connection
from agentbus.transport.reply import Reply

_OPERATION_PARAMS = frozenset({"attachment", "args"})
_REPORTS = ("status", "channels", "sessions")


@dataclass(frozen=True, slots=True)
class Desks:
    """Whom the front door sends to."""

    registrar: Address[RegistrarMessage]
    reporter: Address[ReporterMessage]
    supervisor: Address[SupervisorMessage]
    waits: Address[WaitKeeperMessage]
    people: Address[HumanDeskMessage]
    jobs: Address[JobDeskMessage]


class FrontDoor:
    """The transport's handler. `readiness` is set by the supervisor's announcements."""

    def __init__(
        self, desks: Desks, routes: Routes, config: Config, bus_id: BusId, clock: Clock
    ) -> None:
        self._desks = desks
        self._routes = routes
        self._config = config
        self._bus_id = bus_id
        self._clock = clock
        self._readiness = STARTING

    # --- from the supervisor, any thread ---

    def set_readiness(self, readiness: ReadinessChanged) -> bytes:
        """Remember it for heartbeats; returns the frame that tells every client."""
        self._readiness = readiness
        return encode_notification("readiness", self.heartbeat_payload())

    def heartbeat_payload(self) -> dict[str, Any]:
        return {"state": self._readiness.state, "epoch": self._readiness.epoch}

    # --- from the transport ---

    def connected(self, connection: Connection) -> None:
        return None

    def disconnected(self, connection: Connection) -> None:
        self._desks.registrar.tell(Disconnected(connection))
        self._desks.waits.tell(Disconnected(connection))

    def request(self, connection: Connection, request: Request, reply: Reply) -> None:
        method, params = request.method, request.params
        if method in OPERATIONS and method != Receive.NAME:
            self._operation(connection, method, params, reply)
        elif method == "pull":
            pull = parse_pull(params)
            route = self._route(pull.attachment, connection)
            route.address.tell(PullAsked(pull, WaitReply(reply, route)))
        elif method == "handoff":
            report = parse_handoff(params)
            self._route(report.attachment, connection).address.tell(HandoffReported(report, reply))
        elif method == "memories":
            asked = parse_memories(params)
            route = self._route(asked.attachment, connection)
            route.address.tell(CompareHeldMemories(asked.held, reply))
        elif method == "peer":
            self._peer(connection, params, reply)
        elif method == "job_event":
            frame = parse_job_event(params)
            self._route(frame.attachment, connection).address.tell(JobEventAsked(frame, reply))
        elif method in JOB_REQUESTS:
            self._desks.jobs.tell(JobAsked(parse_job_request(method, params), reply))
        elif method == "hello":
            reply.set(self._hello(connection, parse_hello(params)))
        elif method == "attach":
            self._attach(connection, params, reply)
        elif method == "detach":
            self._desks.registrar.tell(DetachAsked(parse_detach(params).attachment, reply))
        elif method == "hook":
            self._desks.registrar.tell(HookSeen(parse_hook(params), reply))
        elif method == "wait":
            self._desks.waits.tell(WaitAsked(parse_wait(params), connection, reply))
        elif method in TALK_PARSERS:
            question = TALK_PARSERS[method](params)
            pid = connection.peer.pid
            self._desks.registrar.tell(TalkAsked(question, connection, pid, reply))
        elif method in _REPORTS:
            Fields(method, params, frozenset())
            self._desks.reporter.tell(ReportAsked(method, reply))  # type: ignore[arg-type]
        elif method in PERSONS_REQUESTS:
            self._desks.people.tell(PersonAsked(parse_persons_request(method, params), reply))
        elif method in ("stop", "reset"):
            Fields(method, params, frozenset())
            self._desks.supervisor.tell(StopAsked(reply, reset=method == "reset"))
        else:
            raise ProtocolError(METHOD_NOT_FOUND, f"there is no method {method[:64]!r}", request.id)

    def notification(self, connection: Connection, notification: Notification) -> None:
        """A bad or stale notification moves nothing and, as the protocol has it, gets no answer."""
        method, params = notification.method, notification.params
        try:
            if method == "credit":
                credit = parse_credit(params)
                self._route(credit.attachment, connection).address.tell(CreditGranted(credit))
            elif method == "used":
                used = parse_used(params)
                self._route(used.attachment, connection).address.tell(CallSeen(used))
            elif method == "handing_off":
                told = parse_handing_off(params)
                self._route(told.attachment, connection).address.tell(HandingOff(told.exposed))
            elif method == "cancel_pull":
                cancel = parse_cancel_pull(params)
                self._route(cancel.attachment, connection).address.tell(PullCancelled(cancel))
            elif method == "cancel_peer":
                given_up = parse_cancel_peer(params)
                route = self._route(given_up.attachment, connection)
                route.address.tell(PeerCancelled(given_up.number))
            elif method == "renew":
                renew = parse_renew(params)  # by itself, so it is no sign that the agent listens
                route = self._routes.find(renew.attachment, connection)
                route.address.tell(LeasesRenewed(renew.attachment, renew.leases))
            elif method == "peer_shown":
                shown = parse_peer_shown(params)
                route = self._route(shown.attachment, connection)
                route.address.tell(PeerResultShown(shown.responses, shown.notices))
        except BusError:
            return

    def _operation(
        self, connection: Connection, method: str, params: dict[str, Any], reply: Reply
    ) -> None:
        fields = Fields(method, params, _OPERATION_PARAMS)
        attachment = fields.attachment()
        route = self._route(attachment, connection)
        operation = parse_operation(method, fields.mapping("args"))
        assert not isinstance(operation, Receive)
        route.address.tell(OperationRequest(operation, attachment, reply))

    def _peer(self, connection: Connection, params: dict[str, Any], reply: Reply) -> None:
        asked = parse_peer_request(params)
        route = self._route(asked.attachment, connection)
        if isinstance(asked.operation, PeerWait | PeerCollect):
            route.address.tell(PeerAsked(asked, WaitReply(reply, route)))
        else:
            route.address.tell(PeerAsked(asked, reply))

    def _route(self, attachment: Attachment, connection: Connection) -> Route:
        route = self._routes.find(attachment, connection)
        route.last_call_s = self._clock.monotonic_s()
        return route

    def _hello(self, connection: Connection, hello: Hello) -> dict[str, Any]:
        if hello.protocol != PROTOCOL_VERSION:
            raise VersionMismatchError(
                f"the daemon speaks protocol {PROTOCOL_VERSION} (agentbus {__version__}), this "
                f"client {hello.protocol} (agentbus {hello.version}); run `agentbus stop`, then "
                "start the client again with the newer version"
            )
        if hello.config_path is not None and hello.version != __version__:
            raise VersionMismatchError(
                f"the daemon runs agentbus {__version__}, this session agentbus {hello.version}; "
                "run `agentbus stop` once and restart the older session"
            )
        connection.context = hello
        if hello.harness_pid is not None:
            self._desks.registrar.tell(Greeted(connection, hello.harness_pid))
            self._desks.waits.tell(Greeted(connection, hello.harness_pid))
        return {
            "protocol": PROTOCOL_VERSION,
            "version": __version__,
            "pid": os.getpid(),
            "bus_id": self._bus_id,
            "config_path": str(self._config.path),
            **self.heartbeat_payload(),
        }

    def _attach(self, connection: Connection, params: dict[str, Any], reply: Reply) -> None:
        hello = connection.context
        if hello is None:
            raise ValidationError("attach: say hello first")
        self._desks.registrar.tell(Register(parse_attach(params), hello, connection, reply))
