"""The address table between sockets and attachments: which actor serves which frame.

Written by the registrar, read by the transport thread for every frame. Thread-safe by holding
nothing but whole, immutable answers in a dictionary; it decides nothing and queues nothing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from actors.base import Address, Reply
from actors.messages import AttachmentMessage, Link, LiveSession
from agentbus.errors import StaleAttachmentError
from agentbus.identity import Attachment
from agentbus.ids import SessionId


@dataclass(slots=True)
class Route:
    """Where the frames of one attachment go, and how busy it is.

    `last_call_s` (monotonic) and `waiting` are written by the transport and by settled replies;
    whoever tells an idle session from a busy one reads them.
    """

    attachment: Attachment
    link: Link
    address: Address[AttachmentMessage]
    session: LiveSession
    last_call_s: float
    waiting: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def begin_wait(self) -> None:
        with self._lock:
            self.waiting += 1

    def end_wait(self) -> None:
        with self._lock:
            self.waiting -= 1


class Routes:
    """Session -> route. At most one per session, as there is at most one live attachment."""

    def __init__(self) -> None:
        self._routes: dict[SessionId, Route] = {}
        self._ending: dict[Attachment, Route] = {}

    def bind(self, route: Route) -> None:
        self._routes[route.attachment.session_id] = route

    def live(self) -> list[Route]:
        """The routes of all attachments that live."""
        return list(self._routes.values())

    def all(self) -> list[Route]:
        """The routes of all attachments that live or are about to end."""
        return [*self._routes.values(), *self._ending.values()]

    def unbind(self, attachment: Attachment) -> None:
        """Forget it, unless a newer generation has taken its place."""
        route = self._routes.get(attachment.session_id)
        if route is not None and route.attachment == attachment:
            del self._routes[attachment.session_id]
            self._ending[attachment] = route

    def ended(self, attachment: Attachment) -> None:
        """An attachment that was unbound has said its last word."""
        self._ending.pop(attachment, None)

    def find(self, attachment: Attachment, link: Link) -> Route:
        """The route of a frame that names `attachment`. Raises StaleAttachmentError."""
        route = self._routes.get(attachment.session_id)
        if route is None or route.attachment != attachment or route.link is not link:
            raise StaleAttachmentError(
                "this attachment is no longer current on this connection; attach again"
            )
        return route


class WaitReply:
    """Answers a request that may wait for long, and ends its count on the route."""

    __slots__ = ("_reply", "_route")

    def __init__(self, reply: Reply, route: Route) -> None:
        self._reply = reply
        self._route = route
        route.begin_wait()

    def set(self, value: object) -> None:
        self._route.end_wait()
        self._reply.set(value)

    def set_exception(self, error: BaseException) -> None:
        self._route.end_wait()
        self._reply.set_exception(error)
