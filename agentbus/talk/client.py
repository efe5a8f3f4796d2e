"""Asking another instance over talk.

Owns the order of the checks before a question leaves: is talk on, is the target a peer, is the
chain short enough, is it served. Never asks twice. Blocks its caller; objects may be shared.

    client = TalkClient("Sam")
    reply = client.ask("Robin", "Please verify this answer")      # raises TalkError
    print(reply.text)
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from agentbus.config import default_path, load_config
from agentbus.errors import BusError, ValidationError
from agentbus.protocol.fields import check_name
from agentbus.rules.talk import TALK_CODE, is_off, is_peer, is_secret, is_too_deep
from agentbus.settings import shown
from agentbus.talk.exchange import (
    ConnectionFailedError,
    MalformedResponseError,
    Target,
    exchange,
    left_s,
)
from agentbus.talk.peers import read_peers
from agentbus.talk.registry import DaemonRegistry, Registry, Served, is_there
from agentbus.talk.schema import (
    RESPONSE_BYTES,
    TalkRequest,
    TalkResponse,
    encode_request,
    parse_response,
)

TALK_PATH: Final = "/api/talk"
_HOSTS: Final = {"127.0.0.1": "127.0.0.1", "localhost": "127.0.0.1", "::1": "::1"}


class TalkError(Exception):
    """There is no text. `code` is one of docs/talk.md or of a newer peer."""

    def __init__(self, code: str, message: str, retryable: bool | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = TALK_CODE[code].retryable if retryable is None else retryable


@dataclass(frozen=True, slots=True)
class TalkReply:
    """An answer, and what the target calls itself."""

    text: str
    from_instance: str
    duration_ms: int | None


class TalkClient:
    """Asks in the name of `instance`. `timeout_s` None: the setting `talk_timeout_seconds`."""

    def __init__(
        self,
        instance: str,
        *,
        config_path: Path | None = None,
        registry: Registry | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._instance = check_name(instance, "the instance")
        self._config_path = config_path or default_path()
        config = load_config(self._config_path)
        self._max_depth = config.talk_max_depth
        self._timeout_s = float(config.talk_timeout_seconds) if timeout_s is None else timeout_s
        self._registry = registry or DaemonRegistry()

    def ask(
        self,
        target: str,
        prompt: str,
        *,
        depth: int = 0,
        url: str | None = None,
        secret: str | None = None,
        idempotency_key: str | None = None,
    ) -> TalkReply:
        """The target's text. Raises TalkError; ValidationError for arguments that make no sense.

        `depth` is that of the work which asks: 0 for one's own. `url` names a server that is not
        in our registry; `secret` is used instead of the registry's.
        """
        deadline_s = time.monotonic() + self._timeout_s
        address = None if url is None else loopback_target(url)
        if address is not None and idempotency_key is not None:
            raise ValidationError("an idempotency key needs a server of this bus, not a url")
        if secret is not None and not is_secret(secret):
            raise ValidationError("a secret is visible ASCII without spaces")
        target = check_name(target, "the target")
        self._check(target, depth)
        try:
            served = None if address is not None else self._look_up(target, deadline_s)
            request = TalkRequest(
                self._instance,
                prompt,
                depth + 1,
                None if served is None else served.session,
                idempotency_key,
            )
            secret = secret or (None if served is None else served.secret)
            where = served.target if served is not None else address
            assert where is not None
            response = _post(where, encode_request(request), secret, deadline_s)
        except TimeoutError:
            text = f"{target} gave no answer within {self._timeout_s:g} s"
            raise TalkError("timeout", text) from None
        except ConnectionFailedError as error:
            text = f"{target} cannot be reached: {error}"
            raise TalkError("instance_unavailable", text) from None
        if not response.success:
            assert response.error_code is not None
            assert response.error is not None
            raise TalkError(response.error_code, response.error, response.retryable)
        return TalkReply(response.text, response.from_instance, response.duration_ms)

    def _check(self, target: str, depth: int) -> None:
        peers = read_peers(self._config_path)
        if is_off(peers):
            text = f"talk is switched off: name who may talk in talk_peers of {self._config_path}"
            raise TalkError("bus_disabled", text)
        if not is_peer(peers, target):
            raise TalkError("peer_not_allowed", f"talk_peers does not have {target}")
        if is_too_deep(depth, self._max_depth):
            text = f"depth {depth} is not below the limit of {self._max_depth}"
            raise TalkError("max_depth_exceeded", text)

    def _look_up(self, target: str, deadline_s: float) -> Served:
        """Where it is; nothing is sent to a port that another program may have now."""
        try:
            served = self._registry.find(target, self._instance, left_s(deadline_s))
            if served is not None and is_there(served, deadline_s):
                return served
            if served is not None:
                self._registry.forget(served)
        except ValidationError:
            raise
        except BusError as error:
            raise TalkError("instance_unavailable", error.message) from None
        raise TalkError("instance_unavailable", f"nobody serves {target}")


def loopback_target(url: str) -> Target:
    """Where a url leads. Raises ValidationError for one that leaves this machine."""
    try:
        parts = urlsplit(url)
        host, port = _HOSTS.get(parts.hostname or ""), parts.port
    except ValueError:
        host, port = None, None
    if (
        host is None
        or not port
        or parts.scheme != "http"
        or parts.path not in ("", "/", TALK_PATH)
        or parts.query
        or parts.username is not None
    ):
        raise ValidationError(f"the url must be like http://127.0.0.1:8000, not {shown(url)}")
    return Target(host, port)


def _post(target: Target, body: bytes, secret: str | None, deadline_s: float) -> TalkResponse:
    headers = {"content-type": "application/json"}
    if secret is not None:
        headers["authorization"] = f"Bearer {secret}"
    try:
        answered = exchange(
            target,
            "POST",
            TALK_PATH,
            headers=headers,
            body=body,
            deadline_s=deadline_s,
            response_bytes=RESPONSE_BYTES,
        )
        return parse_response(answered)
    except (MalformedResponseError, ValidationError) as error:
        raise TalkError("invalid_response", f"no answer of this protocol: {error}") from None
