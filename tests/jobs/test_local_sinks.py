"""Standard output and files: whole lines, whatever happens to the writer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from agentbus.encoding import decode_strict
from agentbus.errors import ValidationError
from agentbus.jobs import JobEmitter, SinkError, decode_event
from agentbus.jobs.sinks.file import FileSink
from agentbus.jobs.sinks.stdout import StdoutSink
from agentbus.limits import MIB
from tests.exhaustion import CAN_MOUNT, mount, unmount

MANY = 100_000


def emit_all(job: JobEmitter[Any, Any, Any]) -> None:
    with job:
        job.accepted("https://example.com/é")
        job.progress("extract", pct=50, message="two\nlines")
        job.succeeded({"title": "Plum cake", "steps": [1, 2]})


def lines_of(path: Path) -> list[int]:
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [decode_event(line).seq for line in data.splitlines()]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


def test_final_prints_the_result_alone(pipe: tuple[int, int]) -> None:
    emit_all(JobEmitter(StdoutSink("final", pipe[1]), "j"))
    shown = os.read(pipe[0], 65536).decode()
    assert decode_strict(shown) == {"title": "Plum cake", "steps": [1, 2]}
    assert shown.startswith('{\n  "title"')


def test_final_prints_nothing_of_a_job_that_failed(pipe: tuple[int, int]) -> None:
    job: JobEmitter[Any, Any, Any]
    with JobEmitter(StdoutSink("final", pipe[1]), "j") as job:
        job.accepted("u")
        job.failed("general", "no")
    assert os.read(pipe[0], 65536) == b""


def test_ndjson_prints_every_event_on_one_line(pipe: tuple[int, int]) -> None:
    emit_all(JobEmitter(StdoutSink("ndjson", pipe[1]), "j"))
    lines = os.read(pipe[0], 65536).splitlines()
    assert [decode_event(line).seq for line in lines] == [0, 1, 2]


def test_a_reader_that_has_gone_is_told_to_the_tool() -> None:
    reader, writer = os.pipe()
    job: JobEmitter[Any, Any, Any] = JobEmitter(StdoutSink("ndjson", writer), "j")
    os.close(reader)
    with pytest.raises(SinkError, match="has gone"):
        job.accepted("u")
    job.close()


def test_what_else_is_printed_goes_to_stderr() -> None:
    tool = (
        "import os, subprocess, sys\n"
        "print('before', flush=True)\n"
        "from agentbus.jobs import open_job\n"
        "with open_job() as job:\n"
        "    job.accepted('u')\n"
        "    print('stray')\n"
        "    subprocess.run(['echo', 'of a child'])\n"
        "    job.succeeded(1)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", tool],
        env={**os.environ, "AGENTBUS_TRANSPORT": "events"},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert ran.returncode == 0, ran.stderr
    before, *events = ran.stdout.splitlines()
    assert before == "before"
    assert [decode_event(line).seq for line in events] == [0, 1]
    assert sorted(ran.stderr.splitlines()) == ["of a child", "stray"]


def test_a_file_is_appended_to_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    emit_all(JobEmitter(FileSink(path), "j"))
    emit_all(JobEmitter(FileSink(path, "each"), "k"))
    assert lines_of(path) == [0, 1, 2, 0, 1, 2]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("torn", [b'{"job_id":"j","seq":3,"ty', b"{", b'{"a":"' + b"x" * 200_000])
@pytest.mark.parametrize("before", [0, 3])
def test_what_a_killed_writer_left_of_a_line_is_dropped(
    tmp_path: Path, torn: bytes, before: int
) -> None:
    path = tmp_path / "events.ndjson"
    if before:
        emit_all(JobEmitter(FileSink(path), "j"))
    with path.open("ab") as file:
        file.write(torn)
    emit_all(JobEmitter(FileSink(path), "k"))
    assert lines_of(path) == [*range(before), 0, 1, 2]


def test_a_line_torn_while_we_write_is_dropped_too(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    job: JobEmitter[Any, Any, Any] = JobEmitter(FileSink(path), "j")
    job.accepted("u")
    with path.open("ab") as other:
        other.write(b'{"half')
    job.succeeded(1)
    job.close()
    assert lines_of(path) == [0, 1]


@pytest.mark.parametrize("content", [b"my thesis", b"x" * 20 * MIB])
def test_a_file_that_holds_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "thesis.txt"
    path.write_bytes(content)
    with pytest.raises(ValidationError, match="no file of events"):
        FileSink(path)
    assert path.read_bytes() == content


def test_a_path_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        with pytest.raises(ValidationError):
            FileSink(tmp_path / name)
    for path in (tmp_path, tmp_path / "no" / "folder"):
        with pytest.raises(SinkError):
            FileSink(path)


def fill(job: JobEmitter[Any, Any, Any]) -> NoReturn:
    while True:
        job.progress("s", message="x" * 500)


@pytest.mark.skipif(not CAN_MOUNT, reason="needs Linux and root to mount a small file system")
def test_a_full_disk_leaves_whole_lines_and_room_makes_it_go_on(short_folder: Path) -> None:
    disk = short_folder / "disk"
    mount(disk, 64 * 1024)
    try:
        path = disk / "events.ndjson"
        job: JobEmitter[Any, Any, Any] = JobEmitter(FileSink(path), "j")
        job.accepted("u")
        with pytest.raises(SinkError, match="No space left"):
            fill(job)
        written = lines_of(path)
        assert written == list(range(len(written)))
        with pytest.raises(SinkError):
            job.succeeded("y" * 70_000)
        assert lines_of(path) == written
        job.close()
        os.truncate(path, 0)
        emit_all(JobEmitter(FileSink(path), "k"))
        assert lines_of(path) == [0, 1, 2]
    finally:
        unmount(disk)


def test_jobs_at_once_share_a_file_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    tool = (
        "import sys; from pathlib import Path\n"
        "from agentbus.jobs import JobEmitter\n"
        "from agentbus.jobs.sinks.file import FileSink\n"
        "with JobEmitter(FileSink(Path(sys.argv[1])), sys.argv[2]) as job:\n"
        "    job.accepted('u')\n"
        "    for n in range(300): job.progress('s', message='x' * 400)\n"
        "    job.succeeded(1)\n"
    )
    tools = [subprocess.Popen([sys.executable, "-c", tool, str(path), f"job{n}"]) for n in range(3)]
    assert [tool.wait(50) for tool in tools] == [0, 0, 0]
    events = [decode_event(line) for line in path.read_bytes().splitlines()]
    for n in range(3):
        assert [e.seq for e in events if e.job_id == f"job{n}"] == list(range(302))


def test_100_000_events_are_written_in_order(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    job: JobEmitter[Any, Any, Any]
    with JobEmitter(FileSink(path), "j") as job:
        job.accepted("u")
        for number in range(MANY):
            job.progress("count", message=str(number))
        job.succeeded(MANY)
    with path.open("rb") as file:
        assert all(b'"seq":%d,' % seq in line for seq, line in enumerate(file))
    assert decode_event(line_at_end(path)).seq == MANY + 1


def line_at_end(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-500, os.SEEK_END)
        return file.read().splitlines()[-1]
