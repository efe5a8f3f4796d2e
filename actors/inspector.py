"""Runs the inspection command on one mutation at a time.

Owns nothing but the child process of the moment, on a thread of its own that is blocked until it
ends. Nobody waits for this actor: the verdict goes back as a message. Never looks at what a verdict
means and never logs what was inspected.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.base import BusActor
from actors.messages import InspectorMessage
from agentbus.inspection import Verdict, build_document
from agentbus.rules.receipts import submitted_fields

RunCommand = Callable[[bytes], Verdict]
"""Runs the configured command on a document; blocks until the verdict."""


class InspectorActor(BusActor[InspectorMessage]):
    """One run after the other. A failed inspector answers no verdict, which allows nothing."""

    def __init__(self, run_command: RunCommand) -> None:
        super().__init__()
        self._run_command = run_command

    def receive(self, message: InspectorMessage) -> None:
        mutation = message.mutation
        document = build_document(
            mutation.operation.NAME, mutation.sender, submitted_fields(mutation.operation)
        )
        message.reply_to.set(self._run_command(document))
