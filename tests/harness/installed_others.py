"""opencode and Gemini CLI into whose configuration `agentbus-admin install` has put the bus.

Owns what each needs beside that: a scripted model, no network, no questions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.harness.command_lines import CommandLine, install, installed


class Opencode(CommandLine):
    """`opencode run`."""

    def _configure(self) -> None:
        options = {"baseURL": f"{self.model.url}/v1", "apiKey": "made-up-key-for-tests"}
        own = {
            "model": "anthropic/claude-sonnet-4-5",
            "autoupdate": False,
            "share": "disabled",
            "provider": {"anthropic": {"options": options}},
        }
        if _write_new(self.home / ".config" / "opencode" / "opencode.json", own):
            install(self, "opencode")

    def _environment(self) -> dict[str, str]:
        # Servers are given all that opencode itself was given.
        return {
            **self.adapter.environment,
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        }

    def _command(self, prompt: str, options: tuple[str, ...]) -> list[str]:
        executable = installed("node_modules/opencode-linux-*/bin/opencode", "opencode-ai")
        return [str(executable), "run", "--format", "json", *options, prompt]


class Gemini(CommandLine):
    """`gemini -p`."""

    def _configure(self) -> None:
        own = {
            "security": {
                "auth": {"selectedType": "gemini-api-key"},
                "folderTrust": {"enabled": False},
            },
            "general": {"enableAutoUpdate": False},
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
        }
        if _write_new(self.home / ".gemini" / "settings.json", own):
            install(self, "gemini")

    def _environment(self) -> dict[str, str]:
        return {
            **self.adapter.environment,
            "GEMINI_API_KEY": "made-up-key-for-tests",
            "GOOGLE_GEMINI_BASE_URL": self.model.url,
            "GEMINI_TELEMETRY_ENABLED": "false",
            "GEMINI_CLI_NO_RELAUNCH": "true",  # else signals reach a process that only waits
        }

    def _command(self, prompt: str, options: tuple[str, ...]) -> list[str]:
        program = installed(
            "node_modules/@google/gemini-cli/bundle/gemini.js", "@google/gemini-cli"
        )
        command = ["node", str(program), "-m", "gemini-2.5-flash", "--approval-mode", "yolo"]
        return [*command, "--output-format", "stream-json", *options, "-p", prompt]


def _write_new(path: Path, settings: dict[str, Any]) -> bool:
    """Whether it was not there yet."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(settings))
    return True
