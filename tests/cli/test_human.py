"""`agentbus-admin human` and `requests`: a person decides, sends and reads, on a real daemon."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentbus.cli.entry import EXIT_FAILURE, EXIT_NOT_RUNNING, EXIT_OK, EXIT_USAGE
from agentbus.encoding import decode_strict
from tests.bus_fixture import ThrowAwayBus
from tests.cli.command import agentbus_admin

COMMANDS = (
    ("human", "list"),
    ("human", "show", "i1"),
    ("human", "decide", "i1", "approve"),
    ("human", "send", "Sam", "--body", "Look."),
    ("human", "replies"),
    ("requests",),
)


@pytest.fixture(scope="module")
def shared_bus() -> Iterator[ThrowAwayBus]:
    """A running one for what changes nothing on it."""
    with ThrowAwayBus() as running:
        yield running


def test_every_command_needs_a_daemon(stopped_bus: ThrowAwayBus) -> None:
    for command in COMMANDS:
        shown = agentbus_admin(stopped_bus, *command)
        assert shown.returncode == EXIT_NOT_RUNNING, command
        assert "no daemon is running" in shown.stderr


def test_an_empty_bus_says_that_nothing_waits(shared_bus: ThrowAwayBus) -> None:
    for command, text, document in (
        (("human", "list"), "Nothing waits for you.", {"interventions": []}),
        (("human", "list", "--decided"), "Nothing was decided.", {"interventions": []}),
        (("human", "replies"), "No agent has answered you yet.", {"replies": []}),
        (("requests", "--state", "overdue"), "Requests (0)", {"requests": []}),
    ):
        shown = agentbus_admin(shared_bus, *command)
        assert (shown.returncode, text in shown.stdout) == (EXIT_OK, True), shown
        shown = agentbus_admin(shared_bus, *command, "--json")
        assert decode_strict(shown.stdout) == document


@pytest.mark.parametrize(
    ("command", "code", "complaint"),
    [
        (("human", "show", "i1"), EXIT_FAILURE, "no intervention"),
        (("human", "decide", "i1", "approve"), EXIT_FAILURE, "no intervention"),
        (("human", "decide", "i1", "maybe", "--if-version", "1"), EXIT_USAGE, "one of approve"),
        (("human", "decide", "i1", "nudge", "--if-version", "1"), EXIT_USAGE, "needs instructions"),
        (("human", "decide", "i1", "approve", "--if-version", "x"), EXIT_USAGE, "a whole number"),
        (("human", "send", "Sam"), EXIT_USAGE, "do not go together"),
        (("human", "replies", "--limit", "0"), EXIT_USAGE, "1 to 100"),
        (("human", "replies", "--limit", "²"), EXIT_USAGE, "a whole number"),
        (("requests", "--state", "late"), EXIT_USAGE, "one of awaiting"),
        (("human",), EXIT_USAGE, "do not go together"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    shared_bus: ThrowAwayBus, command: tuple[str, ...], code: int, complaint: str
) -> None:
    shown = agentbus_admin(shared_bus, *command)
    assert (shown.returncode, shown.stdout) == (code, "")
    assert complaint in shown.stderr
    assert shown.stderr.count("\n") == 1
