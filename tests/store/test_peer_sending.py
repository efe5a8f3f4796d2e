"""Direct messages: recipients, rows, keys, threads, size, allow-list."""

from __future__ import annotations

from agentbus.encoding import decode_trusted
from agentbus.store.changes import ChannelMade, MessageAppended
from tests.store.bus import Bus
from tests.store.peers import Peer, deliveries, delivery, require_exact_accounting, told


def test_a_request_becomes_a_message_and_a_delivery(bus: Bus) -> None:
    sam, ann = Peer(bus, "Sam"), Peer(bus, "Ann")
    outcome = bus.done(sam.sending("Ann", kind="request", body="please", capability="review"))
    made, appended, _ = outcome.facts
    assert isinstance(made, ChannelMade)
    assert (made.channel, made.kind) == ("@Ann", "inbox")
    assert isinstance(appended, MessageAppended)
    assert [view.delivery_id for view in told(outcome)] == [
        outcome.result["recipients"][0]["delivery_id"]
    ]
    envelope = decode_trusted(appended.envelope)
    assert envelope["to"] == [{"agent": "Ann", "agent_id": ann.agent_id}]
    assert envelope["thread"] == envelope["message_id"] == outcome.result["message_id"]
    require_exact_accounting(bus)


def test_request_wait_progress_reply(bus: Bus) -> None:
    sam, ann = Peer(bus, "Sam"), Peer(bus, "Ann")
    request = sam.ask("Ann", body="please")
    got = ann.claim()
    assert got["envelope"]["body"] == "please"
    assert ann.do("progress", got["delivery_id"]) == {
        "status": "leased",
        "extension_count": 1,
        "duplicate": False,
    }
    receipt = ann.do("reply", got["delivery_id"], body="done")
    assert receipt["acked"] == got["delivery_id"]
    row = delivery(bus, got["delivery_id"])
    assert (row.state, row.reply_state) == ("acked", "replied")
    answer = sam.claim()
    assert answer["correlation"] == {
        "reply_to": request["message_id"],
        "correlation_id": request["message_id"],
        "matches_sent_request": True,
    }
    assert answer["envelope"]["body"] == "done"
    assert sam.do("ack", answer["delivery_id"])["state"] == "acked"
    assert [row.state for row in deliveries(bus)] == ["acked", "acked"]
    require_exact_accounting(bus)
