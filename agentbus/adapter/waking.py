"""Wakes an idle conversation where its harness has a command for that.

Owns who is idle: a conversation whose hook said that it stopped, until its next call or prompt. It
is woken once, when something waits; the next stop arms it again, so there is no loop. The words are
fixed: never anything that a peer wrote. Used in the thread of the event loop; the command is a
process of its own that nobody waits for for long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from agentbus.adapter.conversation import Conversation

_log = logging.getLogger(__name__)

WAKE_TEXT = "Messages wait for you on Agentbus; call its tool receive."
COMMAND_S = 20.0
"""Its harness answers within a second or so."""


class Waker:
    """`command`: what wakes a conversation, None where nothing does."""

    def __init__(self, command: Callable[[str], list[str] | None]) -> None:
        self._command = command
        self._idle: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def stopped(self, conversation: str) -> None:
        """Its turn has ended."""
        self._idle.add(conversation)

    def active(self, conversation: str) -> None:
        """It does something again."""
        self._idle.discard(conversation)

    def arrived(self, conversation: Conversation) -> None:
        """Something came for it, or it stopped with something waiting."""
        identity = conversation.binding.identity
        if (
            identity.child is None
            and identity.conversation in self._idle
            and conversation.prefetch.pending
        ):
            self._idle.discard(identity.conversation)
            command = self._command(identity.conversation)
            if command is not None:
                task = asyncio.create_task(_run(command))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)


async def _run(command: list[str]) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        _log.warning("the conversation could not be woken: %s", error)
        return
    try:
        code = await asyncio.wait_for(process.wait(), COMMAND_S)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        _log.warning("the command that wakes the conversation hung")
        return
    if code:
        _log.warning("the command that wakes the conversation failed with %d", code)
