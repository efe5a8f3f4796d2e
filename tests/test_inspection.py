"""Every way in which an inspection command can end, as real processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbus.command_run import Cancellation
from agentbus.config import ConfigError, load_config
from agentbus.encoding import decode_strict, encode
from agentbus.identity import SenderBinding
from agentbus.ids import AgentId, SessionId
from agentbus.inspection import (
    Allowed,
    Denied,
    Failed,
    Verdict,
    build_document,
    find_command,
    inspect,
)
from agentbus.limits import INSPECTION_OUTPUT_BYTES, INSPECTION_REASON_CHARACTERS, MIB
from tests.eventually import eventually
from tests.hooks import Hook, is_running, is_there

PATIENT_S = 20.0
"""A timeout that no test reaches."""

SECRET = "sk-payload-that-must-not-leak"
DOCUMENT = encode({"operation": "send", "payload": {"content": SECRET}})


@pytest.fixture
def cancellation() -> Iterator[Cancellation]:
    cancellation = Cancellation()
    yield cancellation
    cancellation.close()


class Run:
    """Runs a body as the inspection command and checks that nothing of it is left."""

    def __init__(self, folder: Path, cancellation: Cancellation) -> None:
        self.folder = folder
        self.cancellation = cancellation

    def __call__(
        self, body: str, document: bytes = DOCUMENT, timeout_s: float = PATIENT_S
    ) -> Verdict:
        self.hook = Hook(self.folder, body)
        verdict = inspect(self.hook.argv, document, timeout_s, self.cancellation)
        pids = self.hook.pids()  # none when the time was up before its interpreter had started
        assert not any(map(is_there, pids[:1])), "not even a zombie of it"
        eventually(lambda: not any(map(is_running, pids)))
        return verdict

    def failure(self, body: str, document: bytes = DOCUMENT, timeout_s: float = PATIENT_S) -> str:
        verdict = self(body, document, timeout_s)
        assert isinstance(verdict, Failed), verdict
        assert SECRET not in verdict.what
        return verdict.what


@pytest.fixture
def run(tmp_path: Path, cancellation: Cancellation) -> Iterator[Run]:
    before = len(os.listdir("/dev/fd"))
    yield Run(tmp_path / "hook", cancellation)
    assert len(os.listdir("/dev/fd")) <= before, "a descriptor was left open"


# --- verdicts ---


def test_allow_allows(run: Run) -> None:
    assert run('read(); answer("allow")') == Allowed()
    assert run.hook.documents() == [decode_strict(DOCUMENT)]


def test_allow_with_a_reason_allows(run: Run) -> None:
    assert run('answer("allow", "nothing in it")') == Allowed()


def test_deny_denies_with_its_reason(run: Run) -> None:
    assert run('answer("deny", "holds an API key")') == Denied("holds an API key")


@pytest.mark.parametrize("answer", ['{"decision":"deny"}', '{"decision":"deny","reason":""}'])
def test_denial_without_a_reason_says_so(run: Run, answer: str) -> None:
    assert run(f"print({answer!r})") == Denied("no reason given")


def test_long_reason_is_cut(run: Run) -> None:
    assert run('answer("deny", "é" * 5000)') == Denied("é" * INSPECTION_REASON_CHARACTERS)


def test_reason_null_is_no_reason(run: Run) -> None:
    assert run("""print('{"decision": "allow", "reason": null}')""") == Allowed()


@pytest.mark.parametrize(
    "answer",
    [
        '{"decision":"Allow"}',
        '{"decision":"allow "}',
        '{"decision":"allowed"}',
        '{"decision":true}',
        '{"decision":["allow"]}',
        '{"decision":null}',
        '{"reason":"allow"}',
        "{}",
    ],
)
def test_what_is_not_exactly_allow_or_deny_is_no_verdict(run: Run, answer: str) -> None:
    assert run.failure(f"print({answer!r})") == (
        'the decision in its answer is neither "allow" nor "deny"'
    )


@pytest.mark.parametrize(
    "answer",
    [
        '{"decision":"allow","sure":true}',
        '{"decision":"allow","Reason":""}',
        '["allow"]',
        '"allow"',
        "true",
        "null",
        "1",
    ],
)
def test_answer_of_another_shape_is_no_verdict(run: Run, answer: str) -> None:
    assert "not an object of decision and reason" in run.failure(f"print({answer!r})")


@pytest.mark.parametrize("reason", ["1", "true", "[]", '{"text":"x"}'])
def test_reason_that_is_not_text_is_no_verdict(run: Run, reason: str) -> None:
    for decision in ("allow", "deny"):
        answer = f'{{"decision":"{decision}","reason":{reason}}}'
        assert "not text" in run.failure(f"print({answer!r})")


@pytest.mark.parametrize(
    "answer",
    [
        b"allow",
        b"{",
        b'{"decision":"allow"}{"decision":"allow"}',
        b'{"decision":"allow"}\n{"decision":"deny"}',
        b'{"decision":"deny","decision":"allow"}',
        b"\xff\xfe",
        b'\xef\xbb\xbf{"decision":"allow"}',
        b'{"decision":"allow"}\0',
        b"{'decision':'allow'}",
        b'{"decision":"deny","reason":"\\ud800"}',
        b"[" * 60_000,
        b'{"decision":"allow","reason":%s}' % (b"9" * 60_000),
    ],
    ids=range(12),
)
def test_garbage_is_no_verdict(run: Run, answer: bytes) -> None:
    failure = run.failure(f"sys.stdout.buffer.write({answer!r})")
    assert failure == "its answer is not one well-formed JSON document"


def test_garbage_that_quotes_the_payload_is_not_repeated(run: Run) -> None:
    body = 'read(); print(\'{"%s": 1, "%s": 2}\' % (("SECRET",) * 2))'.replace("SECRET", SECRET)
    run.failure(body)


def test_silence_is_no_verdict(run: Run) -> None:
    assert run.failure("read()") == "it exited with 0 but gave no answer"
    assert run.failure('print("\\n \\n")') == "it exited with 0 but gave no answer"


# --- ends ---


def test_exit_code_counts_more_than_the_answer(run: Run) -> None:
    assert run.failure('answer("allow"); sys.stdout.flush(); os._exit(3)') == "it exited with 3"


def test_uncaught_exception_is_no_verdict(run: Run) -> None:
    assert run.failure('answer("allow"); raise ValueError(read())') == "it exited with 1"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
def test_crash_by_a_signal_is_no_verdict(run: Run, number: signal.Signals) -> None:
    body = f'answer("allow"); sys.stdout.flush(); os.kill(os.getpid(), {int(number)})'
    assert run.failure(body) == f"it was ended by signal {int(number)}"


def test_hang_is_ended_after_the_timeout(run: Run) -> None:
    began_s = time.monotonic()
    assert run.failure("read(); hang()", timeout_s=0.5) == "it did not finish in time"
    assert time.monotonic() - began_s < PATIENT_S


def test_answer_before_a_hang_does_not_count(run: Run) -> None:
    body = 'answer("allow"); sys.stdout.flush(); hang()'
    assert run.failure(body, timeout_s=0.5) == "it did not finish in time"


def test_closed_outputs_before_a_hang_do_not_count(run: Run) -> None:
    body = 'answer("allow"); sys.stdout.flush(); os.close(1); os.close(2); hang()'
    assert run.failure(body, timeout_s=0.5) == "it did not finish in time"


def test_end_after_its_outputs_were_closed_is_waited_for(run: Run) -> None:
    body = 'answer("allow"); sys.stdout.flush(); os.close(1); os.close(2); time.sleep(0.2)'
    assert run(body) == Allowed()


def test_command_that_ignores_signals_is_ended(run: Run) -> None:
    body = "for n in (1, 2, 3, 15): signal.signal(n, signal.SIG_IGN)\nhang()"
    assert run.failure(body, timeout_s=0.5) == "it did not finish in time"


def test_stopped_command_is_ended(run: Run) -> None:
    body = "os.kill(os.getpid(), signal.SIGSTOP)"
    assert run.failure(body, timeout_s=0.5) == "it did not finish in time"


def test_fractions_of_a_second_count(run: Run) -> None:
    began_s = time.monotonic()
    run.failure("hang()", timeout_s=0.35)
    assert 0.35 <= time.monotonic() - began_s < PATIENT_S


# --- pipes ---


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_byte_more_than_the_limit_is_no_verdict(run: Run, stream: str) -> None:
    size = INSPECTION_OUTPUT_BYTES + 1
    body = f"""
