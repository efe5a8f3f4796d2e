"""Codex into whose configuration `agentbus-admin install` has put the bus, in a terminal or not.

Owns what it needs beside that: a scripted model, no network, no questions.
"""

from __future__ import annotations

from tests.harness.command_lines import Codex, codex_executable, install
from tests.harness.processes import end_programs_below
from tests.harness.terminal import Terminal

_BYPASS = "--dangerously-bypass-hook-trust"
_TAKES_INPUT = "permissions: YOLO mode"


class InstalledCodex(Codex):
    """`codex exec` and, in a terminal, `codex`. Its hooks are trusted without asking."""

    def terminal(self, *options: str) -> Terminal:
        """Its window, as soon as it takes input. Its conversations run in the same process."""
        terminal = self._open([_BYPASS, "--no-daemon", *options])
        terminal.wait_for(_TAKES_INPUT)
        return terminal

    def terminal_with_daemon(self) -> Terminal:
        """As it is when nobody says otherwise: a daemon of Codex has the conversations.

        There is none with the bypass, so here a person trusts the hooks.
        """
        terminal = self._open([])
        trust_hooks(terminal)
        terminal.wait_for(_TAKES_INPUT)
        return terminal

    def close(self) -> None:
        super().close()
        end_programs_below(self.codex_home)

    def _open(self, options: list[str]) -> Terminal:
        self.prepare()
        command = [str(codex_executable()), *options]
        terminal = Terminal(command, self.work, self.environment)
        self._terminals.append(terminal)
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


def trust_hooks(terminal: Terminal) -> None:
    """Answer Codex's question once it stands: Codex fails on what is typed while it is drawn."""
    terminal.wait_on_screen("enter confirm")
    terminal.wait_still()
    terminal.type_until("2", "\u203a 2. Trust all and continue")
    terminal.type("\r")
