"""An emitter that sends any frames: one connection, one job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agentbus.limits import JOB_APPLICATION, JOBS_AGENT, PROTOCOL_VERSION
from agentbus.transport.client import Client, NoAnswerError
from tests.eventually import PATIENCE_S

TS = "2026-01-02T03:04:05.678Z"

FIELDS: dict[str, dict[str, Any]] = {
    "accepted": {"url": "u"},
    "progress": {"stage": "s"},
    "warning": {"message": "m"},
    "succeeded": {"result": 1},
    "failed": {"code": "general", "message": "m"},
}


def connect(socket: Path) -> Client:
    """A connection that has said hello, as a command line has."""
    client = Client.connect(socket, PATIENCE_S)
    hello = {"protocol": PROTOCOL_VERSION, "version": "0", "pid": os.getpid()}
    client.request("hello", hello, PATIENCE_S)
    return client


class Emitting:
    """Use as a context manager, or close it."""

    def __init__(
        self, socket: Path, job_id: str = "cake", *, application: str = "job", **callback: Any
    ) -> None:
        self.job_id = job_id
        self.callback = callback
        self._socket = socket
        self._application = application
        self._conversation = job_id
        self.attach()

    def attach(self) -> None:
        """On a new connection."""
        self.client = connect(self._socket)
        try:
            facts = self._attach()
        except BaseException:
            self.close()
            raise
        self.attachment = [facts["session_id"], facts["generation"]]

    def _attach(self) -> Any:
        return self.client.request(
            "attach",
            {
                "agent": JOBS_AGENT if self._application == JOB_APPLICATION else "Sam",
                "application": self._application,
                "conversation": self._conversation,
                "identity_source": "argument",
                "window_messages": 1,
                "window_bytes": 1,
            },
            PATIENCE_S,
        )

    def emit(self, seq: int, kind: str = "warning", **fields: Any) -> Any:
        """The answer; raises what the bus refuses. Attaches anew where it was silent for long."""
        event = {
            "job_id": self.job_id,
            "seq": seq,
            "ts": TS,
            "type": kind,
            **(fields or FIELDS[kind]),
        }
        return self.send(event)

    def send(self, event: Any) -> Any:
        """Anything, as an event."""
        frame = {"attachment": self.attachment, "event": event}
        if self.callback:
            frame["callback"] = self.callback
        try:
            return self.client.request("job_event", frame, PATIENCE_S)
        except NoAnswerError:
            self.close()
            self.attach()
            frame["attachment"] = self.attachment
            return self.client.request("job_event", frame, PATIENCE_S)

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> Emitting:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
