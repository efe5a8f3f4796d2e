"""The probe itself: a test that relies on it must not pass by accident."""

from __future__ import annotations

import pytest

from actors.base import start_actor
from tests.actors.runtimes import Recorder, Runtime
from tests.probe import Probe


def test_probe_expects_by_type_and_keeps_the_rest() -> None:
    with Probe() as probe:
        probe.address.tell(1)
        probe.address.tell("text")
        assert probe.expect(str) == "text"
        assert probe.received() == [1]
        probe.expect_nothing_of(str)
        with pytest.raises(AssertionError, match="expected no int"):
            probe.expect_nothing_of(int)
        with pytest.raises(AssertionError, match="no bytes within"):
            probe.expect(bytes, within=0.01)


def test_probe_waits_for_what_comes_through_the_actor_under_test(runtime: Runtime) -> None:
    with Probe() as probe:

        class Forwarder(Recorder):
            def receive(self, message: object) -> None:
                probe.address.tell(message)

        address = start_actor(runtime.of(Forwarder)())
        for number in range(100):
            address.tell(number)
        probe.expect_nothing_of(str, through=(address,))
        assert len(probe.received()) == 100
