"""What each harness needs in its configuration: where, and what.

Owns the shapes that were seen to work with each harness. Pure: it looks at nothing; the folder of
the home, of the project and the command to run are given.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from agentbus.errors import ValidationError
from agentbus.harnesses.hook_commands import HOOK_SECONDS

SERVER: Final = "agentbus"
"""The name under which a harness knows the bus; its tools are called after it."""

STOP_HOOK_SECONDS: Final = 24 * 3600

_OPTIONS: Final = ("--agent", "--config")

_MOVING: Final = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME")


@dataclass(frozen=True, slots=True)
class Target:
    """Where it is installed, and as whom. `command`: the absolute path of `agentbus`."""

    home: Path
    project: Path | None
    """None: for the user, in all projects."""
    command: str
    agent: str | None = None
    config_path: Path | None = None
    moved: Mapping[str, Path] = field(default_factory=dict)
    """See `moved_folders`."""

    @property
    def codex_home(self) -> Path:
        """What belongs to the user, and which hooks were accepted, for projects too."""
        return self.moved.get("CODEX_HOME", self.home / ".codex")

    @property
    def arguments(self) -> list[str]:
        found = ["mcp"]
        if self.agent is not None:
            found += ["--agent", self.agent]
        if self.config_path is not None:
            found += ["--config", str(self.config_path)]
        return found


def moved_folders(environment: Mapping[str, str]) -> dict[str, Path]:
    """The user's folders that variables of a harness have moved, by the variable."""
    return {name: Path(environment[name]).absolute() for name in _MOVING if environment.get(name)}


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a JSON object, or a table of a TOML file, that is wholly ours.

    `path`: the container's key and the entry's own.
    """

    path: tuple[str, str]
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a JSON array; ours are told by what they run."""

    path: tuple[str, ...]
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FileEntries:
    """What belongs into one file."""

    path: Path
    entries: tuple[Member | Element, ...]


def is_ours(value: Any) -> bool:
    """Whether an installation wrote this server or hook entry, in this or another version."""
    if isinstance(value, dict):
        if value.get("tool") == "agentbus_hook":
            return True
        command, arguments = value.get("command"), value.get("args", [])
        if isinstance(command, list):
            command, *arguments = command or [""]
        if isinstance(command, str) and isinstance(arguments, list):
            words = [*_words(command), *map(str, arguments)]
            if words and Path(words[0]).name == "agentbus":
                return any(word in ("mcp", "hook", "wait") for word in words[1:])
        hooks = value.get("hooks")
        return isinstance(hooks, list) and bool(hooks) and all(map(is_ours, hooks))
    return False


def given_options(value: Any) -> tuple[str | None, Path | None]:
    """The agent and the configuration file that a server entry of ours was installed with."""
    command, arguments = value.get("command"), value.get("args", [])
    words = [str(word) for word in (command if isinstance(command, list) else arguments)]
    given = {option: word for option, word in pairwise(words) if option in _OPTIONS}
    config = given.get("--config")
    return given.get("--agent"), None if config is None else Path(config)


def program_of(value: Any) -> str:
    """What a server entry of ours starts."""
    command = value["command"]
    return str(command[0] if isinstance(command, list) else command)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # somebody else's, and no shell could read it
        return []


def _server(target: Target) -> dict[str, Any]:
    return {"command": target.command, "args": target.arguments}


def _command_hook(target: Target, words: str, **more: Any) -> dict[str, Any]:
    command = f"{shlex.quote(target.command)} {words}"
    return {"type": "command", "command": command, "timeout": HOOK_SECONDS, **more}


def _tool_hook(event: str) -> dict[str, Any]:
    """Claude Code fills the fields in, and leaves empty what the event does not have."""
    fields = ("session_id", "agent_id", "agent_type", "tool_use_id")
    told = {"event": event, **{field: f"${{{field}}}" for field in fields}}
    return {"type": "mcp_tool", "server": SERVER, "tool": "agentbus_hook", "input": told}


