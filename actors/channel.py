"""One channel: who watches it, how far it is projected, what is told about its memories.

Owns the channel's head and its watchers, in plain memory, on the shared dispatcher. Never blocks,
never touches SQLite, Redis or a socket. `ChannelDirectory` is the only one that starts channels.
"""

from __future__ import annotations

import threading
from typing import assert_never

from actors.base import Address, Crashed
from actors.messages import (
    ChannelMessage,
    NoticePosted,
    Projected,
    Unwatch,
    Wake,
    Watch,
)
from actors.pool import Dispatcher, PooledActor
from agentbus.ids import ChannelId, Sequence


class ChannelActor(PooledActor[ChannelMessage]):
    """Fan-out of new heads and of changed memories.

    1. The head never goes back.
    2. A watcher that registers with an older position is woken at once, so no wake-up is lost
       between its last read and its registration.
    3. A watcher that failed does not unwatch; it is forgotten when it would be told something.
    """

    def __init__(self, channel_id: ChannelId) -> None:
        super().__init__()
        self._channel_id = channel_id
        self._head = Sequence(0)
        self._watchers: set[Address[Wake | NoticePosted]] = set()

    def receive(self, message: ChannelMessage) -> None:
        match message:
            case Projected(head, only_session):
                if head > self._head:
                    self._head = head
                    self._tell_all(Wake(self._channel_id, head, only_session))
            case Watch(watcher, after):
                self._watchers.add(watcher)
                if self._head > after:
                    watcher.tell(Wake(self._channel_id, self._head))
            case NoticePosted():
                self._tell_all(message)
            case Unwatch(watcher):
                self._watchers.discard(watcher)
            case _:
                assert_never(message)

    def _tell_all(self, message: Wake | NoticePosted) -> None:
        for watcher in tuple(self._watchers):
            if watcher.alive:
                watcher.tell(message)
            else:
                self._watchers.discard(watcher)


class ChannelDirectory:
    """Channel id -> its actor, started at the first look. Thread-safe; holds no channel state.

    A channel sleeps in its mailbox at the cost of a small object, so none is stopped before it is
    removed or the daemon ends. One that crashed is replaced at the next look.
    """

    def __init__(self, dispatcher: Dispatcher, crashed: Crashed) -> None:
        self._dispatcher = dispatcher
        self._crashed = crashed
        self._lock = threading.Lock()
        self._channels: dict[ChannelId, Address[ChannelMessage]] = {}

    def address(self, channel_id: ChannelId) -> Address[ChannelMessage]:
        """The channel's actor; the look-up of a known one takes no lock."""
        address = self._channels.get(channel_id)
        if address is not None and address.alive:
            return address
        with self._lock:
            address = self._channels.get(channel_id)
            if address is None or not address.alive:
                address = self._dispatcher.start(
                    ChannelActor(channel_id), label=str(channel_id), crashed=self._crashed
                )
                self._channels[channel_id] = address
            return address

    def forget(self, channel_id: ChannelId) -> None:
        """A channel that is no more; its id never comes again."""
        with self._lock:
            address = self._channels.pop(channel_id, None)
        if address is not None:
            address.stop()

    def addresses(self) -> list[Address[ChannelMessage]]:
        """All channels that were looked at so far."""
        with self._lock:
            return list(self._channels.values())
