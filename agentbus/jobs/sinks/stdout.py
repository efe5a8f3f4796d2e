"""Events on standard output: all of them as lines, or only the result.

Owns its descriptor. Never buffers: what `emit` returned for has been written. The emitter's thread.
"""

from __future__ import annotations

import os
import sys
from typing import Final, Literal, TypeAlias

from agentbus.encoding import encode_pretty
from agentbus.jobs.errors import SinkError
from agentbus.jobs.events import Event, Succeeded, encode_event

Mode: TypeAlias = Literal["final", "ndjson"]

_STDOUT: Final = 1
_STDERR: Final = 2


def claim_stdout() -> int:
    """A private descriptor of standard output; from now on what else is printed goes to stderr.

    A stray line of a library or a child process would otherwise stand between two events.
    """
    if sys.stdout is not None:
        sys.stdout.flush()
    own = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    return own


class StdoutSink:
    """`ndjson`: every event on a line. `final`: the result alone, indented, when there is one."""

    def __init__(self, mode: Mode = "final", descriptor: int | None = None) -> None:
        """The descriptor belongs to the sink from now on; a copy of stdout where none is given."""
        self._mode = mode
        self._descriptor = os.dup(_STDOUT) if descriptor is None else descriptor

    def emit(self, event: Event) -> None:
        line = encode_event(event)
        if self._mode == "ndjson":
            self._write(line + b"\n")
        elif isinstance(event, Succeeded):
            self._write(encode_pretty(event.result).encode() + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except BrokenPipeError:
            raise SinkError("the reader of standard output has gone") from None
        except OSError as error:
            raise SinkError(f"standard output cannot be written: {error}") from None
