"""The daemon's side of the wire with a script instead of a bus, for faults that a bus rarely has.

    async with ScriptedDaemon() as daemon:
        daemon.answers["send"] = [StaleAttachmentError("gone"), {"message_id": ...}]
        ...
        daemon.requests("send")      # the params of each that came

It listens on a real socket in a runtime folder of its own. A method's answers are used one after
the other, the last one again and again: a value, a BusError, None (as by default), `After` or
`DROP` (the connection ends).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from agentbus.encoding import decode_frame
from agentbus.errors import BusError
from agentbus.protocol.jsonrpc import encode_error, encode_notification, encode_response
from agentbus.transport.singleton import RuntimePaths

DROP = object()

SUBSCRIPTION = {
    "subscription": 1,
    "channel": "general",
    "kind": "ordinary",
    "handed_off": 0,
    "confirmed": 0,
    "expired_at": None,
}


@dataclass(frozen=True, slots=True)
class After:
    """The answer is given when the event is set; the connection stands still until then."""

    event: asyncio.Event
    answer: Any


class ScriptedDaemon:
    """See the module. `generation` is that of the newest attachment."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ab-", dir="/tmp"))
        self.paths = RuntimePaths(self.directory / "run")
        self.config_path = self.directory / "config.json"
        self.paths.directory.mkdir(mode=0o700)
        self.bus_id = "bus-1"
        self.epoch = 1
        self.generation = 0
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, list[Any]] = {
            "heartbeat": [{"state": "ready", "epoch": 1}],
            "pull": [{"epoch": 1, "deliveries": []}],
            "whoami": [{"agent": "Sam"}],
        }
        self.before_attach_answer: list[bytes] = []
        """Frames that reach the client together with the answer, before it has taken that."""
        self.behind_answer: dict[str, bytes] = {}
        """By method: what reaches the client together with the next answer, behind it."""
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()
        shutil.rmtree(self.directory)

    async def listen(self) -> None:
        self.paths.socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self.paths.socket)
        self.paths.socket.chmod(0o600)

    async def leave(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def requests(self, method: str) -> list[dict[str, Any]]:
        return [params for name, params in self.seen if name == method]

    async def until(self, method: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many of that method have come."""
        async with asyncio.timeout(10):
            while len(self.requests(method)) < count:
                await asyncio.sleep(0.005)
        return self.requests(method)

    def tell(self, method: str, **params: Any) -> None:
        """A notification to whoever is connected."""
        for writer in self._writers:
            writer.write(encode_notification(method, params))

    def deliver_frame(self, *sequences: int, after: int, epoch: int = 1) -> bytes:
        return encode_notification(
            "deliver",
            {
                "session_id": "session-1",
                "generation": self.generation,
                "epoch": epoch,
                "delivery": self.delivery(*sequences, after=after),
            },
        )

    def deliver(self, *sequences: int, after: int, epoch: int = 1) -> None:
        for writer in self._writers:
            writer.write(self.deliver_frame(*sequences, after=after, epoch=epoch))

    def delivery(self, *sequences: int, after: int) -> dict[str, Any]:
        sender = {"session_id": "other", "display_name": "Kim"}
        return {
            "subscription": 1,
            "channel": "general",
            "after": after,
            "through": max((after, *sequences)),
            "redelivered_through": 0,
            "records": [
                [
                    sequence,
                    {"sequence": sequence, "content": f"message {sequence}", "sender": sender},
                ]
                for sequence in sequences
            ],
        }

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        while line := await reader.readline():
            request = decode_frame(line)
            method, params = request["method"], request.get("params", {})
            self.seen.append((method, params))
            if "id" not in request:
                continue
            answer = self._answer(method, params)
            if isinstance(answer, After):
                await answer.event.wait()
                answer = answer.answer
            if answer is DROP:
                writer.close()
                return
            if isinstance(answer, BusError):
                writer.write(encode_error(request["id"], answer))
            else:
                frame = encode_response(request["id"], answer) + self.behind_answer.pop(method, b"")
                if method == "attach":
                    frame += b"".join(self.before_attach_answer)
                writer.write(frame)

    def _answer(self, method: str, params: dict[str, Any]) -> Any:
        scripted = self.answers.get(method)
        if scripted:
            answer = scripted.pop(0) if len(scripted) > 1 else scripted[0]
            if answer is not None:
                return answer
        if method == "hello":
            return {"bus_id": self.bus_id, "state": "ready", "epoch": self.epoch}
        if method == "attach":
            self.generation += 1
            return {
                "session_id": "session-1",
                "generation": self.generation,
                "display_name": "Sam",
                "bus_id": self.bus_id,
                "epoch": self.epoch,
                "subscriptions": [SUBSCRIPTION],
                "memory_changes": [],
            }
        if method == "handoff":
            return {"report": params["report"]}
        raise AssertionError(f"no answer is scripted for {method}")
