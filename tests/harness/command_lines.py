"""The real Claude Code and Codex, each started for one prompt, against a scripted model.

Owns how each is found, configured and started, and that none outlives its test. Nothing of the user
is read: the home is fresh, the key is made up, and the bus is the only MCP server.

    claude = ClaudeCode(FakeAnthropic, folder, Adapter(bus, "Sam"))
    running = claude.start(script, "--session-id", conversation)
    ended = running.finish()             # .conversation, .output, .errors

Each is a session and process group of its own, as in a terminal.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.bus_fixture import ROOT, ThrowAwayBus
from tests.harness.fake_model import SERVER, FakeModel, Script
from tests.harness.terminal import Terminal

FINISH_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Adapter:
    """How a harness is told to start `agentbus mcp` for an agent.

    `before` is put in front of the command, for a program that looks at what passes.
    """

    bus: ThrowAwayBus
    agent: str
    before: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        installed = Path(sysconfig.get_path("scripts")) / "agentbus"
        arguments = ["mcp", "--agent", self.agent, "--config", str(self.bus.config_path)]
        return [*self.before, str(installed), *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """All it needs from outside; a harness may drop everything that it is not told to pass."""
        return {"AGENTBUS_RUNTIME_DIR": str(self.bus.runtime.directory)}


@dataclass(frozen=True, slots=True)
class Ended:
    """A command line that has ended. `conversation` is the id that it gave itself."""

    exit_code: int
    conversation: str
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class Running:
    """A command line that runs."""

    process: subprocess.Popen[str]

    @property
    def group(self) -> int:
        return self.process.pid

    def finish(self, within_s: float = FINISH_WITHIN_S) -> Ended:
        """Wait until it has ended by itself, which it does after the last step of its script."""
        try:
            output, errors = self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.kill_group()
            output, errors = self.process.communicate()
            raise AssertionError(
                f"did not end within {within_s:g} s:\n{output}\n{errors}"
            ) from None
        code = self.process.returncode
        assert code == 0, f"exit code {code}:\n{output}\n{errors}"
        return Ended(code, _conversation(output), output, errors)

    def kill_group(self) -> None:
        """End everything of the process group at once, as closing a terminal by force does."""
        os.killpg(self.group, signal.SIGKILL)

    def kill(self) -> None:
        """End the command line alone, without a chance to end what it has started."""
        self.process.kill()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill_group()
        self.process.communicate()


@dataclass(slots=True)
class CommandLine(ABC):
    """One installed command line and what its conversations share: a model, a home, a folder."""

    model: FakeModel
    folder: Path
    adapter: Adapter
    _running: list[Running] = field(default_factory=list)
    _terminals: list[Terminal] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def start(self, script: Script, *options: str) -> Running:
        """Give it the script as the only prompt of a conversation."""
        self.prepare()
        process = subprocess.Popen(
            self._command(script.prompt, options),
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._running.append(Running(process))
        return self._running[-1]

    def prepare(self) -> None:
        """The folders, and in them what it is configured with."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(exist_ok=True)
        self._configure()

    @property
    def environment(self) -> dict[str, str]:
        """Everything that it is started with."""
        return {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "TMPDIR": str(self.folder),
            **self._environment(),
        }

    def run(self, script: Script, *options: str) -> Ended:
        return self.start(script, *options).finish()

    def close(self) -> None:
        for terminal in self._terminals:
            terminal.close()
        for running in self._running:
            running.close()

    @abstractmethod
    def _configure(self) -> None: ...

    @abstractmethod
    def _environment(self) -> dict[str, str]: ...

    @abstractmethod
    def _command(self, prompt: str, options: tuple[str, ...]) -> list[str]: ...


