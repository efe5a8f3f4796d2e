"""Codex into whose configuration `agentbus-admin install` has put the bus, in a terminal or not.

Owns what it needs beside that: a scripted model, no network, no questions.
"""

from __future__ import annotations

from tests.harness.command_lines import Codex, codex_executable, install
from tests.harness.terminal import Terminal

_BYPASS = "--dangerously-bypass-hook-trust"


class InstalledCodex(Codex):
    """`codex exec` and, in a terminal, `codex`. Its hooks are trusted without asking."""

    def terminal(self, *options: str) -> Terminal:
        """Its window, as soon as it takes input."""
        self.prepare()
        command = [str(codex_executable()), _BYPASS, *options]
        terminal = Terminal(command, self.work, self.environment)
        self._terminals.append(terminal)
        terminal.wait_for("permissions: YOLO mode")
        return terminal

    def _configure(self) -> None:
        configuration = self.codex_home / "config.toml"
        if not configuration.exists():
            self.codex_home.mkdir()
            configuration.write_text(self._own_settings())
            install(self, "codex")

    def _environment(self) -> dict[str, str]:
        # Passed on to hooks as it is, to the server where its entry says so.
        return {**super()._environment(), **self.adapter.environment}

    def _command(self, prompt: str, options: tuple[str, ...]) -> list[str]:
        return super()._command(prompt, (_BYPASS, *options))
