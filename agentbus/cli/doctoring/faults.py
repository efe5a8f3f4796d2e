"""Every trouble that the doctor can find, with what to do about it; docs/operations.md lists them.

Owns the words. In an advice a word in capitals stands for something that the finding fills in.
Pure; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "warning", "failure"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has seen. `fault` and `advice` are None where nothing is wrong."""

    check: str
    level: Level
    seen: str
    fault: str | None = None
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of trouble: what it means, and what a person does then."""

    name: str
    level: Level
    meaning: str
    advice: str

    def found(self, check: str, seen: str, **words: object) -> Finding:
        """It was found. `words`: what stands for the words in capitals of the advice."""
        advice = self.advice
        for word, value in words.items():
            advice = advice.replace(word, str(value))
        return Finding(check, self.level, seen, self.name, advice)


def fine(check: str, seen: str) -> Finding:
    """Nothing is wrong."""
    return Finding(check, "ok", seen)


PROGRAM_MISSING = Fault(
    "program-missing",
    "failure",
    "The command `agentbus` is not beside `agentbus-admin` and not on PATH.",
    "install the package again; harnesses start this command",
)
CONFIGURATION_REFUSED = Fault(
    "configuration-refused",
    "failure",
    "The configuration file cannot be used; no adapter and no daemon starts with it.",
    "correct the file as the line says",
)
RECEIVE_WAIT_LONG = Fault(
    "receive-wait-long",
    "warning",
    "`recv_max_wait_seconds` is above 240; Codex gives a tool call up after 300 s.",
    "set recv_max_wait_seconds to 240 or less, then run: agentbus stop",
)
RUNTIME_FOLDER_UNSAFE = Fault(
    "runtime-folder-unsafe",
    "failure",
    "The runtime folder is not a folder of yours with mode 0700; nothing connects through it.",
    "do what the line says",
)
SOCKET_UNSAFE = Fault(
    "socket-unsafe",
    "failure",
    "What is in the socket's place is no socket of yours with mode 0600.",
    "run agentbus stop, look what PATH is, and remove it; the next daemon makes it anew",
)
DAEMON_SILENT = Fault(
    "daemon-silent",
    "failure",
    "A process holds the daemon's lock and does not answer in time.",
    "try again in a minute; if it stays so, end it: kill -9 PID (nothing that was acknowledged "
    "is lost)",
)
DAEMON_NOT_READY = Fault(
    "daemon-not-ready",
    "warning",
    "The daemon starts, recovers or stops.",
    "wait; agentbus status shows how far it has come",
)
DAEMON_VERSION = Fault(
    "daemon-version",
    "failure",
    "The running daemon is of another version; new sessions get `version_mismatch`.",
    "run agentbus stop, then restart the sessions of the older version",
)
DAEMON_CONFIGURATION = Fault(
    "daemon-configuration",
    "failure",
    "The running daemon has another configuration; new sessions get `config_mismatch`.",
    "run agentbus stop; the next tool call starts one with the file as it is",
)
REDIS_UNHEALTHY = Fault(
    "redis-unhealthy",
    "failure",
    "The private Redis does not answer; nothing is lost, but nothing is received either.",
    "wait a few seconds, the daemon replaces it; if it lasts, see the last errors of agentbus "
    "status",
)
SEARCH_MISSING = Fault(
    "search-missing",
    "warning",
    "Redis has no search module, so SQLite answers searches.",
    "install what the line names, then run agentbus stop; or set search_engine to sqlite",
)
HARNESS_BROKEN = Fault(
    "harness-broken",
    "warning",
    "The harness does not tell its version within 5 s.",
    "run COMMAND by hand and repair its installation",
)
INSTALL_EXTRA_MISSING = Fault(
    "install-extra-missing",
    "warning",
    "The libraries that read the configuration of harnesses are not installed.",
    "in the folder of agentbus run: pipx install --force '.[install,search]' (or, in a virtual "
    "environment: pip install '.[install,search]')",
)
ENTRY_MISSING = Fault(
    "entry-missing",
    "warning",
    "The harness is on PATH but does not know the bus.",
    "run: agentbus-admin install HARNESS",
)
ENTRY_OUTDATED = Fault(
    "entry-outdated",
    "warning",
    "The entry of the bus is of another installation or version.",
    "run: agentbus-admin install HARNESS",
)
ENTRY_FOREIGN = Fault(
    "entry-foreign",
    "failure",
    "Another program's entry is named `agentbus`.",
    "rename or remove it in FILE, then run: agentbus-admin install HARNESS",
)
ENTRY_BROKEN = Fault(
    "entry-broken",
    "failure",
    "The entry starts a program that is not there any more.",
    "run: agentbus-admin install HARNESS",
)
FILE_UNREADABLE = Fault(
    "file-unreadable",
    "failure",
    "A file of the harness's configuration cannot be read.",
    "repair it as the line says, then run: agentbus-admin install HARNESS",
)
HOOKS_MISSING = Fault(
    "hooks-missing",
    "warning",
    "Hooks of the bus are not installed: identity is guessed, and idle sessions are not woken.",
    "run: agentbus-admin install HARNESS",
)
HOOKS_OUTDATED = Fault(
    "hooks-outdated",
    "warning",
    "Hooks of the bus are of another installation or version.",
    "run: agentbus-admin install HARNESS",
)
HOOKS_UNTRUSTED = Fault(
    "hooks-untrusted",
    "warning",
    "Codex runs hooks only when they are trusted, and silently leaves out the others.",
    "start codex once in a terminal and accept the hooks",
)
HOOKS_SILENT = Fault(
    "hooks-silent",
    "warning",
    "No hook has spoken since the daemon started.",
    "start a session of the harness, then run this again; if it stays so, restart the harness, "
    "see that it allows hooks, and run: agentbus-admin install HARNESS",
)
CANARY_FAILED = Fault(
    "canary-failed",
    "failure",
    "An adapter could not be started, or a message did not come through it and back.",
    "do what the line says; the daemon's log is in LOGS",
)
CANARY_BUSY = Fault(
    "canary-busy",
    "warning",
    "Another doctor sends its canary right now.",
    "run this again when it has ended",
)
CANARY_NOT_SENT = Fault(
    "canary-not-sent",
    "warning",
    "No canary was sent, because something else is broken.",
    "settle the failures above, then run this again",
)
PROCESSES_UNKNOWN = Fault(
    "processes-unknown",
    "warning",
    "The processes cannot be listed.",
    "see that the command ps works",
)
ADAPTER_ORPHANED = Fault(
    "adapter-orphaned",
    "warning",
    "An adapter still runs although its harness has gone.",
    "end it: kill PID",
)
DAEMON_STRAY = Fault(
    "daemon-stray",
    "warning",
    "A daemon runs that holds no lock, so nobody can find it.",
    "end it: kill PID (if it stays: kill -9 PID)",
)
REDIS_STRAY = Fault(
    "redis-stray",
    "warning",
    "A private Redis runs without a daemon.",
    "if it is this bus's, the next daemon takes it over or ends it; else end it: kill PID",
)

FAULTS = tuple(value for value in tuple(globals().values()) if isinstance(value, Fault))
"""All of them, in the order of the checks."""
