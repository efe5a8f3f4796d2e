"""generateContent as Gemini CLI uses it, spoken by a scripted model."""

from __future__ import annotations

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
)


class FakeGemini(FakeModel):
    """Every answer is streamed as one event."""

    def is_conversation(self, path: str, body: dict[str, Any]) -> bool:
        return ":streamGenerateContent" in path

    def entries(self, body: dict[str, Any]) -> Iterator[Entry]:
        for content in body["contents"]:
            if content["role"] == "model":
                yield Turn()
                continue
            for part in content["parts"]:
                if "functionResponse" in part:
                    answered = part["functionResponse"]
                    yield Result(answered["id"], answered["response"]["output"])
                elif "text" in part:
                    yield Prompt(part["text"])

    def events(self, body: dict[str, Any], call_id: str, answer: Answer) -> Iterator[Event]:
        part: dict[str, Any]
        if isinstance(answer, str):
            part = {"text": answer}
        else:
            prefix = f"mcp_{SERVER}_" if isinstance(answer, Call) else ""
            name = f"{prefix}{answer.tool}"
            part = {"functionCall": {"id": call_id, "name": name, "args": answer.arguments}}
        content = {"role": "model", "parts": [part]}
        yield {
            "candidates": [{"index": 0, "content": content, "finishReason": "STOP"}],
            "usageMetadata": {
                "promptTokenCount": 10,
                "candidatesTokenCount": 5,
                "totalTokenCount": 15,
            },
            "modelVersion": "fake",
        }
