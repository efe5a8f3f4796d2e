"""`agentbus-admin human` and `requests`: a person decides, sends and reads, on a real daemon."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from agentbus.cli import output
from agentbus.cli.admin import human_view
from agentbus.cli.entry import EXIT_FAILURE, EXIT_NOT_RUNNING, EXIT_OK, EXIT_USAGE
from agentbus.encoding import decode_strict
from agentbus.errors import ValidationError
from agentbus.ids import new_id
from tests.bus_fixture import ThrowAwayBus
from tests.cli.command import agentbus, agentbus_admin, run
from tests.eventually import eventually
from tests.peer_sessions import PeerSession

COMMANDS = (
    ("human", "list"),
    ("human", "show", "i1"),
    ("human", "decide", "i1", "approve"),
    ("human", "send", "Sam", "--body", "Look."),
    ("human", "replies"),
    ("requests",),
)
DECISIONS_SHOWN = {
    "agentbus-admin human decide ID approve": "queued",
    'agentbus-admin human decide ID approve --instructions "Use the test account."': "queued",
    'agentbus-admin human decide ID reject --instructions "We keep the old format."': "rejected",
    'agentbus-admin human decide ID redirect --instructions "Only write a plan."': "queued",
    'agentbus-admin human decide ID nudge --instructions "The log is in build/log.txt."': "queued",
    "agentbus-admin human decide ID reassign --to Kim": "reassigned",
    "agentbus-admin human decide ID cancel": "cancelled",
}
"""Commands of docs/people.md, and what the delivery is after each."""

OTHERS_SHOWN = (
    "agentbus-admin human show ID",
    'agentbus-admin human send Sam --body "Which tests are slow?"',
    'agentbus-admin human send Sam Kim --body "The build is frozen until noon." --info',
    "agentbus-admin requests --state overdue --agent Sam",
)
SHOWN = (*DECISIONS_SHOWN, *OTHERS_SHOWN)


@pytest.fixture(scope="module")
def shared_bus() -> Iterator[ThrowAwayBus]:
    with ThrowAwayBus() as running:
        yield running


@pytest.fixture
def asker(shared_bus: ThrowAwayBus) -> Iterator[PeerSession]:
    """A session that asks others for work; a new one each time, as it may ask only so much."""
    with PeerSession(shared_bus.attach("Asker")) as session:
        yield session


@pytest.fixture
def worker(shared_bus: ThrowAwayBus) -> Iterator[PeerSession]:
    """An agent of the test's own, so that nothing of another test waits for it."""
    with PeerSession(shared_bus.attach(f"Worker {new_id()}")) as session:
        yield session


def shown(bus: ThrowAwayBus, line: str, **ids: str) -> subprocess.CompletedProcess[str]:
    """A command as the page shows it, with real ids in place of `ID`."""
    program, *arguments = shlex.split(line)
    assert program == "agentbus-admin"
    return agentbus_admin(bus, *(ids.get(argument, argument) for argument in arguments))


def document(bus: ThrowAwayBus, *arguments: str) -> Any:
    done = agentbus_admin(bus, *arguments, "--json")
    assert done.returncode == EXIT_OK, done.stderr
    return decode_strict(done.stdout)


def paused(asker: PeerSession, worker: PeerSession, reason: str = "Shall I?") -> str:
    """The id of a delivery that waits for a person."""
    asker.ask(worker.agent, body="Tidy up.")
    delivery_id = str(worker.claim()["delivery_id"])
    worker.peer("human", delivery_id=delivery_id, reason=reason)
    return delivery_id


def test_every_command_needs_a_daemon(stopped_bus: ThrowAwayBus) -> None:
    for command in COMMANDS:
        done = agentbus_admin(stopped_bus, *command)
        assert done.returncode == EXIT_NOT_RUNNING, command
        assert "no daemon is running" in done.stderr


@pytest.mark.parametrize("name", ["human:root", "human:", "Human\uff1aroot", "@Sam"])
def test_nobody_attaches_under_the_name_of_a_person_or_an_inbox(
    shared_bus: ThrowAwayBus, name: str
) -> None:
    with pytest.raises(ValidationError, match="must not begin with"):
        shared_bus.attach(name)


def test_an_empty_bus_says_that_nothing_waits(running_bus: ThrowAwayBus) -> None:
    for command, text, empty in (
        (("human", "list"), "Nothing waits for you.", {"interventions": []}),
        (("human", "list", "--decided"), "Nothing was decided.", {"interventions": []}),
        (("human", "replies"), "No agent has answered you yet.", {"replies": []}),
        (("requests", "--state", "overdue"), "Requests (0)", {"requests": []}),
    ):
        done = agentbus_admin(running_bus, *command)
        assert (done.returncode, text in done.stdout) == (EXIT_OK, True), done
        assert document(running_bus, *command) == empty


