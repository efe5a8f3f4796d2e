"""The composition root: what ends the whole bus, and that its end leaves nothing running."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import pytest

from actors.base import Address
from agentbus.errors import BusError
from agentbus.store.changes import BindSession, Change, Outcome
from agentbus.store.ledger import LedgerStore
from tests.eventually import PATIENCE_S, eventually
from tests.integration.in_process import in_process_bus


class Refusing:
    """An address that breaks the promise of every address: that `tell` never raises."""

    def tell(self, message: object) -> None:
        raise RuntimeError("broken")


def test_a_bus_whose_timer_failed_ends() -> None:
    with in_process_bus() as bus:
        timer = bus.system._timer
        assert timer is not None
        timer.deliver_at(0.0, cast(Address[Any], Refusing()), "due")
        assert bus.system.wait(PATIENCE_S)
        assert bus.system.failure == "timer failed: RuntimeError"


def test_an_attachment_that_was_being_bound_at_the_stop_is_not_left_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apply, binding, leave = LedgerStore.apply, threading.Event(), threading.Event()

    def hold_bindings(store: LedgerStore, batch: Sequence[Change]) -> list[Outcome]:
        if any(isinstance(change, BindSession) for change in batch):
            binding.set()
            assert leave.wait(PATIENCE_S)
        return apply(store, batch)

    monkeypatch.setattr(LedgerStore, "apply", hold_bindings)

    def attach() -> None:
        with suppress(BusError):  # the connection ends without an answer
            bus.attach("Sam")

    with in_process_bus() as bus:
        newcomer = threading.Thread(target=attach)
        newcomer.start()
        assert binding.wait(PATIENCE_S)
        ledger = next(iter(bus.system._flow))
        stopping = threading.Thread(target=bus.system.stop)
        stopping.start()
        eventually(lambda: ledger.statistics().mailbox_length > 0, what="the ledger's stop")
        leave.set()
        stopping.join()
        newcomer.join()
        names = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names if name.startswith("AttachmentActor")]
