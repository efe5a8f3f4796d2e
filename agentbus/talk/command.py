"""`--exec`: a command answers, with the question on its stdin and the answer on its stdout.

Owns the threads that wait for the commands. A prompt is never in an argument or in the environment,
where other users of the machine could read it. What the command needs to ask on is in its
environment: its own name and the depth it is at.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from types import MappingProxyType
from typing import Final

from agentbus.command_guard import Guard
from agentbus.command_run import (
    Cancellation,
    Ended,
    OutputLimits,
    RunCancelledError,
    RunFailedError,
    RunTimedOutError,
    run_command,
)
from agentbus.encoding import check_text
from agentbus.errors import ValidationError
from agentbus.limits import KIB
from agentbus.talk.handler import Answered, Delegation, NotAnswered
from agentbus.talk.http_guard import CONNECTIONS

EXIT_CODES: Final[Mapping[int, str]] = MappingProxyType(
    {10: "auth", 11: "budget_exhausted", 12: "write_permission"}
)
"""What the command says by its exit code; 0 is an answer, every other one is `engine_cli`."""

AT_ONCE: Final = CONNECTIONS
"""Commands that run, those of callers that have gone included; more are refused, none waits."""

ANSWER_BYTES: Final = 256 * KIB
ERROR_BYTES: Final = 64 * KIB
"""Of stdout; of the end of stderr, whose last line explains a failure."""

INSTANCE_VARIABLE: Final = "AGENTBUS_TALK_INSTANCE"
DEPTH_VARIABLE: Final = "AGENTBUS_TALK_DEPTH"

_LIMITS: Final = OutputLimits(ANSWER_BYTES, ERROR_BYTES, keep_tail=True)


class CommandHandler:
    """Runs `argv` once per question, each in a process group of its own."""

    knows_repeats: Final = False

    def __init__(self, instance: str, argv: Sequence[str]) -> None:
        self._instance = instance
        self._argv = tuple(argv)
        self._cancellation = Cancellation()
        self._guard = Guard()
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="command")
        self._under_way: set[Future[Answered | NotAnswered]] = set()

    async def answer(self, delegation: Delegation) -> Answered | NotAnswered:
        if len(self._under_way) >= AT_ONCE:
            return NotAnswered("instance_unavailable", f"{AT_ONCE} commands are running here")
        run = self._threads.submit(self._run, delegation)
        self._under_way.add(run)
        run.add_done_callback(self._under_way.discard)  # also of a question that was given up
        return await asyncio.wrap_future(run)

    def stop(self) -> None:
        self._cancellation.cancel()

    def close(self) -> None:
        with closing(self._guard), closing(self._cancellation):
            self._cancellation.cancel()
            self._threads.shutdown()

    def _run(self, delegation: Delegation) -> Answered | NotAnswered:
        environment = {
            **os.environ,
            INSTANCE_VARIABLE: self._instance,
            DEPTH_VARIABLE: str(delegation.depth),
        }
        try:
            ended = run_command(
                self._argv,
                delegation.prompt.encode(),
                delegation.work_s,
                self._cancellation,
                _LIMITS,
                guard=self._guard,
                environment=environment,
            )
        except RunTimedOutError as error:
            return NotAnswered("timeout", f"no answer within {delegation.work_s:g} s: {error}")
        except RunCancelledError:
            return NotAnswered("instance_unavailable", "the server was stopped meanwhile")
        except RunFailedError as error:
            return NotAnswered("engine_cli", f"the command has failed: {error}")
        return meaning_of(ended)


def meaning_of(ended: Ended) -> Answered | NotAnswered:
    """What the end of the command says."""
    if ended.code == 0:
        try:
            text = ended.stdout.decode()
            check_text(text)
        except (UnicodeDecodeError, ValidationError):
            return NotAnswered("engine_cli", "the command's output is not text in UTF-8")
        return Answered(text)
    lines = ended.stderr.decode(errors="replace").replace("\0", " ").strip().splitlines()
    if ended.code is None:
        how = "could not be ended"
    elif ended.code < 0:
        how = f"was ended by signal {-ended.code}"
    else:
        how = f"exited with {ended.code}"
    error = lines[-1].strip() if lines else f"the command {how}"
    return NotAnswered(EXIT_CODES.get(ended.code or -1, "engine_cli"), error)
