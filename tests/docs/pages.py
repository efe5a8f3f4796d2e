"""The reference pages that are made from the code: docs/settings.md and docs/tools.md.

    python -m tests.docs.pages        # write them anew

A test compares them with what is written, so neither can drift.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentbus.adapter.peer.tool import NAME as PEER
from agentbus.adapter.tools import TOOLS, ToolSpec
from agentbus.encoding import encode
from agentbus.protocol.operations import OPERATIONS, required_fields
from agentbus.protocol.peer import PEER_OPERATIONS, PeerOperation, required_arguments
from agentbus.rules.talk import TALK_CODES
from agentbus.settings import SETTINGS, Setting
from tests.architecture.tree import ROOT

DOCS = ROOT / "docs"

_SETTINGS_HEAD = """\
# Settings

One JSON file holds all of them: `~/.config/agentbus/config.json`, or the file that
`--config PATH` names. No file means all defaults, and nothing ever writes one. There are no
per-setting flags and no per-setting environment variables. A complete example:

```json
{
  "data_directory": "~/bus",
  "message_retention_hours": 48,
  "log_level": "warn"
}
```

- An unknown or repeated key, a wrong type (`true` is not a number, `5.0` is not `5`), a value out
  of range or a pair of settings that contradict each other is refused at start with the key, the
  value and the correction: one line on stderr, exit code 2. Nothing is ever clamped.
- `~/` is your home; a relative path is relative to the file's own folder.
- The daemon reads the file once, at its start. To apply a change: `agentbus stop`; the next tool
  call starts a daemon with the new values. Until then an adapter that sees another configuration
  than the daemon's answers `config_mismatch`, and `agentbus status` tells what differs.
- `agentbus-admin config` shows every value in force and where it comes from.
- `recv_default_count` must not be above `recv_max_count`.

This page is made from `agentbus/settings.py`.

| Setting | Default | May be | Meaning |
|---|---|---|---|
"""

_SETTINGS_OF_TOOLS = """
## Settings of tools

Tools that run as [jobs](jobs.md) are told by their environment, not by this file.
"""

_TOOLS_HEAD = """\
# Tools

What an agent sees over MCP. Every successful result begins with `you` (the session's display
name) and `pending` (messages that wait), has `peer` (deliveries that wait or are held) when that is
above 0, and `notices` when there is something to know. A failed call is a failed tool result with
`{"error": {"code", "message", "retryable", "reason"?, "retry_after_ms"?}}`, of `peer` also with
`state`, `status` and `detail` where there is more to say; the codes are in [errors.md](errors.md).
Results are structured content and the same JSON as text.

Arguments are checked strictly: an unknown argument or a wrong type is refused with a message that
says what would be right. An explicit `null` means the default.