class ClaudeCode(CommandLine):
    """`claude -p`. Options: `--session-id ID`, `--resume ID`."""

    @property
    def _mcp_config(self) -> Path:
        return self.folder / "mcp.json"

    def _configure(self) -> None:
        program, *arguments = self.adapter.command
        server = {"command": program, "args": arguments, "env": self.adapter.environment}
        self._mcp_config.write_text(json.dumps({"mcpServers": {SERVER: server}}))

    def _environment(self) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": self.model.url,
            "ANTHROPIC_API_KEY": "made-up-key-for-tests",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_TELEMETRY": "1",
            "DO_NOT_TRACK": "1",
        }

    def _command(self, prompt: str, options: tuple[str, ...]) -> list[str]:
        command = [str(claude_executable()), "-p", "--output-format", "json"]
        command += ["--allowedTools", f"mcp__{SERVER}"]
        command += ["--mcp-config", str(self._mcp_config), "--strict-mcp-config"]
        return [*command, *options, "--", prompt]


class Codex(CommandLine):
    """`codex exec`. Options: `resume ID`.

    `required`: without it Codex gives an MCP server one second to start, and then begins the turn
    without its tools.
    """

    @property
    def codex_home(self) -> Path:
        return self.home / ".codex"

    def _configure(self) -> None:
        program, *arguments = self.adapter.command
        table = ", ".join(
            f"{key} = {_toml(text)}" for key, text in self.adapter.environment.items()
        )
        self.codex_home.mkdir(exist_ok=True)
        (self.codex_home / "config.toml").write_text(f"""\
{self._own_settings()}
[mcp_servers.{SERVER}]
command = {_toml(program)}
args = [{", ".join(map(_toml, arguments))}]
env = {{ {table} }}
required = true
""")

    def _own_settings(self) -> str:
        """What it needs without any server: a model, and no questions."""
        return f"""\
model = "fake-model"
model_provider = "fake"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.fake]
name = "fake"
base_url = {_toml(self.model.url + "/v1")}
wire_api = "responses"
env_key = "FAKE_OPENAI_KEY"
request_max_retries = 0
stream_max_retries = 0

[projects.{_toml(str(self.work))}]
trust_level = "trusted"
"""

    def _environment(self) -> dict[str, str]:
        return {"CODEX_HOME": str(self.codex_home), "FAKE_OPENAI_KEY": "made-up-key-for-tests"}

    def _command(self, prompt: str, options: tuple[str, ...]) -> list[str]:
        command = [str(codex_executable()), "exec", "--json", "--skip-git-repo-check"]
        return [*command, *options, prompt]


def install(line: CommandLine, harness: str) -> None:
    """As its user does it."""
    admin = Path(sysconfig.get_path("scripts")) / "agentbus-admin"
    done = subprocess.run(
        [
            *(str(admin), "install", harness, "--agent", line.adapter.agent),
            *("--config", str(line.adapter.bus.config_path)),
        ],
        env={"HOME": str(line.home), "PATH": os.environ["PATH"]},
        cwd=line.work,
        capture_output=True,
        text=True,
        timeout=FINISH_WITHIN_S,
    )
    assert done.returncode == 0, done.stderr


def claude_executable() -> Path:
    return installed("node_modules/@anthropic-ai/claude-code-*/claude", "@anthropic-ai/claude-code")


def codex_executable() -> Path:
    return installed("node_modules/@openai/codex-*/vendor/*/bin/codex", "@openai/codex")


def installed(pattern: str, package: str) -> Path:
    """The program of an npm package, where it was installed without install scripts."""
    folder = Path(os.environ.get("AGENTBUS_HARNESS_DIR") or ROOT / ".harness")
    # Both builds for Linux may be there; the one with musl comes last.
    found = sorted(folder.glob(pattern), key=lambda path: ("musl" in str(path), path))
    if not found:
        pytest.skip(f"{package} is not in {folder}; this installs and runs it: make test-harness")
    return found[0]


def _conversation(output: str) -> str:
    """Claude prints one object at its end, the others one per event."""
    for line in output.splitlines():
        try:
            said: Any = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict):
            for key in ("session_id", "thread_id", "sessionID"):
                if said.get(key):
                    return str(said[key])
    raise AssertionError(f"named no conversation:\n{output}")


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a basic string of TOML, for printable text
