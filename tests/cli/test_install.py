"""`agentbus-admin install` and `uninstall` as their pages show them, in a home of their own."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from agentbus.cli.entry import EXIT_OK, EXIT_USAGE
from agentbus.encoding import decode_strict

SHOWN = (
    "agentbus-admin install claude-code --agent Sam",
    "agentbus-admin install codex --agent Robin",
    "agentbus-admin install codex --project",
    "agentbus-admin install gemini --agent Toni",
    "agentbus-admin install gemini --dry-run",
    "agentbus-admin install generic --agent Kim",
    "agentbus-admin install opencode --agent Alex",
    "agentbus-admin uninstall claude-code",
)
"""Every command of this kind in the documents."""


class Admin:
    def __init__(self, folder: Path) -> None:
        self.home, self.project = folder / "home", folder / "project"
        self.home.mkdir()
        self.project.mkdir()

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        admin = Path(sysconfig.get_path("scripts")) / "agentbus-admin"
        return subprocess.run(
            [str(admin), *arguments],
            env={"HOME": str(self.home), "PATH": os.environ["PATH"], **environment},
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=50,
        )

    def files(self) -> set[str]:
        folder = self.home.parent
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def admin(tmp_path: Path) -> Admin:
    return Admin(tmp_path)


def test_every_command_of_the_pages_does_what_it_says(admin: Admin) -> None:
    for line in SHOWN:
        done = admin.run(*line.split()[1:])
        assert done.returncode == EXIT_OK, (line, done.stderr)
    assert admin.files() == {
        "home/.codex/config.toml",
        "home/.codex/hooks.json",
        "home/.config/opencode/opencode.json",
        "home/.gemini/settings.json",
        "project/.codex/config.toml",
        "project/.codex/hooks.json",
    }


@pytest.mark.parametrize(
    ("harness", "variable", "files"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", {"moved/.claude.json", "moved/settings.json"}),
        ("codex", "CODEX_HOME", {"moved/config.toml", "moved/hooks.json"}),
        ("opencode", "XDG_CONFIG_HOME", {"moved/opencode/opencode.json"}),
    ],
)
def test_a_harness_whose_folder_was_moved_finds_its_entries_there(
    admin: Admin, harness: str, variable: str, files: set[str]
) -> None:
    moved = {variable: str(admin.home.parent / "moved")}
    assert admin.run("install", harness, **moved).returncode == EXIT_OK
    assert admin.files() == files
    assert admin.run("install", harness, "--project", **moved).returncode == EXIT_OK
    assert all(name.startswith("project/") for name in admin.files() - files)
    assert admin.run("uninstall", harness, "--project", **moved).returncode == EXIT_OK
    assert admin.run("uninstall", harness, **moved).returncode == EXIT_OK
    assert admin.files() == set()
    assert admin.run("install", harness, **{variable: ""}).returncode == EXIT_OK
    assert all(name.startswith("home/.") for name in admin.files())


def test_what_is_written_names_this_installation(admin: Admin) -> None:
    shown = admin.run("install", "claude-code", "--agent", "Sam", "--config", "bus.json")
    assert "settings.json: written" in shown.stdout
    entry = decode_strict((admin.home / ".claude.json").read_bytes())["mcpServers"]["agentbus"]
    command = Path(entry["command"])
    assert command.is_absolute()
    assert os.access(command, os.X_OK)
    assert entry["args"] == ["mcp", "--agent", "Sam", "--config", str(admin.project / "bus.json")]
    again = admin.run("install", "claude-code", "--agent", "Sam", "--config", "bus.json")
    assert again.stdout.count("nothing to change") == 2


def test_a_dry_run_shows_a_diff_and_writes_nothing(admin: Admin) -> None:
    settings = admin.home / ".gemini" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{\n  "theme": "dark\\u001b[31m"\n}\n')
    shown = admin.run("install", "gemini", "--dry-run")
    assert shown.returncode == EXIT_OK
    assert '+  "mcpServers": {' in shown.stdout
    assert f"--- {settings}" in shown.stdout
    document = decode_strict(admin.run("install", "gemini", "--dry-run", "--json").stdout)
    assert (document["written"], document["files"][0]["changed"]) == (False, True)
    assert admin.files() == {"home/.gemini/settings.json"}
    assert "agentbus" not in settings.read_text()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["install", "emacs"], "no harness 'emacs'; known are claude-code, codex"),
        (["install", "codex", "--agent", ""], "--agent"),
        (["uninstall", "generic"], "generic has no file"),
        (["install"], "do not go together"),
    ],
)
def test_wrong_usage_is_one_line(admin: Admin, arguments: list[str], why: str) -> None:
    refused = admin.run(*arguments)
    assert refused.returncode == EXIT_USAGE
    assert why in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert admin.files() == set()


def test_a_file_that_cannot_be_read_is_named_with_its_line(admin: Admin) -> None:
    (admin.home / ".claude.json").write_text('{\n  "a": \n}\n')
    refused = admin.run("install", "claude-code")
    assert refused.returncode == EXIT_USAGE
    assert ".claude.json, line 2: not JSON; repair it first, nothing was changed" in refused.stderr
    assert admin.files() == {"home/.claude.json"}
