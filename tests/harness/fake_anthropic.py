"""The Messages API as Claude Code uses it, spoken by a scripted model."""

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


class FakeAnthropic(FakeModel):
    """Every answer is streamed with one content block."""

    tool_prefix = f"mcp__{SERVER}__"

    def is_conversation(self, path: str, body: dict[str, Any]) -> bool:
        return path.startswith("/v1/messages") and "count_tokens" not in path

    def entries(self, body: dict[str, Any]) -> Iterator[Entry]:
        for message in body["messages"]:
            if message["role"] == "assistant":
                yield Turn()
                continue
            content = message["content"]
            if not isinstance(content, str):
                for block in content:
                    if block["type"] == "tool_result":
                        yield Result(block["tool_use_id"], text_of(block.get("content")))
            yield Prompt(text_of(content))

    def events(self, body: dict[str, Any], call_id: str, answer: Answer) -> Iterator[Event]:
        message = {
            "id": f"msg_{call_id}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }
        if not isinstance(answer, str):
            of_bus = isinstance(answer, Call)
            block = {
                "type": "tool_use",
                "id": f"toolu_{call_id}",
                "name": f"{self.tool_prefix}{answer.tool}" if of_bus else answer.tool,
                "input": {},
            }
            delta = {"type": "input_json_delta", "partial_json": json.dumps(answer.arguments)}
            reason = "tool_use"
        else:
            block = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": answer}
            reason = "end_turn"
        yield {"type": "message_start", "message": message}
        yield {"type": "content_block_start", "index": 0, "content_block": block}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "content_block_stop", "index": 0}
        stop = {"stop_reason": reason, "stop_sequence": None}
        yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 5}}
        yield {"type": "message_stop"}


class FakeAnthropicOfOpencode(FakeAnthropic):
    """As opencode uses it."""

    tool_prefix = f"{SERVER}_"
