"""What the bus is compared with, on the same disk in the same run.

`Floor` is the least that a durable send can cost here: the bus's own rows in a bare SQLite loop.
Redis Streams and simplebroker are what somebody would otherwise use. Each is started, measured
round by round, and removed.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from agentbus.encoding import decode_trusted, encode
from agentbus.ids import new_id
from agentbus.projection.finding import DEFAULT_EXECUTABLE, find_redis
from agentbus.store.schema import Channel, Message, Meta, Receipt, create_statements, insert_text
from tests.benchmarks.content import contents
from tests.benchmarks.figures import Sample
from tests.benchmarks.load import CHANNEL

ENVELOPE_BYTES_BESIDE_CONTENT = 330
START_WITHIN_S = 10.0


class Scratch:
    """A folder on the disk where throw-away buses lie too."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ab-", dir="/tmp"))

    def __enter__(self) -> Path:
        return self.directory

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.directory)


class Floor:
    """Message, receipt and counters of each send, `per_commit` sends in one FULL transaction."""

    def __init__(self, directory: Path, per_commit: int) -> None:
        self._per_commit = per_commit
        path = directory / f"floor-{per_commit}.sqlite3"
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        for statement in create_statements():
            self._connection.execute(statement)
        self._connection.execute(insert_text(Channel), (1, CHANNEL, "ordinary", 0, 0, 0, 0, 0))
        for key in ("last_sequence", "logical_bytes"):
            self._connection.execute(insert_text(Meta), (key, 0))
        self._sequence = 0
        beside = "x" * ENVELOPE_BYTES_BESIDE_CONTENT
        self._envelopes = [f"{text}{beside}".encode() for text in contents()]
        self._message, self._receipt = insert_text(Message), insert_text(Receipt)

    def measure(self, seconds: float) -> Sample:
        """Latencies are those of a whole transaction."""
        latencies_s: list[float] = []
        begin_s = now_s = time.perf_counter()
        while now_s - begin_s < seconds:
            self._transaction()
            before_s, now_s = now_s, time.perf_counter()
            latencies_s.append(now_s - before_s)
        sample = Sample.of_latencies(latencies_s, now_s - begin_s)
        return Sample(sample.per_second * self._per_commit, sample.p50_us, sample.p99_us)

    def _transaction(self) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        for _ in range(self._per_commit):
            self._sequence += 1
            sequence, now_us = self._sequence, time.time_ns() // 1000
            envelope = self._envelopes[sequence % len(self._envelopes)]
            names = (sequence, new_id(), 1, 1, sequence, _SESSION, now_us)
            execute(self._message, (*names, None, None, 0, None, None, envelope))
            execute(
                self._receipt,
                (_SESSION, new_id(), _FINGERPRINT, _RESULT, now_us, now_us + 3600_000_000),
            )
        execute("UPDATE channels SET newest = ?, retained = ? WHERE id = 1", (sequence, sequence))
        execute("UPDATE meta SET value = ? WHERE key = 'last_sequence'", (sequence,))
        execute("UPDATE meta SET value = ? WHERE key = 'logical_bytes'", (sequence * 1200,))
        execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


_SESSION = new_id()
_FINGERPRINT = bytes(16)
_RESULT = encode({"message_id": new_id(), "sequence": 123456, "operation_id": new_id()})


class RedisAlways:
    """Redis Streams that sync each write, on the same server program as the bus's own."""

    def __init__(self, directory: Path) -> None:
        self.socket_path = directory / "redis.sock"
        executable = find_redis(DEFAULT_EXECUTABLE)[0].executable
        settings = {
            "port": "0",
            "unixsocket": str(self.socket_path),
            "dir": str(directory),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "daemonize": "no",
        }
        argv = [str(executable)]
        for name, value in settings.items():
            argv += [f"--{name}", value]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + START_WITHIN_S
        while not self.socket_path.exists():
            if time.monotonic() > deadline_s or self._process.poll() is not None:
                self.close()
                raise SystemExit(f"{executable} does not start")
            time.sleep(0.01)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def missing_simplebroker() -> str | None:
    """Why simplebroker is not measured."""
    return None if find_spec("simplebroker") else "pip install simplebroker"


def missing_nats() -> str | None:
    """Why NATS JetStream is not measured."""
    if shutil.which("nats-server") is None:
        return "no nats-server on PATH"
    return None if find_spec("nats") else "pip install nats-py"


def measure_simplebroker(directory: Path, clients: int, seconds: float) -> Sample:
    """`clients` processes that write to one queue, one message at a time."""
    argv = [sys.executable, "-m", "tests.benchmarks.references", str(directory), str(seconds)]
    writers = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(clients)]
    samples = []
    for writer in writers:
        out, _ = writer.communicate()
        if writer.returncode:
            raise SystemExit("simplebroker failed")
        samples.append(Sample(**decode_trusted(out)))
    p50s_us = sorted(sample.p50_us for sample in samples)
    p99s_us = sorted(sample.p99_us for sample in samples)
    return Sample(
        sum(sample.per_second for sample in samples), p50s_us[clients // 2], p99s_us[clients // 2]
    )


def _write_to_simplebroker(directory: Path, seconds: float) -> Sample:
    from simplebroker import Queue

    queue = Queue(CHANNEL, db_path=str(directory / "simplebroker.db"), persistent=True)
    texts = contents()
    queue.write(texts[0])
    latencies_s: list[float] = []
    begin_s = now_s = time.perf_counter()
    while now_s - begin_s < seconds:
        queue.write(texts[len(latencies_s) % len(texts)])
        before_s, now_s = now_s, time.perf_counter()
        latencies_s.append(now_s - before_s)
    queue.close()
    return Sample.of_latencies(latencies_s, now_s - begin_s)


if __name__ == "__main__":
    written = _write_to_simplebroker(Path(sys.argv[1]), float(sys.argv[2]))
    print(encode(asdict(written)).decode())
