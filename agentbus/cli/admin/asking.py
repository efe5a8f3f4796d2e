"""What a person asks the daemon about directed work, with its refusals in the words of the command.

The protocol names parameters, a command line options. Owns the translation; whatever else the
daemon says goes on as it is. Blocks; runs on the main thread of a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agentbus.cli.running import ANSWER_S, Daemon
from agentbus.errors import ValidationError
from agentbus.protocol.people import parse_persons_request

_OPTIONS: Final = {
    "id": "ID",
    "intervention_id": "ID",
    "version": "--if-version",
    "action": "ACTION",
    "instructions": "--instructions",
    "to": "--to",
    "body": "--body",
    "idempotency_key": "--key",
    "thread_id": "--thread",
    "expect_reply_within_seconds": "--due",
    "state": "--state",
    "agent": "--agent",
    "limit": "--limit",
}
_OPTIONS_OF_SEND: Final = _OPTIONS | {"to": "NAME"}


def ask(
    daemon: Daemon, method: str, params: Mapping[str, Any], within_s: float = ANSWER_S
) -> dict[str, Any]:
    """The answer. What is wrong with the arguments is told without asking."""
    check(method, params)
    try:
        answer: dict[str, Any] = daemon.ask(method, within_s, params)
    except ValidationError as error:
        raise ValidationError(_in_words_of_the_command(method, error.message)) from None
    return answer


def check(method: str, params: Mapping[str, Any]) -> None:
    """Raises ValidationError for what the daemon would refuse unseen."""
    try:
        parse_persons_request(method, params)
    except ValidationError as error:
        raise ValidationError(_in_words_of_the_command(method, error.message)) from None


def _in_words_of_the_command(method: str, message: str) -> str:
    command = method.replace("_", " ")
    for said in (f"{method}: ", "peer send: "):
        if message.startswith(said):
            first, space, rest = message.removeprefix(said).partition(" ")
            options = _OPTIONS_OF_SEND if method == "human_send" else _OPTIONS
            return f"{command}: {options.get(first, first)}{space}{rest}"
    return message
