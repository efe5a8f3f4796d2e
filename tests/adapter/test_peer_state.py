"""What a conversation tells the daemon of that it was shown."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.adapter.peer.state import SHOWN_KEPT, SHOWN_TOLD_AGAIN, PeerState


class Line:
    """To a daemon that is there, or not; `said` is what it was told."""

    def __init__(self) -> None:
        self.is_there = True
        self.said: list[dict[str, Any]] = []

    def notify(self, method: str, params: dict[str, Any]) -> bool:
        assert method == "peer_shown"
        if self.is_there:
            self.said.append(params)
        return self.is_there


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def state(line: Line) -> PeerState:
    return PeerState(line.notify)


def test_what_was_shown_is_told_once_to_a_daemon_that_lives(state: PeerState, line: Line) -> None:
    state.shown(["r1"], [("d1", "overdue")])
    state.shown(["r1", "r2"], [("d1", "overdue")])
    assert line.said == [
        {"responses": ["r1"], "notices": [["d1", "overdue"]]},
        {"responses": ["r2"], "notices": []},
    ]


def test_what_nobody_heard_is_told_after_the_next_attachment(state: PeerState, line: Line) -> None:
    line.is_there = False
    state.shown(["r1"], [])
    line.is_there = True
    state.attached()
    assert line.said == [{"responses": ["r1"], "notices": []}]


def test_a_new_attachment_is_told_again_as_the_daemon_may_have_died_of_it(
    state: PeerState, line: Line
) -> None:
    state.shown(["r1"], [("d1", "overdue")])
    state.attached()
    assert line.said == [{"responses": ["r1"], "notices": [["d1", "overdue"]]}] * 2


@pytest.mark.parametrize(("extra", "first"), [(-1, 0), (0, 0), (1, 1)])
def test_only_the_newest_are_told_again(
    state: PeerState, line: Line, extra: int, first: int
) -> None:
    shown = [f"r{number}" for number in range(SHOWN_TOLD_AGAIN + extra)]
    state.shown(shown, [])
    assert line.said[-1]["responses"] == shown
    state.attached()
    assert line.said[-1]["responses"] == shown[first:]


@pytest.mark.parametrize("is_there", [True, False])
def test_what_was_shown_is_known_before_the_daemon_has_written_it_down(
    state: PeerState, line: Line, is_there: bool
) -> None:
    line.is_there = is_there
    assert not state.was_shown("r1")
    state.shown(["r1"], [])
    assert state.was_shown("r1")
    assert not state.was_shown("r2")
    state.attached()
    assert state.was_shown("r1")
    state.forget()
    assert not state.was_shown("r1")


@pytest.mark.parametrize(("extra", "knows_the_first"), [(0, True), (1, False)])
def test_only_the_newest_are_remembered(
    state: PeerState, extra: int, knows_the_first: bool
) -> None:
    state.shown([f"r{number}" for number in range(SHOWN_KEPT + extra)], [])
    state.attached()
    assert state.was_shown("r0") is knows_the_first
    assert state.was_shown("r1")


def test_another_bus_is_told_nothing_of_the_one_before(state: PeerState, line: Line) -> None:
    state.shown(["r1"], [])
    state.forget()
    state.attached()
    assert len(line.said) == 1