@pytest.mark.parametrize(
    ("command", "code", "complaint"),
    [
        (("human", "show", "i1"), EXIT_FAILURE, "no intervention"),
        (("human", "decide", "i1", "approve"), EXIT_FAILURE, "no intervention"),
        (
            ("human", "decide", "i1", "approve", "--if-version", "1"),
            EXIT_FAILURE,
            "no intervention",
        ),
        (
            ("human", "decide", "i1", "maybe", "--if-version", "1"),
            EXIT_USAGE,
            "human decide: ACTION must be",
        ),
        (("human", "decide", "i1", "reassign"), EXIT_USAGE, "human decide: --to is required"),
        (("human", "decide", "i1", "cancel", "--to", "Kim"), EXIT_USAGE, "--to goes with reassign"),
        (("human", "send", "Kim", "--body", "", "--info"), EXIT_USAGE, "--body must not be empty"),
        (("human", "send", "K", "--body", "b", "--due", "59"), EXIT_USAGE, "send: --due must be"),
        (
            ("human", "send", "K", "--body", "b", "--info", "--due", "60"),
            EXIT_USAGE,
            "human send: --due goes with a request",
        ),
        (("human", "send", "K", "K", "--body", "b"), EXIT_USAGE, "human send: NAME item 1"),
        (("human", "list", "--limit", "101"), EXIT_USAGE, "human list: --limit must be 1 to 100"),
        (("human", "decide", "i1", "nudge", "--if-version", "1"), EXIT_USAGE, "needs instructions"),
        (("human", "decide", "i1", "approve", "--if-version", "x"), EXIT_USAGE, "a whole number"),
        (("human", "send", "Sam"), EXIT_USAGE, "do not go together"),
        (
            ("human", "send", "Nobody", "--body", "Look."),
            EXIT_FAILURE,
            "'Nobody'; agentbus-admin sessions",
        ),
        (("human", "send", "*", "--body", "Look."), EXIT_USAGE, 'human send: "*"'),
        (("human", "send", "human:x", "--body", "Look."), EXIT_FAILURE, "'human:x'"),
        (("human", "replies", "--limit", "0"), EXIT_USAGE, "1 to 100"),
        (("human", "replies", "--limit", "²"), EXIT_USAGE, "a whole number"),
        (("requests", "--state", "late"), EXIT_USAGE, "requests: --state must be one of"),
        (("requests", "--agent", "Nope"), EXIT_FAILURE, "there is no agent 'Nope'"),
        (("human",), EXIT_USAGE, "do not go together"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    shared_bus: ThrowAwayBus, command: tuple[str, ...], code: int, complaint: str
) -> None:
    done = agentbus_admin(shared_bus, *command)
    assert (done.returncode, done.stdout) == (code, "")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("line", DECISIONS_SHOWN)
def test_a_decision_does_what_the_page_says(
    shared_bus: ThrowAwayBus, asker: PeerSession, worker: PeerSession, line: str
) -> None:
    with PeerSession(shared_bus.attach("Kim")) as kim:
        delivery_id = paused(asker, worker)
        state = DECISIONS_SHOWN[line]
        done = shown(shared_bus, line, ID=delivery_id)
        assert done.returncode == EXIT_OK, done.stderr
        assert done.stdout.endswith(f"Delivery {delivery_id} is {state}.\n")
        _, _, _, _, action, *rest = shlex.split(line)
        decision = document(shared_bus, "human", "show", delivery_id)["decision"]
        instructions = rest[1] if "--instructions" in rest else None
        assert (decision["action"], decision["instructions"]) == (action, instructions)
        assert decision["decided_by"].startswith("human:")
        if state == "queued":
            again = worker.claim()
            assert again["delivery_id"] == delivery_id
            told = (again.get("resume_context") or {}).get("instructions")
            assert told == instructions
            worker.peer("ack", delivery_id=delivery_id)
        elif state == "reassigned":
            taken = kim.claim()
            assert taken["envelope"]["body"] == "Tidy up."
            kim.peer("ack", delivery_id=taken["delivery_id"])


def test_what_waits_is_listed_and_shown(
    shared_bus: ThrowAwayBus, asker: PeerSession, worker: PeerSession
) -> None:
    delivery_id = paused(asker, worker, "Is \x1b[31mthis\nright?")
    (row,) = document(shared_bus, "human", "list")["interventions"]
    assert (row["to"], row["from"], row["delivery_id"]) == (worker.agent, "Asker", delivery_id)
    listed = agentbus_admin(shared_bus, "human", "list").stdout
    assert "1; agentbus-admin human list shows what" in agentbus(shared_bus, "status").stdout
    assert row["intervention_id"] in listed
    for either_id in (row["intervention_id"], delivery_id):
        done = shown(shared_bus, "agentbus-admin human show ID", ID=either_id)
        assert done.returncode == EXIT_OK, done.stderr
        assert "  Is \\x1b[31mthis\n  right?\n" in done.stdout
        assert "The request:\n  Tidy up.\n" in done.stdout
        assert f"decide {row['intervention_id']} ACTION --if-version 1" in done.stdout
        assert "\x1b" not in done.stdout + listed
    agentbus_admin(shared_bus, "human", "decide", delivery_id, "cancel")
    assert document(shared_bus, "human", "list") == {"interventions": []}
    decided = document(shared_bus, "human", "list", "--decided", "--limit", "1")["interventions"]
    assert [row["decision"]["action"] for row in decided] == ["cancel"]
    done = agentbus_admin(shared_bus, "human", "list", "--decided", "--limit", "1")
    assert "Decided (1)" in done.stdout


@pytest.mark.parametrize("width", [60, 80, 200])
def test_an_id_can_be_copied_from_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setattr(output, "WIDTH_OF_A_PIPE", width)
    intervention_id = new_id()
    human_view.print_waiting(
        [
            {
                "intervention_id": intervention_id,
                "version": 1,
                "to": "Bob",
                "session": "Bob2",
                "from": "Ada",
                "created_at": "2027-01-15T08:00:00.000Z",
                "reason": "the action is external; information is missing; results conflict",
            }
        ]
    )
    assert intervention_id in capsys.readouterr().out


def test_nobody_decides_what_has_changed_since_they_looked(
    shared_bus: ThrowAwayBus, asker: PeerSession, worker: PeerSession
) -> None:
    delivery_id = paused(asker, worker)
    intervention_id = document(shared_bus, "human", "show", delivery_id)["intervention_id"]
    again = f"look again: agentbus-admin human show {intervention_id}\n"
    decide = ("human", "decide", delivery_id, "cancel")
    for version in ("2", None):  # a version that is not there, then one that was decided
        done = agentbus_admin(shared_bus, *decide, *(("--if-version", version) if version else ()))
        if version is None:
            assert done.returncode == EXIT_OK, done.stderr
            done = agentbus_admin(shared_bus, *decide, "--if-version", "1")
        assert (done.returncode, done.stdout) == (EXIT_FAILURE, "")
        assert done.stderr.endswith(again)


def test_a_person_asks_and_reads_the_answers_newest_first(shared_bus: ThrowAwayBus) -> None:
    with (
        PeerSession(shared_bus.attach("Sam")) as sam,
        PeerSession(shared_bus.attach("Kim")) as kim,
    ):
        ask, tell = (line for line in OTHERS_SHOWN if " send " in line)
        asked = shown(shared_bus, ask)
        assert asked.returncode == EXIT_OK, asked.stderr
        work = sam.claim()
        message_id = work["envelope"]["id"]
        assert f"message {message_id}\n" in asked.stdout
        assert work["envelope"]["from"]["agent"].startswith("human:")
        assert work["envelope"]["kind"] == "request"
        (row,) = document(shared_bus, "requests", "--agent", "Sam")["requests"]
        assert (row["message_id"], row["reply_state"]) == (message_id, "awaiting")
        sam.reply(work["delivery_id"], "First \x1b[2J\nline", ack=False)
        sam.reply(work["delivery_id"], "Second")

        told = shown(shared_bus, tell)
        assert told.returncode == EXIT_OK, told.stderr
        assert "replies" not in told.stdout
        for agent in (sam, kim):
            delivery = agent.claim()
            assert delivery["envelope"]["kind"] == "info"
            agent.peer("ack", delivery_id=delivery["delivery_id"])

        first_look = agentbus_admin(shared_bus, "human", "replies").stdout
        assert first_look.index("Second") < first_look.index("First \\x1b[2J\n  line")
        assert first_look.count("new  ") == 2
        assert "\x1b" not in first_look

        def seen_replies() -> list[dict[str, Any]]:
            replies: list[dict[str, Any]] = document(shared_bus, "human", "replies")["replies"]
            return [] if any(reply["new"] for reply in replies) else replies

        replies = eventually(seen_replies, what="shown once, they are new no more")
        assert [reply["body"] for reply in replies] == ["Second", "First \x1b[2J\nline"]
        assert {reply["reply_to"] for reply in replies} == {message_id}
        # What a person has been shown is done with for whoever sent it, too.
        status = sam.peer("status", message_id=replies[0]["message_id"])
        assert [one["state"] for one in status["deliveries"]] == ["acked"]


def test_a_message_from_stdin_is_sent_once_however_often(
    shared_bus: ThrowAwayBus, worker: PeerSession
) -> None:
    command = ["human", "send", worker.agent, "--body", "-", "--key", "once", "--due", "60"]
    code = "import sys; from agentbus.cli.admin import main; sys.exit(main())"
    first, second = (
        run(["-c", code, *command], shared_bus.environment, typed="Several\nlines\n")
        for _ in range(2)
    )
    assert first.stdout.startswith("Sent: message ")
    assert second.stdout.startswith("Sent before: message ")
    assert second.stdout.split()[3] == first.stdout.split()[2]
    work = worker.claim()
    assert work["envelope"]["body"] == "Several\nlines\n"
    other = run(["-c", code, *command], shared_bus.environment, typed="Other text")
    assert other.returncode == EXIT_FAILURE
    assert "'once'" in other.stderr


def test_the_shown_filter_of_requests_is_accepted(shared_bus: ThrowAwayBus) -> None:
    with PeerSession(shared_bus.attach("Sam")):
        done = shown(shared_bus, "agentbus-admin requests --state overdue --agent Sam")
    assert (done.returncode, done.stdout.startswith("Requests (0)")) == (EXIT_OK, True)
