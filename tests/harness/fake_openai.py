"""The Responses API as Codex uses it, spoken by a scripted model.

Codex declares the tools of an MCP server as a namespace, so a call names both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.harness.fake_model import (
    SERVER,
    Answer,
    Call,
    Entry,
    Event,
    FakeModel,
    Prompt,
    Result,
    Turn,
    text_of,
)


class FakeOpenAI(FakeModel):
    """Every answer is streamed with one output item."""

    def is_conversation(self, path: str, body: dict[str, Any]) -> bool:
        return path.split("?", maxsplit=1)[0].endswith("/responses")

    def entries(self, body: dict[str, Any]) -> Iterator[Entry]:
        for item in body["input"]:
            kind = item.get("type", "message")
            if kind == "function_call_output":
                yield Result(item["call_id"], text_of(item["output"]))
            elif kind == "function_call" or item.get("role") == "assistant":
                yield Turn()
            elif kind in ("message", "agent_message") and item.get("role", "user") == "user":
                yield Prompt(text_of(item["content"]))

    def events(self, body: dict[str, Any], call_id: str, answer: Answer) -> Iterator[Event]:
        item: dict[str, Any]
        if not isinstance(answer, str):
            of_bus = isinstance(answer, Call)
            namespace = f"mcp__{SERVER}" if of_bus else _namespace(body, answer.tool)
            item = {
                "type": "function_call",
                "id": f"fc_{call_id}",
                "call_id": f"call_{call_id}",
                **({} if namespace is None else {"namespace": namespace}),
                "name": answer.tool,
                "arguments": json.dumps(answer.arguments),
                "status": "completed",
            }
            begun = {**item, "arguments": ""}
        else:
            item = {
                "type": "message",
                "id": f"msg_{call_id}",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": answer, "annotations": []}],
            }
            begun = {**item, "content": []}
        response = {
            "id": f"resp_{call_id}",
            "object": "response",
            "model": body["model"],
            "status": "in_progress",
            "output": [],
        }
        usage = {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
        }
        done = {**response, "status": "completed", "output": [item], "usage": usage}
        yield {"type": "response.created", "response": response}
        yield {"type": "response.output_item.added", "output_index": 0, "item": begun}
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        yield {"type": "response.completed", "response": done}


def _namespace(body: dict[str, Any], tool: str) -> str | None:
    """The one in which Codex declares this tool of its own, if any."""
    for declared in body["tools"]:
        if any(inner.get("name") == tool for inner in declared.get("tools", [])):
            return str(declared["name"])
    return None