This page is made from `agentbus/protocol/operations.py`, `agentbus/protocol/peer.py` and
`agentbus/adapter/tools.py`.
"""

_TOOL_NOTES = {
    "create_channel": "Names that begin with `@` or `job/` are reserved. A channel's kind never "
    "changes; in a memory channel `send` makes a memory.",
    "subscribe": "Subscribing again keeps the position and renews the subscription; one that is "
    "not used for `cursor_idle_hours` expires. Every session is subscribed to `general` once, when "
    "it is first seen.",
    "send": "The answer comes after the commit to disk. Without an `operation_id` the adapter "
    "makes one and uses it for its own retries; with one of your own, a repeat within "
    "`dedup_retention_hours` answers the first receipt with `duplicate: true`, and the same id "
    "with other content is a `conflict`.",
    "receive": "A message is delivered once; it comes again, marked `redelivered: true`, only when "
    "its first delivery was not confirmed. What cleanup removed before you read it is told in "
    "`gaps`, a subscription that lapsed in `expired`. `replay` gives the last result's messages "
    "and gaps again. A message larger than the ceiling comes alone, its content cut, with "
    "`truncated`; `history` reads the rest. Your own messages are left out unless `include_own` is "
    "set. The "
    "wait may be shortened to what the client's own time limit allows: `waited_seconds` tells.",
    "history": "Give either `channel` or `message_id`. What was removed of the part that a page "
    "covers is told in `gaps`.",
    "search": "A page that `cursor` asked for tells in `gaps` what was removed since the first "
    "page, as far as it would have held it.",
    "discover": "`discovery_disabled` when `discovery_enabled` is false.",
}


def settings_page() -> str:
    """docs/settings.md."""
    lines = [_setting_line(row) for row in SETTINGS]
    return f"{_SETTINGS_HEAD}{''.join(lines)}{_SETTINGS_OF_TOOLS}"


def _setting_line(row: Setting) -> str:
    unit = f" {row.unit}" if row.unit else ""
    default = encode(row.default).decode()
    cells = (f"`{row.name}`", f"`{default}`{unit}", f"{row.expected}", f"{row.meaning}")
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def tools_page() -> str:
    """docs/tools.md."""
    sections = (_tool_section(tool) for tool in TOOLS if tool.name != PEER)
    operations = (_peer_section(operation) for operation in PEER_OPERATIONS.values())
    return _TOOLS_HEAD + "".join(sections) + _PEER_HEAD + "".join(operations)


def _peer_section(operation: type[PeerOperation]) -> str:
    required = required_arguments(operation)
    lines = [f"\n### peer {operation.NAME}\n", f"\n{operation.__doc__}\n"]
    if operation.NAME in _PEER_NOTES:
        lines.append(f"{_PEER_NOTES[operation.NAME]}\n")
    if operation.FIELDS:
        lines.append("\n| Argument | Type | Bounds |\n|---|---|---|\n")
        for name, check in operation.FIELDS.items():
            needed = " (required)" if name in required else ""
            schema = check.schema()
            lines.append(f"| `{name}`{needed} | {_kind(schema)} | {_bounds(schema)} |\n")
    lines.append(f"\nResult: {_PEER_RESULTS[operation.NAME]}.\n")
    return "".join(lines)


def _kind(schema: Mapping[str, Any]) -> str:
    return " or ".join(f'`"{word}"`' for word in schema.get("enum", ())) or str(schema["type"])


def _bounds(schema: Mapping[str, Any]) -> str:
    """In words, from the schema of the argument."""
    words = []
    if "minimum" in schema:
        words.append(f"{schema['minimum']} to {schema['maximum']}")
    if "maxItems" in schema:
        words.append(f"{schema.get('minItems', 0)} to {schema['maxItems']} items, each:")
        schema = schema["items"]
    if "maxLength" in schema:
        words.append(f"{schema.get('minLength', 0)} to {schema['maxLength']} characters")
    return " ".join(words)


def _tool_section(tool: ToolSpec) -> str:
    operation = OPERATIONS[tool.name]
    required = required_fields(operation)
    lines = [f"\n## {tool.name}\n", f"\n{tool.description.removeprefix('Agentbus: ')}\n"]
    if tool.name in _TOOL_NOTES:
        lines.append(f"{_TOOL_NOTES[tool.name]}\n")
    properties: Mapping[str, Mapping[str, Any]] = tool.input_schema["properties"]
    if properties:
        lines.append("\n| Argument | Type | Meaning |\n|---|---|---|\n")
        for name, schema in properties.items():
            needed = " (required)" if name in required else ""
            lines.append(
                f"| `{name}`{needed} | {_kind(schema)} | {schema.get('description', '')} |\n"
            )
    members = ", ".join(
        f"`{name}`" for name in tool.output_schema["properties"] if name not in _HEADER
    )
    lines.append(f"\nResult: {members}.\n")
    return "".join(lines)


_HEADER = ("you", "pending", "error", "notices")

_PEER_HEAD = """
## peer

Direct work between agents: `{"op": ..., "args": {...}}`. A request is one message with one
delivery for each recipient. A recipient claims its delivery with `wait`, shows with `progress` that
it works, and finishes it with `reply` or `ack`. The adapter keeps the proof of the claim and renews
it; an agent names its work by `delivery_id` alone.

- `args` may be left out where an operation needs none. Unknown arguments are refused before
  anything has happened.
- An `idempotency_key` names one message of this agent: the same call again answers the first
  receipt with `duplicate: true`, another content under the same key is a `conflict` with reason
  `COLLABORATION_IDEMPOTENCY_KEY_REUSED`.