def claude_code(target: Target) -> list[FileEntries]:
    """The server and the hooks stand in two files, of the user or of the project."""
    if target.project is None:
        servers = target.moved.get("CLAUDE_CONFIG_DIR", target.home) / ".claude.json"
        folder = target.moved.get("CLAUDE_CONFIG_DIR", target.home / ".claude")
        settings = folder / "settings.json"
    else:
        servers = target.project / ".mcp.json"
        settings = target.project / ".claude" / "settings.json"

    def on(event: str, hook: dict[str, Any], matcher: str | None = None) -> Element:
        matched = {} if matcher is None else {"matcher": matcher}
        return Element(("hooks", event), {**matched, "hooks": [hook]})

    told = _command_hook
    wake = told(target, "wait --hook", asyncRewake=True) | {"timeout": STOP_HOOK_SECONDS}
    hooks = (
        on("SessionStart", told(target, "hook SessionStart --harness claude-code")),
        on("SessionEnd", told(target, "hook SessionEnd --harness claude-code")),
        on("UserPromptSubmit", _tool_hook("UserPromptSubmit")),
        on("PreToolUse", _tool_hook("PreToolUse"), f"mcp__{SERVER}__.*"),
        on("SubagentStart", _tool_hook("SubagentStart")),
        on("SubagentStop", _tool_hook("SubagentStop")),
        on("Stop", wake),
    )
    server = Member(("mcpServers", SERVER), {"type": "stdio", **_server(target)})
    return [FileEntries(servers, (server,)), FileEntries(settings, hooks)]


def codex(target: Target) -> list[FileEntries]:
    """`config.toml` and `hooks.json` in Codex's home or the project's `.codex`.

    `required`: Codex drops a server that takes longer than about a second to start, silently.
    `env_vars`: it passes on next to nothing of its environment, and `codex queue`, which the server
    runs, has to find the same home.
    """
    folder = target.codex_home if target.project is None else target.project / ".codex"
    more = {"required": True, "env_vars": ["CODEX_HOME", "AGENTBUS_RUNTIME_DIR"]}
    server = Member(("mcp_servers", SERVER), {**_server(target), **more})
    hooks = tuple(
        Element(
            ("hooks", event),
            {"hooks": [_command_hook(target, f"hook {event} --harness codex")]},
        )
        for event in ("SessionStart", "SessionEnd", "UserPromptSubmit", "Stop")
    )
    return [
        FileEntries(folder / "config.toml", (server,)),
        FileEntries(folder / "hooks.json", hooks),
    ]


def opencode(target: Target) -> list[FileEntries]:
    """`opencode.json` in `~/.config/opencode` or in the project; it has no hooks."""
    user = target.moved.get("XDG_CONFIG_HOME", target.home / ".config") / "opencode"
    folder = target.project or user
    command = [target.command, *target.arguments]
    server = Member(("mcp", SERVER), {"type": "local", "command": command, "enabled": True})
    return [FileEntries(_existing(folder, "opencode.json", "opencode.jsonc"), (server,))]


def gemini(target: Target) -> list[FileEntries]:
    """`settings.json` in `~/.gemini` or the project's `.gemini`."""
    folder = (target.project or target.home) / ".gemini"
    server = Member(("mcpServers", SERVER), _server(target))
    hooks = tuple(
        Element(
            ("hooks", event),
            {
                "hooks": [
                    _command_hook(target, f"hook {event} --harness gemini")
                    | {"timeout": HOOK_SECONDS * 1000}  # milliseconds there
                ]
            },
        )
        for event in ("SessionStart", "BeforeAgent", "SessionEnd")
    )
    return [FileEntries(folder / "settings.json", (server, *hooks))]


def generic(target: Target) -> dict[str, Any]:
    """What to paste into the configuration of any other client."""
    return {"mcpServers": {SERVER: _server(target)}}


HARNESSES: dict[str, Callable[[Target], list[FileEntries]]] = {
    "claude-code": claude_code,
    "codex": codex,
    "opencode": opencode,
    "gemini": gemini,
}


def entries_of(harness: str, target: Target) -> list[FileEntries]:
    """Raises ValidationError for a harness that is not known."""
    if harness not in HARNESSES:
        known = ", ".join((*HARNESSES, "generic"))
        raise ValidationError(f"there is no harness {harness!r}; known are {known}")
    return HARNESSES[harness](target)


def _existing(folder: Path, *names: str) -> Path:
    return next((folder / name for name in names if (folder / name).exists()), folder / names[0])
