"""Each harness on PATH: does it run, does it know the bus, and do its hooks speak.

Owns the reading of what a harness has been told; never changes it. A harness is asked its version
and nothing else. Main thread, and one thread for each version that is asked.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from agentbus.cli.doctoring.faults import (
    ENTRY_BROKEN,
    ENTRY_FOREIGN,
    ENTRY_MISSING,
    ENTRY_OUTDATED,
    FILE_UNREADABLE,
    HARNESS_BROKEN,
    HOOKS_MISSING,
    HOOKS_OUTDATED,
    HOOKS_SILENT,
    HOOKS_UNTRUSTED,
    INSTALL_EXTRA_MISSING,
    Finding,
    fine,
)
from agentbus.errors import BusError, UnavailableError
from agentbus.harnesses.installing.entries import (
    Element,
    Member,
    Target,
    entries_of,
    given_options,
    program_of,
)
from agentbus.harnesses.installing.installation import Standing, examine

VERSION_S: Final = 5.0

PROGRAMS: Final = {
    "claude-code": "claude",
    "codex": "codex",
    "opencode": "opencode",
    "gemini": "gemini",
}

CANNOT: Final = {
    "claude-code": "without its hooks it is not woken, and identity is guessed after /clear",
    "codex": "a tool call ends after 300 s, and a server that died is not started again",
    "opencode": "it has no hooks: it is not woken, and each process is a new session",
    "gemini": (
        "it is not woken while it is idle; without its hooks each process is a new session; it "
        "starts no server in a folder that it does not trust"
    ),
}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the harnesses are looked at, and what the daemon says (None: it says nothing)."""

    home: Path
    folder: Path
    program: Path
    """The `agentbus` of this installation."""
    status: dict[str, Any] | None = None
    moved: Mapping[str, Path] = field(default_factory=dict)

    def target(self, project: Path | None) -> Target:
        return Target(self.home, project, str(self.program), moved=self.moved)


def examine_harnesses(around: Surroundings) -> list[Finding]:
    """All that are on PATH."""
    present = {
        harness: found
        for harness, program in PROGRAMS.items()
        if (found := shutil.which(program)) is not None
    }
    if not present:
        looked_for = ", ".join(PROGRAMS.values())
        return [fine("harnesses", f"none is on PATH; looked for {looked_for}")]
    with ThreadPoolExecutor(len(present)) as pool:
        versions = pool.map(_version, present, present.values())
    findings: list[Finding] = []
    for harness, version in zip(present, versions, strict=True):
        findings += [version, *_installation(harness, around)]
        findings.append(fine(f"{harness} limits", CANNOT[harness]))
    return findings


def _version(harness: str, program: str) -> Finding:
    said, trouble = _output_of([program, "--version"])
    if trouble is not None:
        return HARNESS_BROKEN.found(harness, f"{program} {trouble}", COMMAND=f"{program} --version")
    first_line = next(iter(said.splitlines()), "says no version")
    return fine(harness, f"{first_line.strip()}, {program}")


