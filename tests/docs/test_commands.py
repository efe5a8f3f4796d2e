"""Every command line that a document shows is run here, on a bus of its own, or where it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentbus.cli.entry import EXIT_FAILURE, EXIT_OK, EXIT_USAGE
from tests.bus_fixture import ThrowAwayBus
from tests.cli.command import agentbus, agentbus_admin
from tests.cli.test_human import SHOWN as SHOWN_OF_PEOPLE
from tests.cli.test_install import SHOWN
from tests.docs.documents import DOCUMENTS, blocks

EXITS = {
    "agentbus status": EXIT_OK,
    "agentbus status --json": EXIT_OK,
    "agentbus-admin channels": EXIT_OK,
    "agentbus-admin sessions": EXIT_OK,
    "agentbus-admin config": EXIT_OK,
    "agentbus-admin human list": EXIT_OK,
    "agentbus-admin human list --decided": EXIT_OK,
    "agentbus-admin human replies": EXIT_OK,
    "agentbus-admin requests": EXIT_OK,
    "agentbus-admin deadletters list": EXIT_OK,
    "agentbus-admin deadletters replay --all": EXIT_OK,
    "agentbus job list": EXIT_OK,
    "agentbus job cancel cake": EXIT_OK,
    "agentbus daemon --detach": EXIT_OK,
    "agentbus talk list": EXIT_OK,
    "agentbus talk result 0199c0de-0000-7000-8000-000000000001": EXIT_FAILURE,
    "agentbus reset": EXIT_USAGE,  # as documented: there is no terminal here
    "agentbus stop": EXIT_OK,
}
RUN_ELSEWHERE = {
    "agentbus daemon": "tests/cli/test_daemon_commands.py",
    "agentbus-admin demo": "tests/cli/test_demo.py",
    "agentbus-admin doctor": "tests/cli/test_doctor.py",
    "agentbus-admin export --output backup.jsonl": "tests/cli/test_export.py",
    "agentbus-admin import backup.jsonl": "tests/cli/test_export.py",
    "agentbus talk serve --instance worker --exec -- ./answer.sh": "tests/talk/test_serving.py",
    "agentbus talk serve --instance worker --peer": "tests/talk/test_peer.py",
    "agentbus talk send --to worker --from reviewer 'Verified?'": "tests/talk/test_serving.py",
    "agentbus wait --timeout 600": "tests/cli/test_wait.py",
    **dict.fromkeys(SHOWN_OF_PEOPLE, "tests/cli/test_human.py"),
    "agentbus job run -- python -m my_tool": "tests/jobs/test_running.py",
    "agentbus job run --prefix COUNTER_ -- python -m my_tool": "tests/jobs/test_running.py",
    "agentbus job run --sink callback --prefix COUNTER_ -- python -m my_tool": (
        "tests/jobs/test_running.py"
    ),
    "agentbus job run --sink agentbus: --prefix COUNTER_ --job cake -- python -m my_tool": (
        "tests/jobs/test_bus.py"
    ),
    "agentbus job tail cake": "tests/jobs/test_bus.py",
    "agentbus job tail cake --broker nats://127.0.0.1:4222": "tests/jobs/test_running.py",
    "agentbus job cancel cake --broker nats://127.0.0.1:4222": "tests/jobs/test_running.py",
    "agentbus job receive --job cake": "tests/jobs/test_running.py",
    **dict.fromkeys(SHOWN, "tests/cli/test_install.py"),
}


def _shown() -> set[str]:
    return {
        " ".join(line.split("#")[0].split())
        for document in DOCUMENTS
        for block in blocks(document, "sh")
        for line in block.splitlines()
        if line.startswith(("agentbus ", "agentbus-admin "))
    }


def test_no_command_is_shown_that_is_not_run_by_a_test() -> None:
    assert _shown() == EXITS.keys() | RUN_ELSEWHERE.keys()


@pytest.fixture(scope="module")
def bus() -> Iterator[ThrowAwayBus]:
    with ThrowAwayBus() as running:
        yield running


@pytest.mark.parametrize("line", EXITS)
def test_command_does_what_the_document_says(line: str, bus: ThrowAwayBus) -> None:
    program, *arguments = line.split()
    command = {"agentbus": agentbus, "agentbus-admin": agentbus_admin}[program]
    shown = command(bus, *arguments)
    assert shown.returncode == EXITS[line], shown.stderr
