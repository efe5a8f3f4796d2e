"""An agent process as the demonstration holds it: start it, have it call tools, kill it.

Owns the child process and the thread that reads its answers. Never speaks MCP itself.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from agentbus.encoding import decode_trusted, encode_line
from agentbus.errors import InternalError, error_from_data

START_S: Final = 30.0
ANSWER_S: Final = 60.0
END_S: Final = 10.0
_ERROR_CHARACTERS: Final = 400


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool call gave, and how long the agent waited for it."""

    result: dict[str, Any]
    took_ms: float


class Puppet:
    """One agent process. Calls may be begun and ended apart; answers come in order."""

    def __init__(self, name: str, session: str, config: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentbus.demo.agent", name, session, str(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(env),
        )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, name=f"reader-{name}", daemon=True).start()

    def wait_started(self) -> list[str]:
        """Until its adapter has listed its tools, which are returned. Once, before any call."""
        tools: list[str] = self._next("start", START_S)["tools"]
        return tools

    def call(self, tool: str, **arguments: Any) -> Answer:
        """Call a tool and wait for its answer. Raises the BusError that it gave."""
        self.begin(tool, **arguments)
        return self.finish(tool)

    def begin(self, tool: str, **arguments: Any) -> None:
        """Have the agent call a tool, without waiting."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode_line({"tool": tool, "arguments": arguments}))
            self._process.stdin.flush()
        except OSError:
            raise self._died(tool) from None

    def finish(self, tool: str) -> Answer:
        """The answer to the oldest call that was begun."""
        answer = self._next(tool, ANSWER_S)
        result = answer["result"] or {}
        if answer["is_error"]:
            raise error_from_data(result.get("error", {"message": f"{tool} failed"}))
        return Answer(result, answer["took_ms"])

    def kill(self) -> None:
        """End it as a crash would: no goodbye, nothing flushed."""
        self._process.kill()
        self._close()

    def end(self) -> None:
        """End it as a harness would: its input ends, and so does its adapter."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(END_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
        self._close()

    def _close(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # a call was still on its way in
                pipe.close()
        self._errors.close()

    def _next(self, what: str, within_s: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=within_s)
        except queue.Empty:
            raise InternalError(f"{self.name}: {what} took over {within_s:g} s") from None
        if answer is None:
            raise self._died(what)
        return answer

    def _died(self, what: str) -> InternalError:
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        return InternalError(f"{self.name} ended during {what}: {text[-_ERROR_CHARACTERS:]}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._answers.put(decode_trusted(line))
        except ValueError:
            pass  # closed by us
        self._answers.put(None)
