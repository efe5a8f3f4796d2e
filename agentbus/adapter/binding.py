"""Whose call is it: from the evidence of each tool call to the identity that is attached.

Owns the order of evidence and the hints that go with an identity. Never guesses from transcript
paths, display names or process ids, and talks to nobody. Used in the thread of the event loop.

Order: turn metadata of the call, the hook that announced this very call, the newest hook of this
process, `--session`, the environment of this process, and, when nothing is known, an id of this
process that nobody can resume.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbus.adapter.evidence import HookMemory
from agentbus.errors import ValidationError
from agentbus.harnesses import Call, Evidence, Harness, harness_of
from agentbus.harnesses.generic import SPARE_SECONDS
from agentbus.identity import IdentitySource, SessionIdentity
from agentbus.ids import new_id
from agentbus.limits import NAME_BYTES, PEER_CAPABILITIES
from agentbus.protocol.fields import check_name
from agentbus.protocol.session import CAPABILITY
from agentbus.rules.names import RESERVED_PREFIXES, reserved_prefix

_NO_NAME = "agent"


@dataclass(frozen=True, slots=True)
class Binding:
    """The session that a call belongs to, and what the daemon is told about it at attach."""

    identity: SessionIdentity
    source: IdentitySource
    parent_conversation: str | None = None
    role: str | None = None
    caution: str | None = None
    """What the agent should know about this identity; goes into its first result."""
    proven: bool = False
    """By the call itself: its metadata, or the hook that announced it. Such a newcomer takes a
    session over from an idle holder."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One tool call's binding and what its client takes."""

    binding: Binding
    result_characters: int
    wait_seconds: float
    """Longest wait that leaves time for the answer before the client gives the call up."""
    runs_commands: bool = False
    """Whether the agent has a shell at hand."""


class Binder:
    """Evidence to identity, for one adapter process."""

    def __init__(self, session: str | None, env: Mapping[str, str]) -> None:
        if session is not None:
            session = checked_name(session, "--session")
        self._session = session
        self._env = env
        self._process_id = new_id()
        self.hooks = HookMemory()

    def caller(self, client_name: str | None, meta: Mapping[str, Any]) -> Caller:
        """Who makes this call. Raises ValidationError for ids that cannot be one."""
        harness = harness_of(client_name or "unknown")
        call = Call(meta, self._env)
        of_call = harness.turn_metadata(call) or self.hooks.of_tool_use(harness.tool_use(call))
        proven = of_call is not None
        evidence = of_call or self._evidence(harness, call)
        application = checked_name(harness.application, "the name of the MCP client")
        child = evidence.child
        binding = Binding(
            SessionIdentity(
                application,
                checked_name(evidence.conversation, "the conversation id"),
                None if child is None else checked_name(child, "the child id"),
            ),
            evidence.source,
            evidence.parent_conversation,
            evidence.role,
            harness.caution if evidence.source == "environment" else None,
            proven,
        )
        limits = harness.limits(call)
        return Caller(
            binding,
            limits.result_characters,
            limits.call_seconds - SPARE_SECONDS,
            harness.runs_commands,
        )

    def _evidence(self, harness: Harness, call: Call) -> Evidence:
        """Of a call that shows nothing by itself."""
        if self.hooks.newest is not None:
            return self.hooks.newest
        if self._session is not None:
            return Evidence(self._session, "argument")
        return harness.environment(call) or Evidence(self._process_id, "process")


def checked_name(text: str, what: str) -> str:
    """As the daemon will check it, with an error that says what it was."""
    try:
        return check_name(text)
    except ValidationError as error:
        raise ValidationError(f"{what} {error.message}") from None


def checked_capabilities(given: Sequence[str]) -> tuple[str, ...]:
    """What `--capability` names, sorted and each once. Raises ValidationError."""
    labels = tuple(sorted(set(given)))
    if len(labels) > PEER_CAPABILITIES:
        raise ValidationError(
            f"--capability must name at most {PEER_CAPABILITIES} capabilities, these are "
            f"{len(labels)}"
        )
    for label in labels:
        try:
            CAPABILITY(label)
        except ValidationError as error:
            raise ValidationError(f"--capability {error.message}") from None
    return labels


def agent_name(given: str | None, folder: Path) -> str:
    """`--agent`, else the folder's name as far as it can be one."""
    if given is not None:
        name = checked_name(given, "--agent")
        if reserved_prefix(name) is not None:
            raise ValidationError(
                f"--agent must not begin with {' or '.join(RESERVED_PREFIXES)}, which mark people, "
                "callers over talk and inboxes; choose another name"
            )
        return name
    name = unicodedata.normalize("NFC", folder.name.encode(errors="replace").decode())
    name = "".join(character for character in name if character.isprintable())
    while (prefix := reserved_prefix(name)) is not None:
        name = unicodedata.normalize("NFKC", name).partition(prefix[-1])[2]
    return name.encode()[:NAME_BYTES].decode(errors="ignore").strip() or _NO_NAME


def repository_hint(folder: Path) -> str | None:
    """The name of the folder that holds the repository's `.git`; looked up, git is not run."""
    for candidate in (folder, *folder.parents):
        marker = candidate / ".git"  # a folder, or a file in a worktree
        if marker.exists():
            return _main_worktree(marker) or candidate.name or None
    return None


def _main_worktree(marker: Path) -> str | None:
    """A linked worktree's `.git` is a file `gitdir: <main>/.git/worktrees/<name>`."""
    try:
        if not marker.is_file() or marker.stat().st_size > 4096:
            return None
        text = marker.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    path = Path(text.removeprefix("gitdir: "))
    if path.parent.name == "worktrees" and path.parent.parent.name == ".git":
        return path.parent.parent.parent.name or None
    return None
