"""Claude Code into whose user configuration `agentbus-admin install` has put the bus.

Owns the three ways in which it is used: one prompt (`start`), prompts that a program streams to it
(`converse`), and a person at a terminal (`terminal`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.harness.command_lines import (
    FINISH_WITHIN_S,
    ClaudeCode,
    claude_executable,
    install,
)
from tests.harness.fake_model import SERVER, OwnCall, Script
from tests.harness.terminal import Terminal

ALLOWED = f"mcp__{SERVER},Agent"


class Streamed:
    """A conversation whose prompts come over stdin, as programs hold it; events come back."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, name="events")
        self._reader.start()

    def say(self, text: str) -> None:
        """One prompt. What follows is seen in the script and in the events."""
        assert self.process.stdin is not None
        message = {"type": "user", "message": {"role": "user", "content": text}}
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def turn(self, text: str) -> None:
        """One prompt, and wait for the end of its turn."""
        before = self.turns
        self.say(text)
        self.wait_turns(before + 1)

    @property
    def turns(self) -> int:
        """How many have ended."""
        with self._changed:
            return sum(event.get("type") == "result" for event in self._events)

    def wait_turns(self, count: int, within_s: float = FINISH_WITHIN_S) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.turns >= count, within_s):
                raise AssertionError(f"{self.turns} turns within {within_s:g} s: {self._events}")

    @property
    def conversation(self) -> str:
        """The id that the newest event names."""
        with self._changed:
            return str(next(e["session_id"] for e in reversed(self._events) if "session_id" in e))

    def end(self, within_s: float = FINISH_WITHIN_S) -> int:
        """There is no further prompt; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(within_s)

    def close(self) -> None:
        """End it by force, with all that it has started."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        with suppress(OSError):
            self.process.stdin.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError), self._changed:
                self._events.append(json.loads(line))
                self._changed.notify_all()


@dataclass(slots=True)
class InstalledClaudeCode(ClaudeCode):
    """See the module. Options: `--session-id`, `--resume`, `--continue`, `--fork-session`."""

    _streamed: list[Streamed] = field(default_factory=list)

    def close(self) -> None:
        for streamed in self._streamed:
            streamed.close()
        ClaudeCode.close(self)

    def converse(self, *options: str) -> Streamed:
        """A streamed conversation, without a prompt so far."""
        self.prepare()
        command = [str(claude_executable()), "-p", "--verbose", "--allowedTools", ALLOWED]
        command += ["--input-format", "stream-json", "--output-format", "stream-json", *options]
        process = subprocess.Popen(
            command,
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        streamed = Streamed(process)
        self._streamed.append(streamed)
        return streamed

    def terminal(self, *options: str) -> Terminal:
        """Its window, as soon as it takes input."""
        self.prepare()
        self._answer_first_questions()
        command = [str(claude_executable()), "--allowedTools", ALLOWED, *options]
        terminal = Terminal(command, self.work, self.environment)
        self._terminals.append(terminal)
        terminal.wait_for("shift+tab to cycle")
        return terminal

    def spawn(self, script: Script, role: str = "general-purpose") -> OwnCall:
        """The step that starts a subagent in the background and gives it the script."""
        return OwnCall(
            "Agent",
            {
                "description": "a child",
                "subagent_type": role,
                "run_in_background": True,
                "prompt": script.prompt,
            },
        )

    def _answer_first_questions(self) -> None:
        """What a person is asked at the first start: theme, trust of the folder, use of the key."""
        path = self.home / ".claude.json"
        configuration = json.loads(path.read_text())
        key = self.environment["ANTHROPIC_API_KEY"]
        trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        configuration |= {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [key[-20:]], "rejected": []},
            "projects": configuration.get("projects", {}) | {str(self.work): trusted},
        }
        path.write_text(json.dumps(configuration))

    def _configure(self) -> None:
        if not (self.home / ".claude.json").exists():
            install(self, "claude-code")

    def _environment(self) -> dict[str, str]:
        # Servers and hooks are given all that Claude Code itself was given.
        return {**ClaudeCode._environment(self), **self.adapter.environment}

    def _command(self, prompt: str, options: tuple[str, ...]) -> list[str]:
        command = [str(claude_executable()), "-p", "--output-format", "json"]
        return [*command, "--allowedTools", ALLOWED, *options, "--", prompt]