def _output_of(command: list[str]) -> tuple[str, str | None]:
    """What it prints, and what went wrong. It and what it started end with the time."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return "", f"cannot be run: {error.strerror}"
    with process:
        try:
            out, _ = process.communicate(timeout=VERSION_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return "", f"does not end within {VERSION_S:g} s"
    if process.returncode:
        return "", f"ended with {process.returncode}"
    return out.decode(errors="replace").strip(), None


# --- what it has been told ------------------------------------------------------------------------


def _installation(harness: str, around: Surroundings) -> list[Finding]:
    check = f"{harness} entry"
    try:
        standings, is_of_user = _standings(harness, around)
    except UnavailableError as error:
        return [INSTALL_EXTRA_MISSING.found(check, error.message)]
    except BusError as error:
        return [FILE_UNREADABLE.found(check, error.message, HARNESS=harness)]
    except OSError as error:
        return [FILE_UNREADABLE.found(check, str(error), HARNESS=harness)]
    server = next(one for one in standings if isinstance(one.entry, Member))
    hooks = [one for one in standings if isinstance(one.entry, Element)]
    words = _install_words(harness, server, None if is_of_user else around.folder)
    found = [_entry(harness, server, words)]
    if hooks and server.state != "missing":
        found += _hooks(harness, hooks, around, words)
    return found


def _standings(harness: str, around: Surroundings) -> tuple[list[Standing], bool]:
    """As installed for the user, else as installed for the project in the current folder.

    And whether it is for the user.
    """
    of_user = _standings_in(harness, around, None)
    if any(one.state != "missing" for one in of_user):
        return of_user, True
    of_project = _standings_in(harness, around, around.folder)
    is_there = any(one.state != "missing" for one in of_project)
    return (of_project, False) if is_there else (of_user, True)


def _standings_in(harness: str, around: Surroundings, project: Path | None) -> list[Standing]:
    """With the agent and the configuration file that it was installed with."""
    target = around.target(project)

    def look() -> list[Standing]:
        return [one for file in entries_of(harness, target) for one in examine(file)]

    found = look()
    server = next(one for one in found if isinstance(one.entry, Member))
    if server.state == "outdated":
        agent, config_path = given_options(server.value)
        target = replace(target, agent=agent, config_path=config_path)
        found = look()
    return found


def _entry(harness: str, server: Standing, words: str) -> Finding:
    check = f"{harness} entry"
    file = str(server.path)
    if server.state == "missing":
        return ENTRY_MISSING.found(check, f"{file} has no agentbus", HARNESS=harness)
    if server.state == "foreign":
        seen = f"{file}: agentbus there is not an entry of this program"
        return ENTRY_FOREIGN.found(check, seen, FILE=file, HARNESS=words)
    program = program_of(server.value)
    if shutil.which(program) is None:
        seen = f"{file} starts {program}, which cannot be run"
        return ENTRY_BROKEN.found(check, seen, HARNESS=words)
    if server.state == "outdated":
        seen = f"{file} is not as it would be installed now; it starts {program}"
        return ENTRY_OUTDATED.found(check, seen, HARNESS=words)
    return fine(check, f"current, in {file}")


def _install_words(harness: str, server: Standing, project: Path | None) -> str:
    """What to install with, so that it stays where and as whom it is."""
    words = [harness]
    if project is not None:
        words.append("--project")
    if server.state in ("current", "outdated"):
        agent, config_path = given_options(server.value)
        if agent is not None:
            words += ["--agent", agent]
        if config_path is not None:
            words += ["--config", str(config_path)]
    return shlex.join(words)


# --- its hooks ------------------------------------------------------------------------------------


def _hooks(harness: str, hooks: list[Standing], around: Surroundings, words: str) -> list[Finding]:
    check = f"{harness} hooks"
    file = hooks[0].path
    missing = [_event(one) for one in hooks if one.state == "missing"]
    if missing:
        seen = f"{file} has none for {', '.join(missing)}"
        return [HOOKS_MISSING.found(check, seen, HARNESS=words)]
    outdated = [_event(one) for one in hooks if one.state == "outdated"]
    if outdated:
        seen = f"{file}: not as they would be installed now: {', '.join(outdated)}"
        found = [HOOKS_OUTDATED.found(check, seen, HARNESS=words)]
    else:
        found = [fine(check, f"current, in {file}")]
    if harness == "codex":
        found.append(_trust(hooks, around.target(None).codex_home))
    if around.status is not None:
        found.append(_spoken(harness, around.status, words))
    return found


def _event(hook: Standing) -> str:
    return str(hook.entry.path[-1])


def _trust(hooks: list[Standing], codex_home: Path) -> Finding:
    """Codex notes each hook that was accepted, by file, event and place in its lists.

    Whether the hook was changed since it was accepted is for Codex alone to tell.
    """
    check = "codex hook trust"
    file = codex_home / "config.toml"
    try:
        states = tomllib.loads(file.read_text(encoding="utf-8")).get("hooks", {}).get("state", {})
        trusted = {
            _trust_key(key)
            for key, state in states.items()
            if isinstance(state, dict) and state.get("trusted_hash")
        }
    except (OSError, ValueError, AttributeError) as error:
        return HOOKS_UNTRUSTED.found(check, f"{file}: {error}")
    wanted = {_event(one): f"{one.path}:{_event(one)}:{one.place}:0" for one in hooks}
    untrusted = [event for event, key in wanted.items() if _trust_key(key) not in trusted]
    if untrusted:
        return HOOKS_UNTRUSTED.found(check, f"not accepted yet: {', '.join(untrusted)}")
    return fine(check, f"all are accepted, in {file}")


def _trust_key(key: str) -> str:
    """`file:event:group:hook`; the event in whichever spelling."""
    file, *rest = key.rsplit(":", 3)
    return ":".join([file, *rest]).replace("_", "").casefold()


def _spoken(harness: str, status: dict[str, Any], words: str) -> Finding:
    check = f"{harness} hooks heard"
    heard = [
        f"{hook.get('event')} {hook.get('at')}"
        for hook in status.get("hooks") or []
        if isinstance(hook, dict) and hook.get("application") == harness
    ]
    if heard:
        return fine(check, "last " + ", ".join(reversed(heard)))
    return HOOKS_SILENT.found(check, f"none since {status.get('started_at')}", HARNESS=words)