note("hanging", "")
answer("allow"); sys.stdout.flush()
sys.{stream}.write(" " * {size}); sys.{stream}.flush()
hang()
"""
    assert run.failure(body) == f"it wrote more than {INSPECTION_OUTPUT_BYTES} bytes to {stream}"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_exactly_the_limit_is_accepted(run: Run, stream: str) -> None:
    body = f"""
text = json.dumps({{"decision": "allow"}})
left = {INSPECTION_OUTPUT_BYTES} - ({stream == "stdout"}) * len(text)
sys.{stream}.write(" " * left); sys.{stream}.flush()
sys.stdout.write(text)
"""
    assert run(body) == Allowed()


def test_endless_output_is_ended_at_the_limit(run: Run) -> None:
    assert "more than" in run.failure('while True: sys.stdout.write("x" * 4096)')


def test_outputs_are_read_while_the_input_is_written(run: Run) -> None:
    document = encode({"content": "x" * (4 * MIB)})
    body = """
sys.stderr.write("x" * 60_000); sys.stderr.flush()
sys.stdout.write(" " * 60_000); sys.stdout.flush()
assert len(sys.stdin.buffer.read()) > 4 << 20
answer("allow")
"""
    assert run(body, document) == Allowed()


def test_input_that_is_never_read_is_no_fault_by_itself(run: Run) -> None:
    assert run('answer("allow")', encode("x" * MIB)) == Allowed()


def test_input_closed_early_leaves_the_verdict_as_it_is(run: Run) -> None:
    body = 'sys.stdin.buffer.read(10); os.close(0); answer("deny", "seen enough")'
    assert run(body, encode("x" * MIB)) == Denied("seen enough")


def test_input_closed_early_before_a_hang_is_no_verdict(run: Run) -> None:
    body = "os.close(0); hang()"
    assert run.failure(body, encode("x" * MIB), timeout_s=0.5) == "it did not finish in time"


def test_child_that_holds_the_pipe_after_the_exit_is_no_verdict(run: Run) -> None:
    body = """
