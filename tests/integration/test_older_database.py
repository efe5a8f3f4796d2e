"""A daemon on the database of an older version: everything goes on."""

from __future__ import annotations

from tests.integration.in_process import in_process_bus
from tests.store.older import END_US, make_older


def test_a_daemon_brings_an_old_database_up_to_date_and_conversations_go_on() -> None:
    with in_process_bus() as bus:
        assert bus.system.stop()
        bus.database.unlink()
        make_older(bus.database, 1)
        bus.clock.set_wall(END_US)
        bus.start()
        sam = bus.attach("Sam", "c1")
        repeat = sam.call("send", channel="general", content="hello", operation_id="hello")
        assert (repeat["sequence"], repeat["duplicate"]) == (7, True)
        kim = bus.attach("Kim", "c2")
        assert kim.facts["resumed"] is True
        delivered = {}
        while len(delivered) < 3:
            delivery = kim.wait_for("deliver")["delivery"]
            for _, record in delivery["records"]:
                delivered[record["sequence"]] = record["content"]
        assert delivered == {5: "build 2 is red \u2603", 6: "the port is 8080", 7: "hello"}
        found = kim.call("search", text="port")["messages"]
        assert [message["content"] for message in found] == ["the port is 8080"]
        assert sam.call("send", channel="builds", content="build 3")["sequence"] == 8
