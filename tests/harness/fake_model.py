"""Models that do what a test wrote down, behind the HTTP interfaces that real ones have.

    script = model.script(Call("send", content="hello"), Call("receive", wait_seconds=20), "done")
    claude.start(script)                 # its prompt names the script
    script.result(1)["messages"]         # waits for the second step's tool result

Owns the scripts and what came back from their tool calls. A step that needs an earlier result is a
function of the script. Every request carries the whole conversation, as real models get it: the
newest prompt that names a script chooses the script, the answers since then choose the step.

Requests are served in threads of the server; tests wait on conditions.
"""

from __future__ import annotations

import json
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

RESULT_WITHIN_S = 45.0
"""The start of a command line, its adapter and the bus on a busy machine."""

SERVER = "agentbus"
"""The name of the MCP server in the configuration of every command line."""

END = "END"
"""What a model says when its script has no step left."""

_SCRIPT_NAME = re.compile(r"script-(\d+)")
_CALL_ID = re.compile(r"script(\d+)step(\d+)$")


@dataclass(frozen=True, slots=True, init=False)
class Call:
    """One call of a tool of the bus."""

    tool: str
    arguments: dict[str, Any]

    def __init__(self, tool: str, **arguments: Any) -> None:
        object.__setattr__(self, "tool", tool)
        object.__setattr__(self, "arguments", arguments)


@dataclass(frozen=True, slots=True)
class OwnCall:
    """One call of a tool of the command line itself, by the name that it has there."""

    tool: str
    arguments: dict[str, Any]


class Script:
    """What a model does for one prompt, and the results it was shown."""

    def __init__(self, number: int, steps: tuple[Step, ...]) -> None:
        self.prompt = f"Follow script-{number}."
        self._number = number
        self._steps = steps
        self._changed = threading.Condition()
        self._results: dict[int, str] = {}
        self._answers = 0
        self._context = ""
        self._failure: BaseException | None = None

    @property
    def steps(self) -> int:
        return len(self._steps)

    @property
    def context(self) -> str:
        """All that the model was told when it was asked last, the results of tools apart."""
        with self._changed:
            return self._context

    @property
    def answers(self) -> int:
        """How often the model was asked to go on with it; what follows the last step counts too."""
        with self._changed:
            return self._answers

    def wait_answers(self, count: int, within_s: float = RESULT_WITHIN_S) -> None:
        """Until it was asked so often."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._answers >= count, within_s):
                raise AssertionError(f"{self._answers} answers within {within_s:g} s, not {count}")

    def result(self, step: int, within_s: float = RESULT_WITHIN_S) -> dict[str, Any]:
        """The structured result of that step's call, as the model was shown it."""
        text = self.result_text(step, within_s)
        try:
            # Codex puts a line of its own before it, Claude the schema after an error.
            structured, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
        except ValueError:
            raise AssertionError(f"step {step} was answered {text!r}") from None
        assert isinstance(structured, dict)
        return structured

    def result_text(self, step: int, within_s: float = RESULT_WITHIN_S) -> str:
        deadline_s = time.monotonic() + within_s
        with self._changed:
            while step not in self._results:
                if self._failure is not None:
                    raise AssertionError("the script failed") from self._failure
                if not self._changed.wait(max(0.0, deadline_s - time.monotonic())):
                    raise AssertionError(
                        f"no result of step {step} within {within_s:g} s; only {self._results}"
                    )
            return self._results[step]

    def take(self, step: int, text: str) -> None:
        """A conversation shows all its results again with every request: the first one counts."""
        with self._changed:
            self._results.setdefault(step, text)
            self._changed.notify_all()

    def answer(self, step: int, context: str) -> tuple[str, Answer]:
        """The id and the content of the model's answer at that step."""
        with self._changed:
            self._context = context
            self._answers = max(self._answers, step + 1)
            self._changed.notify_all()
        chosen = self._steps[step] if step < len(self._steps) else END
        if callable(chosen):
            try:
                chosen = chosen(self)
            except BaseException as failure:
                with self._changed:
                    self._failure = failure
                    self._changed.notify_all()
                raise
        return f"script{self._number}step{step}", chosen


Answer = Call | OwnCall | str
"""A call of a tool, or words that end the turn."""

Step = Answer | Callable[[Script], Answer]
"""An answer, or one made of earlier results."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the user said."""

    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the model."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool answered."""

    call_id: str
    text: str


Entry = Prompt | Turn | Result
Event = dict[str, Any]


class FakeModel(ABC):
    """A model on a port of its own; a subclass knows the wire. Use as a context manager."""

    def __init__(self) -> None:
        self._scripts: dict[int, Script] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def script(self, *steps: Step) -> Script:
        number = len(self._scripts) + 1
        self._scripts[number] = script = Script(number, steps)
        return script

    @abstractmethod
    def is_conversation(self, path: str, body: dict[str, Any]) -> bool:
        """Whether this asks for an answer to be streamed."""

    @abstractmethod
    def entries(self, body: dict[str, Any]) -> Iterable[Entry]:
        """The conversation so far, in order."""

    @abstractmethod
    def events(self, body: dict[str, Any], call_id: str, answer: Answer) -> Iterable[Event]:
        """One whole answer as the stream's events; `type` names each where they have names."""

    def answer(self, body: dict[str, Any]) -> Iterable[Event]:
        if not body.get("tools"):  # for a title or a summary, not the conversation
            return self.events(body, "helper", "helper answer")
        entries = list(self.entries(body))
        for entry in entries:
            if isinstance(entry, Result) and (named := _CALL_ID.search(entry.call_id)):
                self._scripts[int(named[1])].take(int(named[2]), entry.text)
        return self.events(body, *self._next(entries))

    def _next(self, entries: list[Entry]) -> tuple[str, Answer]:
        step = 0
        for entry in reversed(entries):
            if isinstance(entry, Turn):
                step += 1
            elif isinstance(entry, Prompt) and (named := _SCRIPT_NAME.search(entry.text)):
                context = "\n".join(told.text for told in entries if isinstance(told, Prompt))
                return self._scripts[int(named[1])].answer(step, context)
        return "unscripted", END

    def __enter__(self) -> FakeModel:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(model: FakeModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._head(200, "text/plain", 0)

        def do_GET(self) -> None:
            self._document(404, {"error": {"type": "not_found_error", "message": "not here"}})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
            if not model.is_conversation(self.path, body):
                self._document(200, {"input_tokens": 1})
                return
            stream = b"".join(_encoded(model.answer(body)))
            self._head(200, "text/event-stream", len(stream))
            self.wfile.write(stream)

        def _document(self, status: int, document: dict[str, Any]) -> None:
            data = json.dumps(document).encode()
            self._head(status, "application/json", len(data))
            self.wfile.write(data)

        def _head(self, status: int, kind: str, length_bytes: int) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(length_bytes))
            self.send_header("connection", "close")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    return Handler


def _encoded(events: Iterable[Event]) -> Iterator[bytes]:
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        yield f"{name}data: {json.dumps(event)}\n\n".encode()


def text_of(content: Any) -> str:
    """The words of a message's or a result's content, however they are wrapped."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or [] if isinstance(part.get("text"), str))
