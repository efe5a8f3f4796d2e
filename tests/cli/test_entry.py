"""Usage, errors and exit codes of both command lines."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

from agentbus.cli import admin, bus, entry
from agentbus.errors import InternalError, ValidationError
from tests.bus_fixture import ThrowAwayBus
from tests.cli.command import agentbus, agentbus_admin, run

SCRIPTS = Path(sysconfig.get_path("scripts"))
HEAVY = ("mcp", "peewee", "pykka", "redis", "pydantic")


@pytest.mark.parametrize("command", [agentbus, agentbus_admin])
def test_help_names_every_exit_code(stopped_bus: ThrowAwayBus, command: object) -> None:
    shown = command(stopped_bus, "--help")  # type: ignore[operator]
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "Usage:" in shown.stdout
    assert "Exit codes:" in shown.stdout


def test_version_is_told(stopped_bus: ThrowAwayBus) -> None:
    assert agentbus(stopped_bus, "--version").stdout.startswith("agentbus 0.")


BEHIND_DASHES = "if that is not meant for agentbus, write -- before what it belongs to"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "a command is missing"),
        (["fly"], "there is no command 'fly'"),
        (["status", "--colour"], "there is no option '--colour'"),
        (["mcp", "--agnt=Sam"], "there is no option '--agnt'"),
        (["mcp", "--agent"], "--agent requires argument"),
        (["stop", "now"], "these arguments do not go together"),
        (["stop", "--yes"], "these arguments do not go together"),
        (["reset", "--keep"], "there is no option '--keep'"),
        (["job", "run", "ls", "--all"], f"there is no option '--all'; {BEHIND_DASHES}"),
        (
            ["talk", "send", "--to", "w", "-1 is it?"],
            f"there is no option '-1 is it?'; {BEHIND_DASHES}",
        ),
        (
            ["talk", "serve", "--instance", "w", "--peer", "--exec", "cat"],
            "these arguments do not go together",
        ),
    ],
)
def test_wrong_usage_is_one_line_that_says_what_and_exit_code_2(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bus.main(arguments) == entry.EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"agentbus: {problem}; --help shows what is possible\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("agentbus-admin export --output all.jsonl", entry.EXIT_OK),
        ("agentbus-admin export --output -", entry.EXIT_OK),
        ("agentbus-admin config", entry.EXIT_OK),
        ("agentbus status", entry.EXIT_OK),
        ("agentbus job list", entry.EXIT_OK),
        ("agentbus job receive --port none", entry.EXIT_USAGE),
        ("agentbus talk list", entry.EXIT_OK),
        ("agentbus fly", entry.EXIT_USAGE),
    ],
)
def test_a_command_that_is_started_with_everything_closed_does_its_work(
    running_bus: ThrowAwayBus, words: str, code: int
) -> None:
    program, *arguments = words.split()
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", SCRIPTS / program, *arguments],
        env=running_bus.environment,
        cwd=running_bus.directory,
        timeout=30,
    )
    assert ended.returncode == code


def test_wrong_usage_of_the_admin_command_is_exit_code_2() -> None:
    assert admin.main(["fly"]) == entry.EXIT_USAGE


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValidationError("bad"), entry.EXIT_USAGE),
        (InternalError("bad"), entry.EXIT_FAILURE),
        (entry.NotRunningError(), entry.EXIT_NOT_RUNNING),
        (PermissionError(13, "denied", "/x"), entry.EXIT_FAILURE),
        (RuntimeError("line one\nline two \x1b[2J"), entry.EXIT_FAILURE),
        (KeyboardInterrupt(), entry.EXIT_INTERRUPTED),
    ],
)
def test_every_error_is_one_line_and_never_a_traceback(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> int:
        raise error

    assert entry.run(fails) == code
    shown = capsys.readouterr().err
    assert shown.startswith("agentbus: ")
    assert shown.count("\n") == 1
    assert "\x1b" not in shown


@pytest.mark.parametrize("arguments", [["status"], ["stop"], ["--help"], ["status", "--json"]])
def test_light_commands_load_nothing_heavy(stopped_bus: ThrowAwayBus, arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from agentbus.cli.bus import main\n"
        "try:\n"
        f"    main({arguments!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print('LOADED', *[name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    shown = run(["-c", code], stopped_bus.environment)
    assert shown.stdout.splitlines()[-1] == "LOADED"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--agent", "x" * 129], "128 bytes"),
        (["--agent", "human:ada"], "--agent must not begin with human:"),
        (["--capability", "tests", "--capability", "x" * 81], "--capability must be at most 80"),
    ],
)
def test_mcp_refuses_what_no_agent_can_say_of_itself(
    stopped_bus: ThrowAwayBus, arguments: list[str], says: str
) -> None:
    refused = agentbus(stopped_bus, "mcp", *arguments)
    assert refused.returncode == entry.EXIT_USAGE
    assert says in refused.stderr
    assert refused.stderr.count("\n") == 1
