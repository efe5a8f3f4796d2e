"""The requests of talk: which instances are served here, who may call itself by
their names, and what the agents of that name are asked.

`talk_serve` is bound to its connection, as an attachment is: whose connection ends serves no more,
and a daemon that starts anew hears it again from everybody. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from agentbus.errors import TooLargeError, ValidationError
from agentbus.limits import PEER_BODY_CHARACTERS, PORT_MAX, TALK_PREFIX
from agentbus.protocol.fields import check_name
from agentbus.protocol.session import Fields


@dataclass(frozen=True, slots=True)
class TalkServe:
    """This connection's process serves an instance; said again at every sign of life.

    `started`: the mark that tells the process from a later one of the same pid. `secret` None: it
    is known to those who were told, and to nobody through the daemon.
    """

    instance: str
    port: int
    pid: int
    started: str
    kind: str
    secret: str | None


@dataclass(frozen=True, slots=True)
class TalkFind:
    """Where an instance is. `caller` wants a proof that it may call itself so; `pids` are its
    process and those that it descends from."""

    instance: str
    caller: str
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TalkCaller:
    """May the holder of this proof call itself so?"""

    instance: str
    session: str | None


@dataclass(frozen=True, slots=True)
class TalkAsk:
    """A question to the agent whose instance this connection serves. Answered when it is sent;
    what becomes of it within `within_ms` is told by `talk_answered`, with the same `delegation_id`.

    `sender`: the agent name that the daemon issues to the caller. `key`: a repeat by the same
    caller is answered as the first time.
    """

    instance: str
    sender: str
    prompt: str
    depth: int
    key: str
    delegation_id: str
    within_ms: int


@dataclass(frozen=True, slots=True)
class TalkResult:
    """What has become of a question, by the id of its message."""

    message_id: str


@dataclass(frozen=True, slots=True)
class TalkGone:
    """That process does not answer for that instance."""

    instance: str
    pid: int


@dataclass(frozen=True, slots=True)
class TalkList:
    """All that are served."""


TalkRequest: TypeAlias = (
    TalkServe | TalkFind | TalkCaller | TalkAsk | TalkResult | TalkGone | TalkList
)


def parse_talk_serve(params: Any) -> TalkServe:
    known = frozenset({"instance", "port", "pid", "started", "kind", "secret"})
    read = Fields("talk_serve", params, known)
    port = read.integer("port", 1)
    if port > PORT_MAX:
        raise ValidationError(f"talk_serve: port must be at most {PORT_MAX}, not {port}")
    return TalkServe(
        instance=read.name("instance"),
        port=port,
        pid=read.integer("pid", 1),
        started=read.text("started"),
        kind=read.text("kind"),
        secret=read.optional_text("secret"),
    )


def parse_talk_find(params: Any) -> TalkFind:
    read = Fields("talk_find", params, frozenset({"instance", "caller", "pids"}))
    return TalkFind(read.name("instance"), read.text("caller"), read.integers("pids"))


def parse_talk_caller(params: Any) -> TalkCaller:
    read = Fields("talk_caller", params, frozenset({"instance", "session"}))
    return TalkCaller(read.text("instance"), read.optional_text("session"))


def parse_talk_ask(params: Any) -> TalkAsk:
    known = {"instance", "caller", "prompt", "depth", "key", "delegation_id", "within_ms"}
    read = Fields("talk_ask", params, frozenset(known))
    prompt = read.any_text("prompt")
    if len(prompt) > PEER_BODY_CHARACTERS:
        raise TooLargeError(
            f"talk_ask: the prompt has {len(prompt)} characters, a request to an agent at most "
            f"{PEER_BODY_CHARACTERS}; shorten it, or name a file"
        )
    return TalkAsk(
        instance=read.name("instance"),
        sender=_sender(read.text("caller")),
        prompt=prompt,
        depth=read.integer("depth", 0),
        key=read.text("key"),
        delegation_id=read.text("delegation_id"),
        within_ms=read.integer("within_ms", 0),
    )


def _sender(caller: str) -> str:
    try:
        return check_name(TALK_PREFIX + caller)
    except ValidationError as error:
        text = f"talk_ask: {TALK_PREFIX!r} and the caller's name {error.message}"
        raise ValidationError(text) from None


def parse_talk_result(params: Any) -> TalkResult:
    read = Fields("talk_result", params, frozenset({"message_id"}))
    return TalkResult(read.text("message_id"))


def parse_talk_gone(params: Any) -> TalkGone:
    read = Fields("talk_gone", params, frozenset({"instance", "pid"}))
    return TalkGone(read.name("instance"), read.integer("pid", 1))


def parse_talk_list(params: Any) -> TalkList:
    Fields("talk_list", params, frozenset())
    return TalkList()


PARSERS: Mapping[str, Callable[[Any], TalkRequest]] = {
    "talk_serve": parse_talk_serve,
    "talk_find": parse_talk_find,
    "talk_caller": parse_talk_caller,
    "talk_ask": parse_talk_ask,
    "talk_result": parse_talk_result,
    "talk_gone": parse_talk_gone,
    "talk_list": parse_talk_list,
}
