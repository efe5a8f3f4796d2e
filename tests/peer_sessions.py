"""A session that uses the tool `peer` over the daemon's socket, and knows what an adapter would."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from agentbus.ids import new_id
from tests.bus_fixture import ANSWER_WITHIN_S, BusSession
from tests.eventually import PATIENCE_S

_WITH_OPERATION_ID = ("ack", "human", "describe")


class PeerSession:
    """Holds the token of what it claimed last. Closes its session at the end of `with`."""

    def __init__(self, session: BusSession) -> None:
        self.session = session
        self.agent: str = session.facts["agent"]
        self.token: str | None = None
        self._calls = 0

    def peer(self, op: str, **args: Any) -> Any:
        """One operation; raises the BusError that was answered."""
        self._calls += 1
        params: dict[str, Any] = {"op": op, "args": args, "number": self._calls}
        if self.token is not None:
            params["token"] = self.token
        if op in _WITH_OPERATION_ID:
            params["operation_id"] = new_id()
        within_s = args.get("timeout", 0) + ANSWER_WITHIN_S
        params["attachment"] = self.session.attachment
        return self.session.client.request("peer", params, within_s)

    @property
    def next_number(self) -> int:
        """Of the next operation, for whoever cancels it."""
        return self._calls + 1

    def ask(self, *to: str, body: str) -> Any:
        """Send a request."""
        return self.peer("send", to=list(to), body=body, kind="request", idempotency_key=new_id())

    def claim(self) -> dict[str, Any]:
        """A delivery that must come."""
        answer = self.peer("wait", timeout=PATIENCE_S)
        assert answer["delivery"] is not None, answer
        self.token = answer["token"]
        delivery: dict[str, Any] = answer["delivery"]
        return delivery

    def reply(self, delivery_id: str, body: str, *, ack: bool = True) -> Any:
        return self.peer(
            "reply", delivery_id=delivery_id, body=body, ack=ack, idempotency_key=new_id()
        )

    def __enter__(self) -> PeerSession:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.session.close()
