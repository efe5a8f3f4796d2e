"""The prefetch window: how much may be on its way to an adapter that has not handed it off."""

from __future__ import annotations


class Credit:
    """Room left in one attachment's window, in messages and bytes.

    A message larger than the whole window may still go when nothing else is outstanding: otherwise
    delivery would stand still for ever. Not thread-safe: one owner.
    """

    __slots__ = ("_bytes", "_messages", "_window_bytes", "_window_messages")

    def __init__(self, window_messages: int, window_bytes: int) -> None:
        self._window_messages = window_messages
        self._window_bytes = window_bytes
        self._messages = window_messages
        self._bytes = window_bytes

    @property
    def messages(self) -> int:
        """How many more messages may go."""
        return self._messages

    @property
    def size_bytes(self) -> int:
        """How many more bytes may go; a single message may go beyond it, see the class."""
        return self._bytes

    def allows(self, size_bytes: int) -> bool:
        """Whether one message of that size may go now."""
        if self._messages < 1:
            return False
        return size_bytes <= self._bytes or self._messages == self._window_messages

    def spend(self, size_bytes: int) -> None:
        """One message of that size goes."""
        self._messages -= 1
        self._bytes -= size_bytes

    def grant(self, messages: int, size_bytes: int) -> None:
        """The adapter gives room back; never beyond the window."""
        self._messages = min(self._messages + messages, self._window_messages)
        self._bytes = min(self._bytes + size_bytes, self._window_bytes)

    def reset(self) -> None:
        """Everything outstanding was thrown away."""
        self._messages = self._window_messages
        self._bytes = self._window_bytes
