"""Who is attached: sessions, their live attachments and the display names in use.

Owns the map of live attachments, in plain memory, on the shared dispatcher; starts and ends the
attachment actors. Agents, sessions and generations are rows: the ledger makes them.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

from actors.attachment import AttachmentActor, Neighbours
from actors.base import Address, Crashed, start_actor
from actors.hook_evidence import HookEvidence
from actors.messages import (
    STARTING,
    AttachmentCrashed,
    DetachAsked,
    Detached,
    DirectoryAsked,
    Disconnected,
    Greeted,
    HookSeen,
    LeaveDue,
    LedgerMessage,
    Link,
    LiveSession,
    ReadinessChanged,
    Register,
    RegistrarMessage,
    Released,
    Roll,
    RollAsked,
    SessionBindingSettled,
    Submit,
    SubscriptionsChanged,
    SubscriptionsExpired,
    SweepLiveness,
    TalkAsked,
)
from actors.notices import notice_of_change
from actors.pool import PooledActor
from actors.queries import Profile
from actors.replies import TellReply
from actors.routes import Route, Routes
from actors.talk_desk_messages import TalkDeskMessage
from actors.talk_registry import Conversation, TalkRegistry
from actors.timer import TimerHandle
from actors.wait_keeper import AttachmentClosed, AttachmentOpened, ConversationEnded
from agentbus.clock import Clock
from agentbus.config import Config
from agentbus.encoding import encode_line
from agentbus.envelope import rfc3339
from agentbus.errors import (
    BusError,
    ConfigMismatchError,
    SessionAlreadyConnectedError,
    StaleAttachmentError,
    UnavailableError,
    ValidationError,
)
from agentbus.identity import Attachment, SessionIdentity
from agentbus.ids import BusId, SessionId
from agentbus.limits import ATTACHMENT_EXPIRY_SECONDS, HEARTBEAT_SECONDS, PEER_CAPABILITIES
from agentbus.protocol.session import Attach, HookEvent
from agentbus.store.changes import BindSession, SessionBound

_log = logging.getLogger(__name__)

HOLDER_RETRY_MS = 1000

LEAVE_SECONDS = 5.0
"""How long a newcomer waits for the end of the attachment before it: longer than any read of Redis
or of the disk that could keep that one from its last word."""


@dataclass(frozen=True, slots=True)
class Live:
    """One live attachment."""

    key: _Key
    session: LiveSession
    route: Route
    adapter_pid: int
    harness_pid: int | None


@dataclass(frozen=True, slots=True)
class _Leaving:
    """An attachment whose end its successor waits for, and the end of that patience."""

    attachment: Attachment
    due: TimerHandle


_Key = tuple[str, SessionIdentity]
"""Agent name and native identity: what makes a session."""


class RegistrarActor(PooledActor[RegistrarMessage]):
    """The directory of the living.

    1. At most one live attachment per session; the first one is kept unless it has lapsed, its
       process is gone, or it is idle and the newcomer's conversation is proven.
    2. One bind is with the ledger at a time, so that display names are given without a race.
    3. An attachment is routed before its client hears of it, and starts after.
    4. A session is bound anew only after the last word of the attachment before it is with the
       ledger: what was handed off then comes again marked. Bounded by `LEAVE_SECONDS`.
    """

    def __init__(
        self,
        neighbours: Callable[[], Neighbours],
        ledger: Address[LedgerMessage],
        routes: Routes,
        config: Config,
        bus_id: BusId,
        clock: Clock,
        crashed: Crashed,
        waits: Address[AttachmentOpened | AttachmentClosed | ConversationEnded],
        talk_desk: Address[TalkDeskMessage],
    ) -> None:
        super().__init__()
        self._waits = waits
        self._make_neighbours = neighbours
        self._ledger = ledger
        self._routes = routes
        self._config = config
        self._bus_id = bus_id
        self._clock = clock
        self._notify_crash = crashed
        self._readiness = STARTING
        self._live: dict[_Key, Live] = {}
        self._leaving: dict[_Key, _Leaving] = {}
        self._binding: Register | None = None
        self._waiting: deque[Register] = deque()
        self._hooks = HookEvidence()
        self._talk_desk = talk_desk
        self._talk = TalkRegistry(clock, self._conversations_of, talk_desk)
        # By connection and agent: what the conversation before was called there.
        self._former_names: dict[tuple[Link, str], str] = {}
        self._neighbours: Neighbours

    def on_start(self) -> None:
        self._neighbours = self._make_neighbours()
        self._neighbours.timer.deliver_every(HEARTBEAT_SECONDS, self.address, SweepLiveness())

    def receive(self, message: RegistrarMessage) -> None:
        match message:
            case Register():
                self._register(message)
            case Greeted(link, harness_pid):
                self._hooks.greeted(link, harness_pid, self._clock.monotonic_s())
            case HookSeen(event, reply_to):
                self._hook_seen(event)
                reply_to.set({})
            case SessionBindingSettled(bound, error):
                self._bind_settled(bound, error)
            case DetachAsked(attachment, reply_to):
                self._release_where(lambda live: live.session.attachment == attachment, None)
                reply_to.set({})
            case Disconnected(link):
                self._disconnected(link)
            case Released(attachment):
                self._released(attachment)
            case LeaveDue(attachment):
                self._leave_due(attachment)
            case AttachmentCrashed(attachment):
                self._attachment_crashed(attachment)
                self._released(attachment)
            case SubscriptionsExpired(facts):
                for fact in facts:
                    for live in self._live.values():
                        if live.session.attachment.session_id == fact.session_id:
                            live.route.address.tell(SubscriptionsChanged((fact,)))
            case SweepLiveness():
                self._sweep()
            case DirectoryAsked(query, reply_to):
                reply_to.set({"sessions": self._directory(query)})
            case RollAsked(reply_to):
                sessions = tuple(live.session for live in self._live.values())
                reply_to.set(Roll(sessions, self._hooks.heard()))
            case TalkAsked():
                self._talk.take(message)
            case ReadinessChanged():
                self._readiness = message
                self._talk_desk.tell(message)
                for live in self._live.values():
                    live.route.address.tell(message)
            case _:
                assert_never(message)

    # --- attaching ---

    def _register(self, register: Register) -> None:
        if self._readiness.state != "ready":
            raise UnavailableError(
                f"the bus is {self._readiness.state}; try again shortly",
                retry_after_ms=self._readiness.retry_after_ms,
            )
        self._check_config(register)
        self._check_capabilities(register.attach)
        self._waiting.append(register)
        self._bind_next()

    def _check_config(self, register: Register) -> None:
        hello = register.hello
        if hello.config_fingerprint is None:
            return
        path, fingerprint = str(self._config.path), self._config.fingerprint()
        if hello.config_path != path or hello.config_fingerprint != fingerprint:
            raise ConfigMismatchError(
                f"the daemon runs with {path} as it was when it started, this session wants "
                f"{hello.config_path}; run `agentbus stop`, then call again to start it anew"
            )

    def _capabilities(self, attach: Attach) -> tuple[str, ...]:
        return tuple(sorted({*self._config.capabilities, *attach.capabilities}))

    def _check_capabilities(self, attach: Attach) -> None:
        count = len(self._capabilities(attach))
        if count > PEER_CAPABILITIES:
            raise ValidationError(
                f"attach: capabilities must be at most {PEER_CAPABILITIES} with those of "
                f"{self._config.path}, not {count}"
            )

    def _bind_next(self) -> None:
        held: list[Register] = []  # their predecessors have not ended yet
        while self._waiting and self._binding is None:
            register = self._waiting.popleft()
            if register.link.closed:
                continue
            try:
                self._make_way(register)
            except BusError as error:
                register.reply_to.set_exception(error)
                continue
            if _key(register.attach) in self._leaving:
                held.append(register)
                continue
            self._binding = register
            self._ledger.tell(
                Submit(self._bind_change(register.attach, register.link), self._bind_reply())
            )
        self._waiting.extendleft(reversed(held))

    def _make_way(self, register: Register) -> None:
        """End the holder of the same session where that is allowed, else refuse the newcomer."""
        key = _key(register.attach)
        holder = self._live.get(key)
        if holder is None:
            return
        now_s = self._clock.monotonic_s()
        lapsed = now_s - holder.route.link.last_seen_s > ATTACHMENT_EXPIRY_SECONDS
        idle = (
            holder.route.waiting == 0
            and now_s - holder.route.last_call_s >= ATTACHMENT_EXPIRY_SECONDS
        )
        if (
            holder.route.link is register.link
            or holder.route.link.closed
            or lapsed
            or (register.attach.proven and idle)
        ):
            self._release(key, StaleAttachmentError("a newer attachment took this session over"))
            return
        if not _process_exists(holder.adapter_pid):
            # Its connection ends by itself, behind what it sent last and nobody has read yet.
            self._await_end(key, holder.session.attachment)
            return
        raise SessionAlreadyConnectedError(
            f"this conversation is attached already, as {holder.session.sender.display_name} by "
            f"process {holder.adapter_pid}; it is released when that process ends or falls silent "
            f"for {ATTACHMENT_EXPIRY_SECONDS:.0f} s",
            retry_after_ms=HOLDER_RETRY_MS,
        )

    def _bind_change(self, attach: Attach, link: Link) -> BindSession:
        parent: SessionId | None = None
        if attach.parent_conversation is not None:
            identity = SessionIdentity(attach.identity.application, attach.parent_conversation)
            live = self._live.get((attach.agent, identity))
            parent = live.session.attachment.session_id if live is not None else None
        former = None
        if attach.identity.child is None:
            former = self._former_names.get((link, attach.agent))
        names = frozenset(live.session.sender.display_name for live in self._live.values())
        return BindSession(
            agent=attach.agent,
            identity=attach.identity,
            names_in_use=names,
            preferred_name=former,
            parent=parent,
            role=attach.role,
            repository=attach.repository,
            capabilities=self._capabilities(attach),
        )

    def _bind_reply(self) -> TellReply[RegistrarMessage]:
        return TellReply(
            self.address,
            lambda bound: SessionBindingSettled(bound, None),
            lambda error: SessionBindingSettled(None, error),
        )

    def _bind_settled(self, bound: SessionBound | None, error: BaseException | None) -> None:
        register, self._binding = self._binding, None
        assert register is not None
        if bound is None:
            assert error is not None
            register.reply_to.set_exception(error)
        elif not register.link.closed:
            self._attach(register, bound)
        self._bind_next()

    def _attach(self, register: Register, bound: SessionBound) -> None:
        attach = register.attach
        attachment = Attachment(bound.session_id, bound.generation)
        profile = Profile(
            bound, attach.identity_source, attach.parent_conversation, self._bus_id, self._config
        )
        actor = AttachmentActor(
            profile,
            register.link,
            (attach.window_messages, attach.window_bytes),
            self._readiness,
            self._neighbours,
            self._config,
            self._clock,
        )
        session = LiveSession(
            attachment=attachment,
            sender=profile.sender,
            conversation=bound.identity.conversation,
            identity_source=attach.identity_source,
            attached_at_us=self._clock.wall_us(),
            adapter_pid=register.hello.pid,
            presence=attach.presence,
        )
        now_s = self._clock.monotonic_s()
        route = Route(attachment, register.link, actor.address, session, now_s)
        key = _key(attach)
        self._live[key] = Live(key, session, route, register.hello.pid, register.hello.harness_pid)
        self._routes.bind(route)
        conversation, harness_pid = bound.identity.conversation, register.hello.harness_pid
        self._waits.tell(AttachmentOpened(bound.session_id, conversation, harness_pid))
        register.reply_to.set(self._attach_answer(bound))
        try:
            start_actor(
                actor, label=bound.display_name, crashed=self._on_crash(attachment), within_s=None
            )
        except (RuntimeError, MemoryError) as error:  # no thread or no memory is left for it
            self._routes.unbind(attachment)
            self._waits.tell(AttachmentClosed(attachment.session_id))
            self._routes.ended(attachment)  # it never began: a stop would wait for it in vain
            del self._live[_key(attach)]
            register.link.close("no thread can be started for its attachment")
            self._notify_crash(actor.name, error)
            return
        _log.info("attached %s, generation %d", bound.session_id, bound.generation)

    def _on_crash(self, attachment: Attachment) -> Crashed:
        address = self.address

        def crashed(actor: str, error: BaseException) -> None:
            address.tell(AttachmentCrashed(attachment))
            self._notify_crash(actor, error)

        return crashed

    def _attach_answer(self, bound: SessionBound) -> dict[str, Any]:
        return {
            "session_id": bound.session_id,
            "generation": bound.generation,
            "agent_id": bound.agent_id,
            "agent": bound.agent,
            "display_name": bound.display_name,
            "resumed": bound.resumed,
            "bus_id": self._bus_id,
            "epoch": self._readiness.epoch,
            "discovery": self._config.discovery_enabled,
            "memory_changes": [notice_of_change(change) for change in bound.memory_changes],
            "subscriptions": [
                {
                    "subscription": row.subscription_id,
                    "channel": row.channel,
                    "kind": row.kind,
                    "handed_off": row.handed_off,
                    "confirmed": row.confirmed,
                    "expired_at": None if row.expired_at_us is None else rfc3339(row.expired_at_us),
                }
                for row in bound.subscriptions
            ],
        }

    # --- detaching ---

    def _release(self, key: _Key, error: BusError | None) -> None:
        """End one attachment; with an error its client is told."""
        live = self._live.pop(key)
        attachment = live.session.attachment
        agent, identity = key
        if identity.child is None:
            self._former_names[live.route.link, agent] = live.session.sender.display_name
        self._routes.unbind(attachment)
        self._waits.tell(AttachmentClosed(attachment.session_id))
        if live.route.address.alive:
            self._await_end(key, attachment)
        else:
            self._routes.ended(attachment)
        live.route.address.tell(Detached())
        if error is not None:
            live.route.link.send(_detached_frame(attachment, error))

    def _await_end(self, key: _Key, attachment: Attachment) -> None:
        if key not in self._leaving:
            due = self._neighbours.timer.deliver_after(
                LEAVE_SECONDS, self.address, LeaveDue(attachment)
            )
            self._leaving[key] = _Leaving(attachment, due)

    def _released(self, attachment: Attachment) -> None:
        for key, leaving in list(self._leaving.items()):
            if leaving.attachment == attachment:
                leaving.due.cancel()
                del self._leaving[key]
                self._routes.ended(attachment)
                self._bind_next()

    def _leave_due(self, attachment: Attachment) -> None:
        """What keeps its successor waiting has had its time."""
        _log.warning("%s did not end in %g s", attachment.session_id, LEAVE_SECONDS)
        for key, live in list(self._live.items()):
            if live.session.attachment == attachment:  # its process is gone, its connection is not
                del self._leaving[key]
                self._release(key, None)
                self._bind_next()
                return
        self._released(attachment)

    def _release_where(self, chosen: Callable[[Live], bool], error: BusError | None) -> None:
        for key, live in list(self._live.items()):
            if chosen(live):
                self._release(key, error)

    def _disconnected(self, link: Link) -> None:
        self._release_where(lambda live: live.route.link is link, None)
        self._hooks.gone(link)
        self._talk.disconnected(link)
        for known in [known for known in self._former_names if known[0] is link]:
            del self._former_names[known]

    def _hook_seen(self, event: HookEvent) -> None:
        """What a harness says to have ended is released at once; its adapters are told the rest."""
        self._hooks.seen(event, self._clock.monotonic_s(), self._clock.wall_us())
        if event.event == "SessionEnd":
            self._waits.tell(ConversationEnded(event.application, event.conversation))
            ended = (event.application, event.conversation)
            self._release_where(
                lambda live: (
                    (live.session.sender.application, live.session.conversation) == ended
                    and self._hooks.may_concern(event, live.route.link)
                ),
                StaleAttachmentError("the harness says that this conversation has ended"),
            )

    def _attachment_crashed(self, attachment: Attachment) -> None:
        for live in list(self._live.values()):
            if live.session.attachment == attachment:
                live.route.link.close("its attachment failed")

    def _sweep(self) -> None:
        """Close connections without liveness; their attachments end with them."""
        now_s = self._clock.monotonic_s()
        for live in list(self._live.values()):
            if now_s - live.route.link.last_seen_s > ATTACHMENT_EXPIRY_SECONDS:
                live.route.link.close(f"silent for {ATTACHMENT_EXPIRY_SECONDS:.0f} s")

    # --- directory ---

    def _conversations_of(self, agent: str) -> list[Conversation]:
        return [
            Conversation(
                live.session.sender.agent_id,
                live.session.attachment.session_id,
                frozenset(pid for pid in (live.adapter_pid, live.harness_pid) if pid is not None),
            )
            for live in self._live.values()
            if live.session.sender.agent == agent
        ]

    def _directory(self, query: str) -> list[dict[str, Any]]:
        wanted = query.casefold()
        found = []
        for live in self._live.values():
            sender = live.session.sender
            entry = {
                "display_name": sender.display_name,
                "agent": sender.agent,
                "application": sender.application,
                "child": sender.child,
                "repository": sender.repository,
            }
            shown = {key: value for key, value in entry.items() if value is not None}
            if not wanted or any(wanted in value.casefold() for value in shown.values()):
                found.append(shown | {"since": rfc3339(live.session.attached_at_us)})
        return sorted(found, key=lambda entry: entry["display_name"])


def _key(attach: Attach) -> _Key:
    return (attach.agent, attach.identity)


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _detached_frame(attachment: Attachment, error: BusError) -> bytes:
    return encode_line(
        {
            "jsonrpc": "2.0",
            "method": "detached",
            "params": {
                "session_id": attachment.session_id,
                "generation": attachment.generation,
                "code": error.code,
                "message": error.message,
            },
        }
    )
