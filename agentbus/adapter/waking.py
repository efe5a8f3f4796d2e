"""Wakes an idle conversation where its harness has a command for that.

Owns who is idle: a conversation whose hook said that it stopped, until its next call or prompt. It
is woken once, when something new arrives; the next stop arms it again, and what waited then is the
business of the Stop hook itself, so there is no loop. The words are fixed: never anything that a
peer wrote. Used in the thread of the event loop; the command is a process of its own that nobody
waits for for long.

The command is the program that the harness process itself runs, since that need not be on the PATH
and another one there may be of another version; else what is found on the PATH.

Also the words for an agent that asks again and again where it could be woken.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
from contextlib import suppress
from typing import Final

from agentbus.adapter.binding import Caller
from agentbus.adapter.threads import in_thread
from agentbus.harnesses import wake_command
from agentbus.identity import SessionIdentity
from agentbus.processes import executable

_log = logging.getLogger(__name__)

WAKE_TEXT = (
    "Something waits for you on Agentbus: call its tool receive for messages, or peer with op wait "
    "for direct work."
)
COMMAND_S = 20.0
"""Its harness answers within a second or so."""


_POLLING: Final = "Nothing came in several waits in a row, and each wait costs a turn: "


def polling_hint(caller: Caller) -> str:
    """What an agent should do instead of waiting once more.

    A child has no conversation of its own that a command could wait for.
    """
    identity = caller.binding.identity
    if not caller.runs_commands or identity.child is not None:
        return _POLLING + (
            "go on with other work and look again later, or wait longer at a time: more "
            "wait_seconds of receive, more timeout of a peer wait."
        )
    command = f"agentbus wait --session {shlex.quote(identity.conversation)}"
    return _POLLING + f"run `{command}` in the background; it ends when something waits."


class Waker:
    """Told by the calls of what happens to their conversations."""

    def __init__(self, harness_pid: int | None) -> None:
        self._harness_pid = harness_pid
        self._idle: set[SessionIdentity] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def stopped(self, identity: SessionIdentity) -> None:
        """Its turn has ended."""
        self._idle.add(identity)

    def active(self, identity: SessionIdentity) -> None:
        """It does something again."""
        self._idle.discard(identity)

    def arrived(self, identity: SessionIdentity) -> None:
        """Something new came for it."""
        if identity not in self._idle:
            return
        self._idle.discard(identity)
        command = wake_command(identity.application, identity.conversation, WAKE_TEXT)
        if command is not None:
            task = asyncio.create_task(self._run(command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, command: list[str]) -> None:
        name, *arguments = command
        program = await in_thread(lambda: self._program(name), discard=lambda found: None)
        if program is None:
            _log.warning("the conversation could not be woken: there is no %s", name)
        else:
            await _run([program, *arguments])

    def _program(self, name: str) -> str | None:
        own = None if self._harness_pid is None else executable(self._harness_pid)
        return str(own) if own is not None and own.name == name else shutil.which(name)


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
