"""`agentbus wait`: block until something waits for a session; the way to be woken without polling.

Moves no cursor. Never starts a daemon; when one is lost it looks for the next, until its time is
up. Ends with the harness process that it belongs to. Main thread, and one that watches that
process.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Final

from agentbus.cli.entry import EXIT_OK, EXIT_USAGE, Arguments, complain
from agentbus.cli.hook import input_fields
from agentbus.encoding import encode
from agentbus.errors import BusError, NotFoundError, UnavailableError, ValidationError
from agentbus.harnesses.hook_commands import (
    conversation_of,
    ends_after_this_turn,
    harness_pid,
    wake_text,
)
from agentbus.processes import ancestors, arguments_of, executable, is_running, start_mark
from agentbus.protocol.fields import check_name
from agentbus.protocol.jsonrpc import Notification
from agentbus.transport.client import Client

EXIT_WOKEN: Final = 0
EXIT_TIMEOUT: Final = 1
EXIT_ERROR: Final = 2
EXIT_WAKE: Final = 2
"""With --hook: how a Stop hook tells Claude Code to begin a turn."""

EXIT_REPLACED: Final = 3
EXIT_HARNESS_GONE: Final = 4

TIMEOUT_S: Final = 3600.0
HOOK_TIMEOUT_S: Final = 24 * 3600.0
RETRY_S: Final = 1.0
ANSWER_S: Final = 10.0
"""How much longer than the wait its answer may take."""

_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish", "busybox"})


def wait(arguments: Arguments) -> int:
    """See the exit codes above. With --hook every trouble is silent and exits 0."""
    is_hook = bool(arguments["--hook"])
    try:
        timeout_s = _seconds(arguments["--timeout"], HOOK_TIMEOUT_S if is_hook else TIMEOUT_S)
        harness = harness_pid("claude-code", os.environ, starter())
        if is_hook and ends_after_this_turn(os.environ, arguments_of(harness)):
            return EXIT_OK
        _end_with_harness(harness)
        question = _question(arguments, is_hook)
        answer = _Waiter(question, timeout_s).run()
    except ValidationError as error:
        if is_hook:
            return EXIT_OK
        complain(error.message)
        return EXIT_USAGE
    except BusError as error:
        if is_hook:
            return EXIT_OK
        complain(error.message)
        return EXIT_ERROR
    return _tell_hook(answer) if is_hook else _tell(answer)


def _tell(answer: dict[str, Any]) -> int:
    for entry in answer["channels"]:
        sys.stdout.write(encode(entry).decode() + "\n")
    if answer["peer"]:
        sys.stdout.write(encode({"peer": answer["peer"]}).decode() + "\n")
    if answer["outcome"] == "replaced":
        return EXIT_REPLACED
    return EXIT_WOKEN if answer["channels"] or answer["peer"] else EXIT_TIMEOUT


def _tell_hook(answer: dict[str, Any]) -> int:
    if answer["outcome"] != "woken":
        return EXIT_OK
    sys.stderr.write(wake_text(answer) + "\n")
    return EXIT_WAKE


def _seconds(given: str | None, default_s: float) -> float:
    if given is None:
        return default_s
    with suppress(ValueError):
        seconds = float(given)
        if 0 <= seconds <= HOOK_TIMEOUT_S:
            return seconds
    raise ValidationError(f"--timeout must be 0 to {HOOK_TIMEOUT_S:.0f} seconds, not {given!r}")


def _question(arguments: Arguments, is_hook: bool) -> dict[str, Any]:
    """Whose messages: --session, a hook's input, the environment, else the harness process."""
    conversation = arguments["--session"]
    if conversation is None and is_hook:
        conversation = input_fields().get("session_id")
    if not isinstance(conversation, str):
        conversation = conversation_of(os.environ)
    question: dict[str, Any] = {"channels": arguments["--channel"], "only_new": is_hook}
    question["harness_pids"] = ancestors(os.getpid())
    if conversation is None:
        return question
    return {**question, "conversation": check_name(conversation, "the conversation")}


def starter() -> int:
    """Whose command this is: the nearest process it descends from that is no shell.

    A shell that put it into the background ends at once, and says nothing about the harness.
    """
    for pid in ancestors(os.getpid()):
        program = executable(pid)
        if program is None or program.name not in _SHELLS:
            return pid
    return os.getppid()


def _end_with_harness(pid: int) -> None:
    """Exit when the harness process has gone: nobody could be woken any more."""
    mark = start_mark(pid)

    def watch() -> None:
        while mark is not None and is_running(pid, mark):
            time.sleep(1.0)
        os._exit(EXIT_HARNESS_GONE)

    threading.Thread(target=watch, name="harness", daemon=True).start()


class _Waiter:
    """One wait, over as many connections as it takes."""

    def __init__(self, question: dict[str, Any], timeout_s: float) -> None:
        self._question = question
        self._deadline_s = time.monotonic() + timeout_s
        self._stopped = False

    def run(self) -> dict[str, Any]:
        """The daemon's answer. Raises BusError when it refuses or was stopped on purpose.

        Without any time it is asked what there is, once.
        """
        while True:
            left_s = max(0.0, self._deadline_s - time.monotonic())
            try:
                return self._ask(left_s)
            except NotFoundError:
                raise
            except BusError as error:
                if self._stopped:
                    raise UnavailableError("the bus was stopped") from None
                if not error.retryable:
                    raise
            except OSError:
                pass  # between two daemons
            left_s = self._deadline_s - time.monotonic()
            if left_s <= 0:
                return {"outcome": "timeout", "channels": [], "peer": 0}
            time.sleep(min(RETRY_S, left_s))

    def _ask(self, left_s: float) -> dict[str, Any]:
        from agentbus.cli.running import CONNECT_S, runtime_paths

        question = {**self._question, "wait_ms": round(left_s * 1000)}
        with Client.connect(runtime_paths().socket, CONNECT_S, self._notified) as daemon:
            answer: dict[str, Any] = daemon.request("wait", question, left_s + ANSWER_S)
        return answer

    def _notified(self, notification: Notification) -> None:
        if notification.method == "stopping":
            self._stopped = bool(notification.params.get("intentional"))
