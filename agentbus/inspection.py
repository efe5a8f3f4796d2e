"""One run of the inspection command: a document in, a verdict out, nothing left behind.

Owns the child process and its whole process group for the time of one run. Never uses a shell,
never logs what was inspected, never lets silence mean "allow". Blocks its caller, an inspector's
thread, up to the given timeout and a short moment to bury the child.

stdin of the command: `{"operation", "sender", "payload"}`; stdout: `{"decision": "allow" | "deny",
"reason"?}`, at most 64 KiB each on stdout and stderr. See docs/inspection.md.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from agentbus.command_guard import Guard
from agentbus.command_run import (
    Cancellation,
    OutputLimits,
    RunCancelledError,
    RunFailedError,
    run_command,
)
from agentbus.config import Config, ConfigError
from agentbus.encoding import decode_strict, encode
from agentbus.errors import ValidationError
from agentbus.failpoints import reach
from agentbus.identity import SenderBinding
from agentbus.limits import INSPECTION_OUTPUT_BYTES, INSPECTION_REASON_CHARACTERS
from agentbus.settings import shown

_LIMITS: Final = OutputLimits(INSPECTION_OUTPUT_BYTES, INSPECTION_OUTPUT_BYTES)


@dataclass(frozen=True, slots=True)
class Allowed:
    """The command said "allow" in the only way that counts."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The command said "deny". The reason is data for the caller, never an instruction."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no verdict; `what` says why, in words without any of the payload or its output."""

    what: str


Verdict: TypeAlias = Allowed | Denied | Failed


def find_command(config: Config) -> tuple[str, ...]:
    """The configured argv with the absolute path of its program; empty when there is no hook.

    Looked up once, at start: what inspects must not change with the PATH of whoever starts the
    daemon next. Raises ConfigError when there is no such program.
    """
    if not config.inspection_command:
        return ()
    name, *arguments = config.inspection_command
    program = shutil.which(name)
    if program is None:
        where = "" if os.sep in name else " on the PATH that the daemon was given"
        raise ConfigError(
            config.path,
            f"inspection_command names {shown(name)}, but there is no executable file of that name"
            f"{where}, and nothing is ever allowed by silence; correct it, or remove the key",
            key="inspection_command",
        )
    return (os.path.abspath(program), *arguments)


def build_document(operation: str, sender: SenderBinding, payload: Mapping[str, Any]) -> bytes:
    """What the command reads from its stdin."""
    return encode({"operation": operation, "sender": sender, "payload": payload})


def inspect(
    argv: Sequence[str],
    document: bytes,
    timeout_s: float,
    cancellation: Cancellation,
    guard: Guard | None = None,
) -> Verdict:
    """Run the command on one document. Every way to go wrong is a `Failed`; nothing is raised.

    `guard` ends the run should this process be killed meanwhile.
    """
    try:
        ended = run_command(
            argv,
            document,
            timeout_s,
            cancellation,
            _LIMITS,
            guard=guard,
            started=lambda: reach("during_inspection"),
        )
        return _verdict(ended.code, ended.stdout)
    except RunCancelledError:
        return Failed("the daemon stopped meanwhile")
    except RunFailedError as error:
        return Failed(str(error))


def _verdict(code: int | None, output: bytes) -> Verdict:
    """What the end of the command and its output mean; only one document means "allow"."""
    if code is None:
        raise RunFailedError("it could not be ended")
    if code < 0:
        raise RunFailedError(f"it was ended by signal {-code}")
    if code > 0:
        raise RunFailedError(f"it exited with {code}")
    if not output.strip():
        raise RunFailedError("it exited with 0 but gave no answer")
    try:
        answer = decode_strict(output)
    except ValidationError:  # its text may quote the output, which may quote the payload
        raise RunFailedError("its answer is not one well-formed JSON document") from None
    if not isinstance(answer, dict) or not answer.keys() <= {"decision", "reason"}:
        raise RunFailedError("its answer is not an object of decision and reason")
    reason = answer.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise RunFailedError("the reason in its answer is not text")
    match answer.get("decision"):
        case "allow":
            return Allowed()
        case "deny":
            return Denied((reason or "no reason given")[:INSPECTION_REASON_CHARACTERS])
        case _:
            raise RunFailedError('the decision in its answer is neither "allow" nor "deny"')
