"""What a scripted daemon answers to the operations of the tool `peer`."""

from __future__ import annotations

from typing import Any

from tests.adapter.scripted_daemon import ScriptedDaemon

RECEIPT = {
    "message_id": "m9",
    "thread_id": "t1",
    "recipients": [],
    "status": "accepted",
    "duplicate": False,
}
NOTHING = {"delivery": None, "notices": [], "token": None, "lease_seconds": 30}
PROGRESS = {"status": "leased", "extension_count": 1, "duplicate": False}
INSTRUCTIONS = {"intervention_id": "i1", "action": "redirect", "instructions": "only the tests"}


def claimed(
    delivery_id: str = "d1",
    token: str = "t-1",
    *,
    kind: str = "request",
    body: str = "Look at this",
    lease_seconds: float = 30,
    notices: tuple[dict[str, Any], ...] = (),
    **more: Any,
) -> dict[str, Any]:
    """The answer to a wait: a delivery whose message is `m-` and its id."""
    envelope = {"id": f"m-{delivery_id}", "kind": kind, "body": body, "parts": []}
    delivery = {"delivery_id": delivery_id, "attempt": 1, "state": "leased", **more}
    return {
        "delivery": {**delivery, "envelope": envelope},
        "notices": list(notices),
        "token": token,
        "lease_seconds": lease_seconds,
    }


def notice(delivery_id: str, reply_state: str = "overdue", **more: Any) -> dict[str, Any]:
    return {"delivery_id": delivery_id, "reply_state": reply_state, **more}


def operations(daemon: ScriptedDaemon) -> list[tuple[str, str | None]]:
    """Each operation that came, with its token."""
    return [(params["op"], params.get("token")) for params in daemon.requests("peer")]
