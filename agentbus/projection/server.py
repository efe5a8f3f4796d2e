"""The private Redis process: chosen, started, owned and ended here.

The process outlives a daemon that crashes, on purpose: the next daemon finds it by its record and
token and takes it over if it holds the same bus, which makes a rebuild unnecessary, and ends it
otherwise. An instance that is not ours is never touched; its presence is an error. `RedisServer`
belongs to the projector's thread, except `alive` and `connect`, which any thread may call.
"""

from __future__ import annotations

import secrets
import socket
import stat
import subprocess
from contextlib import closing, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import redis

from agentbus import __version__
from agentbus.ids import BusId
from agentbus.limits import SHUTDOWN_GRACE_SECONDS
from agentbus.processes import end_group, is_running, start_mark
from agentbus.projection import keys
from agentbus.projection.connection import Ask, Client, connect, execute, info
from agentbus.projection.errors import ProjectionError, RedisUnusableError, redis_errors
from agentbus.projection.finding import INSTALL_REDIS, INSTALL_SEARCH, Candidate, find_redis
from agentbus.projection.launching import (
    Check,
    RedisInfo,
    RedisSettings,
    SearchEngine,
    end_child,
    launch,
)
from agentbus.projection.ownership import Record, read_record, token_of, write_record

ORPHAN_GRACE_SECONDS = 1.0

NOT_WANTED = 'not looked for, because search_engine is "sqlite"'


