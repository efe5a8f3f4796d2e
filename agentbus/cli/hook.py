"""`agentbus hook`: what a harness runs at its events. Tells the daemon, and answers the harness.

Fails open: without a daemon, with a slow one, with input that makes no sense it says nothing and
exits 0, because a hook that fails disturbs the person's session. Never starts a daemon. Waits for
the daemon for at most `HOOK_S`, and for everything, its own input too, for at most `GIVE_UP_S`.
Main thread, and one that watches that time.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, Final

from agentbus.cli.entry import EXIT_OK, Arguments
from agentbus.encoding import decode_lenient, encode
from agentbus.errors import BusError, ValidationError
from agentbus.harnesses.hook_commands import (
    HOOK_SECONDS,
    HookInput,
    continuation,
    harness_pid,
    introduction,
    read_input,
)

HOOK_S: Final = 0.2
"""For everything that is asked of the daemon; the harness waits for us."""

GIVE_UP_S: Final = HOOK_SECONDS / 2
"""A harness that gives no input, or never takes the answer, must not find us years later."""

INPUT_BYTES: Final = 16 * 1024 * 1024
"""A tool's input or an answer's text may be in there."""


def hook(arguments: Arguments) -> int:
    """Exit 0 always."""
    watch = threading.Timer(GIVE_UP_S, os._exit, (EXIT_OK,))
    watch.daemon = True
    watch.start()
    application = arguments["--harness"]
    try:
        event = read_input(arguments["EVENT"], input_fields())
        if event is not None:
            said = _tell(application, event)
            if said is not None:
                sys.stdout.write(encode(said).decode())
        sys.stdout.flush()
    except Exception:  # whatever it is, it is not the harness's trouble
        return EXIT_OK
    finally:
        watch.cancel()
    return EXIT_OK


def input_fields() -> dict[str, Any]:
    """What the harness gave on stdin. Raises ValidationError for what is no JSON object."""
    try:
        fields = decode_lenient(sys.stdin.buffer.read(INPUT_BYTES))
    except RecursionError:
        raise ValidationError("nested too deep") from None
    if not isinstance(fields, dict):
        raise ValidationError("not an object")
    return fields


def _tell(application: str, event: HookInput) -> dict[str, Any] | None:
    """Tell the daemon; what the harness is to be answered, if anything."""
    from agentbus.cli.running import runtime_paths
    from agentbus.transport.client import Client

    deadline_s = time.monotonic() + HOOK_S

    def left_s() -> float:
        return max(0.001, deadline_s - time.monotonic())

    told = {
        "application": application,
        "event": event.event,
        "conversation": event.conversation,
        "child": event.child,
        "role": event.role,
        "harness_pid": harness_pid(application, os.environ, os.getppid()),
    }
    with Client.connect(runtime_paths().socket, left_s()) as daemon:
        daemon.request("hook", told, left_s())
        if event.event not in ("SessionStart", "Stop") or event.child is not None:
            return None
        look = {"wait_ms": 0, "application": application, "conversation": event.conversation}
        try:
            found = daemon.request("wait", look, left_s())
        except BusError:  # not known yet: it has not used the bus
            return introduction(None) if event.event == "SessionStart" else None
    if event.event == "SessionStart":
        return introduction(found)
    # Once per stop: a turn that goes on because of a hook already ends this time.
    return None if event.continued else continuation(found)