- A claim that lapsed while the agent worked is taken again by itself, and the call goes on. Where
  that cannot be, the error has a `state`: `resumed` (a person gave new instructions, in
  `detail.resume_context`: follow them and use a new key), `unavailable` (the work is done, ended or
  another's: drop it), `paused` (a person decides first: stop).
- A result that is too large keeps whole records and asks for the rest with `next_cursor`; a text
  that is cut has `truncated` beside it, and `history` with the `message_id` and `next_offset` reads
  on.
"""

_PEER_NOTES = {
    "discover": "`discovery_disabled` when `discovery_enabled` is false, as `agents` and `*` are.",
    "send": '`to` holds agent ids, agent names or session ids. `["*"]` stands for everybody in the '
    "directory whom `peer_allow` names, but yourself. A message whose `reply_to` is that of a "
    "delivery which you hold finishes it unless `ack` is false. If that is a request, it is the "
    "reply to it, also where no `kind` is given. "
    "`thread_id` is a name: at most 128 bytes of UTF-8, kept in NFC, no control characters.",
    "wait": "The wait may be shortened to what the client's own time limit allows; the result then "
    "has `timeout`. The same session is given its own delivery again until that is finished. A "
    "late reply is told in `notices`, once per session. An answer that was shown before and is not "
    "finished comes again with its text, and has `already_presented`.",
    "collect": "Answers that were shown before have `already_presented` and no text. The wait may "
    "be shortened like that of `wait`. A `partial` collect may be repeated. Texts that did not fit "
    "are null and come with the next collect.",
    "recent": "With `reply_to`, the answers that it shows are not given again by `wait`.",
    "memory_context": "The result is the context and nothing else; give it unchanged as `metadata` "
    "of `send` on a memory channel.",
}

_PEER_RESULTS = {
    "discover": "`agents`, `next_cursor`, `has_more`",
    "send": "`message_id`, `thread_id`, `recipients` (each with its `delivery_id`), `status`, "
    "`duplicate`, `acked` (the delivery that is finished by this answer)",
    "recent": "`messages`, `next_cursor`",
    "collect": "`request_id`, `outcome` (`complete`, `partial`, `no_reply` or `cancelled`), "
    "`expected`, `answers`, `pending` (who has not answered; no number here), "
    "`closed`, `excluded`, `elapsed_seconds`, `summary`, "
    "`consultation_seconds_left`",
    "agents": "`agents`, `next_cursor`, `has_more`",
    "describe": "the updated entry",
    "threads": "`threads`",
    "status": "`envelope`, `deliveries`",
    "requests": "`requests`",
    "human": "`status` (`paused`) and what was asked",
    "wait": "`delivery` or null, `notices`, `waited_seconds`, `blocked` when something else than "
    "emptiness keeps work back",
    "ack": "the final state",
    "reply": "`message_id`, `thread_id`, `recipients`, `status`, `duplicate`, `acked` unless `ack` "
    "is false",
    "progress": "`status`, `extension_count`",
    "checkpoint": "`status` (`leased`: go on, or `paused`: a person decides first)",
    "memory_context": "`source`, `tenant_id`, `thread_id`, `message_id`, `delivery_id`, "
    "`peer_agent_ids`, `kind`, `ts`, `human_decision`",
}


def talk_page() -> str:
    """docs/talk.md: as it was written by hand, with the table of codes."""
    page = (DOCS / "talk.md").read_text(encoding="utf-8")
    head, begin, rest = page.partition(_CODES_BEGIN)
    _, end, foot = rest.partition(_CODES_END)
    rows = "".join(
        f"| `{row.name}` | {'yes' if row.retryable else 'no'} | {row.status} | {row.meaning} |\n"
        for row in TALK_CODES
    )
    return f"{head}{begin}\n\n{_CODES_HEAD}{rows}\n{end}{foot}"


_CODES_BEGIN = "made from agentbus/rules/talk.py: python -m tests.docs.pages -->"
_CODES_END = "<!-- end of the table -->"
_CODES_HEAD = "| Code | Retryable | Status | Meaning |\n|---|---|---|---|\n"

PAGES = {"settings.md": settings_page, "talk.md": talk_page, "tools.md": tools_page}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
