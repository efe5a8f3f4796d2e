"""A command that answers: every way in which it can end, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbus.command_run import Ended
from agentbus.talk import command
from agentbus.talk.command import ANSWER_BYTES, CommandHandler, meaning_of
from agentbus.talk.handler import Answered, Delegation, NotAnswered
from tests.eventually import eventually
from tests.hooks import is_running

PATIENT_S = 30.0


def _delegation(prompt: str = "question", within_s: float = PATIENT_S) -> Delegation:
    return Delegation("id", "reviewer", prompt, 2, within_s)


def _ask(code: str, delegation: Delegation | None = None) -> Answered | NotAnswered:
    """What the Python program `code` answers."""
    return _run([sys.executable, "-c", code], delegation)


def _run(argv: list[str], delegation: Delegation | None = None) -> Answered | NotAnswered:
    handler = CommandHandler("worker", argv)
    try:
        return asyncio.run(handler.answer(delegation or _delegation()))
    finally:
        handler.close()


def test_prompt_is_on_stdin_and_the_answer_on_stdout() -> None:
    code = "import sys; sys.stdout.write(sys.stdin.read().upper())"
    assert _ask(code, _delegation("zwölf\n")) == Answered("ZWÖLF\n")


def test_prompt_is_nowhere_else() -> None:
    code = """
import os, sys
prompt = sys.stdin.read()
found = [text for text in [*sys.argv, *os.environ.values()] if prompt in text]
print(found, os.environ["AGENTBUS_TALK_INSTANCE"], os.environ["AGENTBUS_TALK_DEPTH"])
"""
    assert _ask(code, _delegation("a-very-secret-question")) == Answered("[] worker 2\n")


def test_command_need_not_read_its_question() -> None:
    assert _ask("print('no')", _delegation("x" * 250_000)) == Answered("no\n")


@pytest.mark.parametrize(
    ("exit_code", "code"),
    [
        (1, "engine_cli"),
        (9, "engine_cli"),
        (10, "auth"),
        (11, "budget_exhausted"),
        (12, "write_permission"),
        (13, "engine_cli"),
    ],
)
def test_exit_codes(exit_code: int, code: str) -> None:
    program = f"import sys; print('x'); sys.stderr.write('a\\nwhy not\\n'); sys.exit({exit_code})"
    assert _ask(program) == NotAnswered(code, "why not")


@pytest.mark.parametrize(
    ("ended", "error"),
    [
        (Ended(3, b"", b""), "the command exited with 3"),
        (Ended(-9, b"text", b""), "the command was ended by signal 9"),
        (Ended(None, b"text", b""), "the command could not be ended"),
        (Ended(1, b"", b"\xff\0bad"), "\ufffd bad"),
    ],
)
def test_failure_is_explained(ended: Ended, error: str) -> None:
    assert meaning_of(ended) == NotAnswered("engine_cli", error)


@pytest.mark.parametrize("output", [b"\xff", b"a\0b", b"\xed\xa0\x80"])
def test_output_that_is_no_text_is_a_failure(output: bytes) -> None:
    said = meaning_of(Ended(0, output, b""))
    assert isinstance(said, NotAnswered)
    assert said.code == "engine_cli"


@pytest.mark.parametrize(
    ("size_bytes", "is_fine"), [(ANSWER_BYTES, True), (ANSWER_BYTES + 1, False)]
)
def test_answer_at_its_limit(size_bytes: int, is_fine: bool) -> None:
    said = _ask(f"print('x' * {size_bytes}, end='')")
    assert isinstance(said, Answered) is is_fine
    if isinstance(said, NotAnswered):
        assert said.code == "engine_cli"


def test_talkative_stderr_is_no_failure() -> None:
    code = "import sys; sys.stderr.write('progress\\n' * 100_000); print('done')"
    assert _ask(code) == Answered("done\n")


def test_command_that_is_not_there_is_a_failure() -> None:
    said = _run(["/no/such/program"])
    assert isinstance(said, NotAnswered)
    assert (said.code, "could not be started" in said.error) == ("engine_cli", True)


def _slow(pids_path: Path, then: str) -> list[str]:
    """A command with a child, which says which processes they are."""
    tell = f"echo $$ $! > {pids_path}.new; mv {pids_path}.new {pids_path}"
    return ["sh", "-c", f"sleep 60 > /dev/null 2>&1 & {tell}; {then}"]


@pytest.fixture
def pids_path(tmp_path: Path) -> Iterator[Path]:
    """Where a slow command says which processes it is; all of them have to be gone afterwards."""
    path = tmp_path / "pids"
    yield path
    pids = [int(word) for word in path.read_text().split()]
    assert len(pids) == 2
    eventually(lambda: not any(map(is_running, pids)))


def test_whole_group_is_killed_when_the_time_is_up(pids_path: Path) -> None:
    began_s = time.monotonic()
    said = _run(_slow(pids_path, "wait"), _delegation(within_s=2.0))
    assert said == NotAnswered("timeout", "no answer within 1.8 s: it did not finish in time")
    assert 1.8 <= time.monotonic() - began_s < PATIENT_S


def test_what_a_command_leaves_behind_ends_with_it(pids_path: Path) -> None:
    assert _run(_slow(pids_path, "echo done")) == Answered("done\n")


def test_what_a_command_leaves_behind_can_hold_up_its_answer() -> None:
    said = _run(["sh", "-c", "sleep 60 & echo done"], _delegation(within_s=3.0))
    assert isinstance(said, NotAnswered)
    assert said.code == "timeout"
    assert "what it left behind held its pipes" in said.error


def test_only_so_many_commands_run_and_none_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "AT_ONCE", 1)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    started = tmp_path / "started"
    handler = CommandHandler("worker", ["sh", "-c", f"touch {started}; cat {gate}"])

    async def ask() -> None:
        given_up = asyncio.ensure_future(handler.answer(_delegation()))
        await asyncio.sleep(0)  # it is handed on
        await asyncio.to_thread(eventually, started.exists)
        given_up.cancel()
        refused = await handler.answer(_delegation())
        assert refused == NotAnswered("instance_unavailable", "1 commands are running here")
        await asyncio.to_thread(gate.write_text, "free\n")
        second = asyncio.ensure_future(handler.answer(_delegation()))
        while (await asyncio.wait({second}, timeout=0.02))[0]:  # not refused any more: it runs
            await asyncio.sleep(0.02)
            second = asyncio.ensure_future(handler.answer(_delegation()))
        await asyncio.to_thread(gate.write_text, "again\n")
        assert await second == Answered("again\n")

    try:
        asyncio.run(asyncio.wait_for(ask(), PATIENT_S))
    finally:
        handler.close()


def test_stop_ends_what_is_under_way(pids_path: Path) -> None:
    handler = CommandHandler("worker", _slow(pids_path, "wait"))
    said: list[object] = []

    def ask() -> None:
        said.append(asyncio.run(handler.answer(_delegation())))

    asking = threading.Thread(target=ask)
    asking.start()
    eventually(pids_path.exists)
    handler.stop()
    asking.join()
    handler.close()
    assert said == [NotAnswered("instance_unavailable", "the server was stopped meanwhile")]