class RedisServer:
    """At most one running instance.

    1. Between `start` and `stop` the record names exactly our process.
    2. Nothing that lacks our token or is not our recorded process ever gets a signal or a write.
    3. Every wait ends: a start after `start_s` per attempt, a stop after its grace and a kill.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._child: subprocess.Popen[bytes] | None = None
        self._adopted: tuple[int, str] | None = None
        self._token: str | None = None  # of the instance that is, or was last, ours

    def start(self, bus_id: BusId, go_on: Check = lambda: None) -> RedisInfo:
        """Have an instance running: our own left-over one if it holds `bus_id`, else a new one.

        What `go_on` raises ends the wait for a new one, and leaves none.
        Raises RedisUnusableError, with everything that was tried, when there cannot be one.
        """
        candidates = find_redis(self._settings.executable)
        try:
            self._settings.working_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self._take_over(bus_id) or self._start_best(candidates, go_on)
        except OSError as error:
            with suppress(OSError):  # it serves, but could not be noted: nobody would find it again
                self.stop(grace_s=0)
            raise RedisUnusableError(
                f"no Redis can be started with {self._settings.record_path} and "
                f"{self._settings.working_directory}: {error}; make room there, or repair them"
            ) from error

    def restart(self, bus_id: BusId, go_on: Check = lambda: None) -> RedisInfo:
        """End the instance, however it fares, and have a new, empty one."""
        self.stop(grace_s=0)
        return self.start(bus_id, go_on)

    def stop(self, grace_s: float = SHUTDOWN_GRACE_SECONDS) -> None:
        """End our instance, by force after `grace_s`. Does nothing when none runs."""
        if self._child is not None:
            end_child(self._child, grace_s)
        elif self._adopted is not None:
            pid, mark = self._adopted
            if not end_group(pid, mark, grace_s):
                raise ProjectionError(f"Redis process {pid} cannot be ended, not even by force")
        else:
            return
        self._child = self._adopted = None
        self._settings.record_path.unlink(missing_ok=True)
        if not _listens(self._settings.socket_path):
            self._settings.socket_path.unlink(missing_ok=True)

    def alive(self) -> bool:
        """Whether the process exists; a hung one does too."""
        child, adopted = self._child, self._adopted
        if child is not None:
            return child.poll() is None
        return adopted is not None and is_running(*adopted)

    def ping(self) -> None:
        """Raises ProjectionError unless it answers within the command timeout."""
        with closing(self.connect()) as client, redis_errors("answer a ping"):
            client.ping()

    @property
    def socket_path(self) -> Path:
        return self._settings.socket_path

    @property
    def budget_bytes(self) -> int:
        """What the dataset is compared with. Any thread may ask."""
        return self._settings.budget_bytes

    def check_place(self) -> None:
        """Raises ProjectionError when nobody who connects from now on would find it."""
        if not self._settings.socket_path.exists():
            raise ProjectionError(
                f"{self._settings.socket_path} was removed; the bus starts another Redis"
            )

    def lift_backstop(self) -> None:
        """Let our instance take more memory than was meant for it, until it ends.

        Only when nothing is left that may be removed: what was accepted has to be projected, and a
        backstop that stays shut would end the bus for good instead of one send.
        """
        with closing(self.connect()) as client, redis_errors("take more memory"):
            client.config_set("maxmemory", 0)

    def connect(self) -> Client:
        """A client for the calling thread that talks to our instance and to no other, not even
        where ours has ended, another one has taken its place and the client connects anew."""
        return connect(self._settings.socket_path, self._settings.command_s, self._require_ours)

    def _require_ours(self, ask: Ask) -> None:
        if token_of(ask) != self._token:
            raise redis.ConnectionError(
                f"another Redis listens at {self._settings.socket_path}; it is left alone"
            )

    # What is there already

    def _take_over(self, bus_id: BusId) -> RedisInfo | None:
        path = self._settings.socket_path
        record = read_record(self._settings.record_path)
        if path.is_symlink() or (path.exists() and not stat.S_ISSOCK(path.stat().st_mode)):
            raise RedisUnusableError(f"{path} is in the way and is not a socket; remove it")
        if not _listens(path):
            self._end_recorded(record)
            return None
        with closing(connect(path, self._settings.command_s)) as client:
            try:
                token = token_of(partial(execute, client))
            except redis.RedisError:  # hung, or no Redis that would talk to us
                self._end_recorded(record)
                if _listens(path):
                    raise _foreign(path, "does not answer") from None
                return None
            if record is None or token != record.token:
                raise _foreign(path, "was not started by this bus")
            return self._adopt(client, record, bus_id)

    def _adopt(self, client: Client, record: Record, bus_id: BusId) -> RedisInfo | None:
        if record.pid is None:  # the daemon died before it could note it
            pid = int(info(client, "server")["process_id"])
            record = replace(record, pid=pid, mark=start_mark(pid))
        with redis_errors("read its marker"):
            found_bus_id = execute(client, "HGET", keys.MARKER, keys.MARKER_BUS_ID)
        if (
            record.facts is None
            or record.pid is None
            or record.mark is None
            or record.settings != self._settings_text()
            or found_bus_id != bus_id.encode()
        ):
            self._end_recorded(record)
            return None
        self._adopted = (record.pid, record.mark)
        self._token = record.token
        return replace(RedisInfo(**record.facts), taken_over=True)

    def _end_recorded(self, record: Record | None) -> None:
        if record is None or record.pid is None or record.mark is None:
            return
        if not end_group(record.pid, record.mark, ORPHAN_GRACE_SECONDS):
            raise RedisUnusableError(
                f"a Redis of an earlier run (process {record.pid}) cannot be ended; end it by hand"
            )

    # A new one

    def _start_best(self, candidates: list[Candidate], go_on: Check) -> RedisInfo:
        """The first candidate that can search; where none can and none must, the first at all."""
        engine = self._settings.search_engine
        failures: list[str] = []
        second_best: Candidate | None = None
        for candidate in candidates:
            for attempt in _attempts(candidate, engine):
                try:
                    found = self._launch(attempt, go_on)
                except ProjectionError as error:
                    failures.append(str(error))
                    continue
                if engine == "sqlite" and not found.search:
                    found = replace(found, search_missing=NOT_WANTED)
                if found.search or engine == "sqlite":
                    return self._recorded(found)
                failures.append(f"{attempt.executable}: no text search ({found.search_missing})")
                if engine == "auto" and len(candidates) == 1:
                    return self._recorded(_without_search(found, failures))
                second_best = second_best or attempt
                self.stop()
        if second_best is not None and engine == "auto":
            return self._recorded(_without_search(self._launch(second_best, go_on), failures))
        advice = INSTALL_SEARCH if second_best is not None else INSTALL_REDIS
        raise RedisUnusableError(f"no usable Redis: {'; '.join(failures)}. {advice}")

    def _launch(self, candidate: Candidate, go_on: Check) -> RedisInfo:
        record = Record(secrets.token_hex(16), self._settings_text())
        write_record(self._settings.record_path, record)  # before there is anything to own
        self._child, found = launch(self._settings, candidate, record.token, go_on)
        self._token = record.token
        write_record(
            self._settings.record_path,
            replace(record, pid=found.pid, mark=start_mark(found.pid)),
        )
        return found

    def _recorded(self, found: RedisInfo) -> RedisInfo:
        """Complete the record with what makes the instance worth taking over."""
        record = read_record(self._settings.record_path)
        if record is None:
            raise ProjectionError(f"{self._settings.record_path} vanished while Redis started")
        write_record(self._settings.record_path, replace(record, facts=asdict(found)))
        return found

    def _settings_text(self) -> dict[str, Any]:
        """Everything that an instance taken over must have been started with."""
        texts = {name: str(value) for name, value in asdict(self._settings).items()}
        return {**texts, "version": __version__}


def _attempts(candidate: Candidate, engine: SearchEngine) -> list[Candidate]:
    """With a module, then without: one that is built in refuses a second of its name."""
    bare = replace(candidate, module=None)
    return [bare] if engine == "sqlite" or candidate.module is None else [candidate, bare]


def _without_search(found: RedisInfo, failures: list[str]) -> RedisInfo:
    return replace(found, search_missing=f"{'; '.join(failures)}. {INSTALL_SEARCH}")


def _listens(path: Path) -> bool:
    """Whether a process holds the socket open, even one that answers nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True  # its queue is full: nobody takes connections, but somebody is there
    return True


def _foreign(path: Path, what: str) -> RedisUnusableError:
    return RedisUnusableError(
        f"the Redis at {path} {what}, so it is left alone; end that process or remove the socket"
    )