answer("allow"); sys.stdout.flush()
if os.fork() == 0:
    note("pids", str(os.getpid()))
    hang()
wait_for("hanging")
"""
    failure = run.failure(body, timeout_s=3.0)
    assert failure == "what it left behind held its pipes until the time was up"
    assert len(run.hook.pids()) == 2


def test_child_that_holds_only_the_unread_input_is_not_waited_for(run: Run) -> None:
    body = """
if os.fork() == 0:
    note("pids", str(os.getpid()))
    os.close(1); os.close(2)
    hang()
wait_for("hanging"); answer("allow")
"""
    assert run(body, encode("x" * MIB)) == Allowed()


def test_grandchild_without_the_pipes_ends_with_the_run(run: Run) -> None:
    body = """
if os.fork() == 0:
    if os.fork() == 0:
        for number in (0, 1, 2): os.close(number)
        note("pids", str(os.getpid()))
        hang()
    os._exit(0)
os.wait()
wait_for("hanging")
answer("allow")
"""
    assert run(body) == Allowed()
    assert len(run.hook.pids()) == 2


def test_grandchildren_of_a_hang_end_with_it(run: Run) -> None:
    body = """
for _ in range(3):
    if os.fork() == 0:
        note("pids", str(os.getpid()))
        hang()
hang()
"""
    assert run.failure(body, timeout_s=3.0) == "it did not finish in time"
    assert len(run.hook.pids()) == 4


# --- starting ---


def test_program_that_is_gone_is_no_verdict(tmp_path: Path, cancellation: Cancellation) -> None:
    verdict = inspect([str(tmp_path / "gone")], DOCUMENT, PATIENT_S, cancellation)
    assert verdict == Failed("it could not be started: No such file or directory")


def test_program_that_may_not_be_run_is_no_verdict(
    tmp_path: Path, cancellation: Cancellation
) -> None:
    file = tmp_path / "hook"
    file.write_text("#!/bin/sh\n")
    verdict = inspect([str(file)], DOCUMENT, PATIENT_S, cancellation)
    assert verdict == Failed("it could not be started: Permission denied")


def test_program_of_an_unknown_format_is_no_verdict(
    tmp_path: Path, cancellation: Cancellation
) -> None:
    file = tmp_path / "hook"
    file.write_text("no program")
    file.chmod(0o700)
    verdict = inspect([str(file)], DOCUMENT, PATIENT_S, cancellation)
    assert verdict == Failed("it could not be started: Exec format error")


def test_argument_that_no_program_can_get_is_no_verdict(cancellation: Cancellation) -> None:
    verdict = inspect(["/bin/echo", "\0"], DOCUMENT, PATIENT_S, cancellation)
    assert verdict == Failed("it could not be started: ValueError")


def test_arguments_reach_the_program_without_a_shell(run: Run, cancellation: Cancellation) -> None:
    run('answer("deny", json.dumps(sys.argv[1:]))')
    arguments = ["$HOME", "*", "a b", "; exit 1", ""]
    verdict = inspect([*run.hook.argv, *arguments], DOCUMENT, PATIENT_S, cancellation)
    assert isinstance(verdict, Denied)
    assert decode_strict(verdict.reason) == arguments


def test_run_has_a_process_group_of_its_own(run: Run) -> None:
    assert run("assert os.getpgid(0) == os.getpid() == os.getsid(0); answer('allow')") == Allowed()


# --- cancelling ---


@pytest.mark.parametrize("body", ["hang()", "os.close(1); os.close(2); hang()"])
def test_cancellation_ends_a_run_and_its_processes(
    run: Run, cancellation: Cancellation, body: str
) -> None:
    def cancel() -> None:
        eventually((run.folder / "hanging").exists)
        cancellation.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    assert run.failure(body) == "the daemon stopped meanwhile"
    thread.join()


def test_run_after_a_cancellation_ends_at_once(run: Run, cancellation: Cancellation) -> None:
    cancellation.cancel()
    cancellation.cancel()
    verdict = inspect(["/bin/sleep", "60"], DOCUMENT, PATIENT_S, cancellation)
    assert verdict == Failed("the daemon stopped meanwhile")


def test_forty_runs_at_once_leave_nothing(run: Run, cancellation: Cancellation) -> None:
    hook = Hook(run.folder, "read(); hang()")
    verdicts: list[Verdict] = []
    threads = [
        threading.Thread(
            target=lambda: verdicts.append(inspect(hook.argv, DOCUMENT, 3.0, cancellation))
        )
        for _ in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [Failed("it did not finish in time")] * 40
    assert not any(map(is_there, hook.pids()))


# --- the document and the command ---


def test_document_has_operation_sender_and_payload() -> None:
    sender = SenderBinding("sam", AgentId("a1"), SessionId("s1"), "codex", None, "Sam", None)
    document = build_document("send", sender, {"channel": "general", "content": "é"})
    assert decode_strict(document) == {
        "operation": "send",
        "sender": {
            "agent": "sam",
            "agent_id": "a1",
            "session_id": "s1",
            "application": "codex",
            "child": None,
            "display_name": "Sam",
            "repository": None,
        },
        "payload": {"channel": "general", "content": "é"},
    }


def _command(folder: Path, argv: list[str]) -> tuple[str, ...]:
    file = folder / "config.json"
    file.write_bytes(encode({"inspection_command": argv}))
    return find_command(load_config(file))


def test_no_command_is_no_hook(tmp_path: Path) -> None:
    assert _command(tmp_path, []) == ()


def test_command_is_found_on_the_path_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Hook(tmp_path / "bin", "")
    monkeypatch.setenv("PATH", str(hook.folder), prepend=":")
    assert _command(tmp_path, ["hook", "--strict"]) == (str(hook.path), "--strict")


def test_command_beside_the_configuration_is_found(tmp_path: Path) -> None:
    hook = Hook(tmp_path / "bin", "")
    assert _command(tmp_path, ["bin/hook"]) == (str(hook.path),)


@pytest.mark.parametrize("name", ["agentbus-no-such-program", "./gone", "./folder", "./text"])
def test_command_that_cannot_be_run_is_refused_at_start(short_folder: Path, name: str) -> None:
    (short_folder / "folder").mkdir()
    (short_folder / "text").write_text("not executable")
    with pytest.raises(ConfigError, match="nothing is ever allowed by silence") as caught:
        _command(short_folder, [name])
    assert caught.value.key == "inspection_command"
    assert name.removeprefix("./") in caught.value.message
