"""A message through a real adapter, the daemon, SQLite and Redis, and back, with each hop's time.

Owns the agent and the channel `agentbus-doctor`, and one adapter process, which may start a daemon
as any adapter may. Touches no other channel: it subscribes to its own only and leaves it again.
Each message goes with age as any other does. Blocks; main thread.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from agentbus import __version__
from agentbus.cli.doctoring.faults import CANARY_BUSY, CANARY_FAILED, Finding, fine
from agentbus.encoding import decode_strict, encode_line
from agentbus.errors import BusError, UnavailableError, error_from_data
from agentbus.ids import new_id
from agentbus.transport.singleton import DaemonLock, RuntimePaths, prepare_directory

NAME: Final = "agentbus-doctor"
"""Of the agent, its one conversation, and its channel."""

ANSWER_S: Final = 15.0
ATTACH_S: Final = 45.0
"""An adapter waits up to 30 s for a bus that starts or recovers before it says so."""

RECEIVE_S: Final = 10.0
END_S: Final = 3.0
_WAIT_S: Final = 5.0
_PAUSE_S: Final = 0.05
_READ_BYTES: Final = 1 << 16
_PROTOCOL: Final = "2025-11-25"


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of the way, and how long it took."""

    name: str
    took_ms: float


@dataclass(slots=True)
class Flight:
    """How far a canary came."""

    hops: list[Hop] = field(default_factory=list)
    error: BusError | None = None
    is_busy: bool = False
    """Another doctor's canary is under way, so that none was sent."""

    def findings(self, logs: Path) -> list[Finding]:
        """One for each hop, and what stopped it."""
        found = [fine(f"canary: {hop.name}", f"{hop.took_ms:.0f} ms") for hop in self.hops]
        if self.is_busy:
            found.append(CANARY_BUSY.found("canary", "not sent"))
        elif self.error is not None:
            found.append(CANARY_FAILED.found("canary", self.error.message, LOGS=logs))
        return found


def send_canary(
    program: Path, config_path: Path | None, paths: RuntimePaths, longest_wait_s: float
) -> Flight:
    """Send one; what goes wrong is in the flight. `longest_wait_s`: of one receive."""
    lock = DaemonLock(paths.directory / "doctor.lock")
    try:
        prepare_directory(paths, os.getuid())  # as the adapter does
        if not lock.acquire(retry_s=0.0):
            return Flight(is_busy=True)
        return _send(program, config_path, longest_wait_s)
    except BusError as error:
        return Flight(error=error)
    finally:
        lock.release()


def _send(program: Path, config_path: Path | None, longest_wait_s: float) -> Flight:
    command = [str(program), "mcp", "--agent", NAME, "--session", NAME]
    if config_path is not None:
        command += ["--config", str(config_path)]
    flight = Flight()
    try:
        began_s = time.monotonic()
        with _Adapter(command) as adapter:
            _fly(adapter, flight, began_s, min(longest_wait_s, _WAIT_S))
    except BusError as error:
        flight.error = error
    except OSError as error:
        flight.error = UnavailableError(f"{program} cannot be run: {error.strerror}")
    return flight


def _fly(adapter: _Adapter, flight: Flight, began_s: float, wait_s: float) -> None:
    def passed(hop: str) -> None:
        nonlocal began_s
        now_s = time.monotonic()
        flight.hops.append(Hop(hop, (now_s - began_s) * 1000))
        began_s = now_s

    word = "canary" + new_id().replace("-", "")
    adapter.initialize()
    passed("adapter starts")
    adapter.use("whoami", ATTACH_S)
    passed("attach")
    adapter.use("create_channel", name=NAME)
    adapter.use("subscribe", channel=NAME)
    passed("subscribe")
    adapter.use("send", channel=NAME, content=word)
    passed("send (SQLite)")
    _receive(adapter, word, wait_s)
    passed("receive (Redis)")
    _search(adapter, word)
    passed("search")
    adapter.use("unsubscribe", channel=NAME)


def _receive(adapter: _Adapter, word: str, wait_s: float) -> None:
    give_up_s = time.monotonic() + RECEIVE_S
    while time.monotonic() < give_up_s:
        received = adapter.use("receive", channels=[NAME], include_own=True, wait_seconds=wait_s)
        if any(message.get("content") == word for message in received["messages"]):
            return
        time.sleep(_PAUSE_S)  # where the configuration allows no wait
    raise UnavailableError(f"the message was stored but did not come back within {RECEIVE_S:g} s")


def _search(adapter: _Adapter, word: str) -> None:
    found = adapter.use("search", text=word, channel=NAME)
    if [message.get("content") for message in found["messages"]] != [word]:
        raise UnavailableError(
            f"search found {len(found['messages'])} messages instead of that one"
        )


class _Adapter:
    """`agentbus mcp` and the end of a harness: JSON lines over its stdin and stdout."""

    def __init__(self, command: list[str]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
            )
        except OSError:
            self._errors.close()
            raise
        self._unread = b""
        self._last_id = 0

    def __enter__(self) -> _Adapter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """As a harness ends it: its input ends; by force when that is not enough."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._errors.close()

    def initialize(self) -> None:
        self._request(
            "initialize",
            {
                "protocolVersion": _PROTOCOL,
                "capabilities": {},
                "clientInfo": {"name": NAME, "version": __version__},
            },
            ANSWER_S,
        )
        self._send({"method": "notifications/initialized"})

    def use(self, tool: str, within_s: float = ANSWER_S, **arguments: Any) -> dict[str, Any]:
        """Call a tool. Raises the BusError that it answered."""
        params = {"name": tool, "arguments": arguments}
        result = self._request("tools/call", params, within_s)
        structured = result.get("structuredContent")
        if result.get("isError") or not isinstance(structured, dict):
            told = structured.get("error") if isinstance(structured, dict) else None
            raise error_from_data(told or {"code": "internal", "message": f"{tool} failed"})
        return structured

    def _request(self, method: str, params: dict[str, Any], within_s: float) -> dict[str, Any]:
        self._last_id += 1
        give_up_s = time.monotonic() + within_s
        self._send({"id": self._last_id, "method": method, "params": params})
        while True:
            message = self._next(give_up_s, f"{method} {params.get('name', '')}".strip())
            if message.get("id") == self._last_id and "method" not in message:
                result = message.get("result")
                if not isinstance(result, dict):
                    raise UnavailableError(f"{method}: the adapter answered {message.get('error')}")
                return result

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode_line({"jsonrpc": "2.0", **message}))
        except OSError:
            raise self._ended() from None

    def _next(self, give_up_s: float, what: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            left_s = give_up_s - time.monotonic()
            if left_s <= 0 or not select.select([self._process.stdout], [], [], left_s)[0]:
                raise UnavailableError(f"{what}: the adapter does not answer in time")
            chunk = os.read(self._process.stdout.fileno(), _READ_BYTES)
            if not chunk:
                raise self._ended()
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        message = decode_strict(line)
        return message if isinstance(message, dict) else {}

    def _ended(self) -> UnavailableError:
        """With its last words."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        said = lines[-1].removeprefix("agentbus: ") if lines else "without a word"
        return UnavailableError(f"the adapter ended ({self._process.returncode}): {said}")
