"""The listening socket: takes new clients of our own user, and rests when it cannot.

Owns: the listening socket, its registration in the loop's selector, the peer check. Never: reads
from a client. Runs on the transport thread; belongs to the listener.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import time
from collections.abc import Callable
from typing import Final

from agentbus.transport.peer import Peer, peer_of

_log = logging.getLogger(__name__)

PAUSE_S: Final = 0.1
"""How long `accept` rests when the process or machine has no descriptor left; doubles up to 2 s."""
PAUSE_MAX_S: Final = 2.0

_CLIENT_LEFT = frozenset({errno.ECONNABORTED, errno.EPROTO})
"""The queue is shorter by that client, so the next `accept` is another one. After any other error
it would be the same again, for ever."""


class Acceptor:
    """Calls `welcome(socket, peer)` for each client; the socket is the callee's from then on."""

    def __init__(
        self,
        listening: socket.socket,
        selector: selectors.BaseSelector,
        accepted_uid: int,
        welcome: Callable[[socket.socket, Peer], None],
    ) -> None:
        self._listening = listening
        self._selector = selector
        self._accepted_uid = accepted_uid
        self._welcome = welcome
        self._open = True
        self._pause_s = PAUSE_S
        self.again_s: float | None = None  # resting until this monotonic time
        self.accepted = self.refused = self.pauses = 0
        listening.setblocking(False)
        self._register()

    def accept_all(self) -> None:
        """Take everybody who waits. Called when the listening socket is readable."""
        while self._open:
            try:
                connected, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _CLIENT_LEFT:
                    continue
                self._rest(error)
                return
            self._pause_s = PAUSE_S
            self._check(connected)

    def resume_when_due(self, now_s: float) -> None:
        """End a rest whose time is over."""
        if self.again_s is not None and self.again_s <= now_s:
            self.again_s = None
            self._register()

    def close(self) -> None:
        """Take nobody any more. Clients that wait in the queue are turned away by the kernel."""
        if self._open:
            self._open = False
            if self.again_s is None:
                self._selector.unregister(self._listening)
            self.again_s = None
            self._listening.close()

    def _register(self) -> None:
        self._selector.register(self._listening, selectors.EVENT_READ, self.accept_all)

    def _rest(self, error: OSError) -> None:
        """Accepting again at once would fail again at once: the client is still in the queue."""
        _log.warning(
            "cannot accept for %.1f s: %s; if too many files are open, raise the limit (ulimit -n)",
            self._pause_s,
            error.strerror,
        )
        self.pauses += 1
        self._selector.unregister(self._listening)
        self.again_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    def _check(self, connected: socket.socket) -> None:
        try:
            peer = peer_of(connected)
        except OSError:
            connected.close()
            return
        if peer.uid != self._accepted_uid:
            self.refused += 1
            _log.warning("refused a client of user %d, process %s", peer.uid, peer.pid)
            connected.close()
            return
        self.accepted += 1
        connected.setblocking(False)
        self._welcome(connected, peer)
