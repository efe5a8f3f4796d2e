"""What a crash test does to a bus: one function per kind of fault.

Each takes the world and a random sequence, does it, and returns what it did and how to end it; a
fault whose target is not there says so and is none. They run one after the other on one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentbus.failpoints import POINTS
from tests.crash.world import World, environment_of


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that is in force; `end` is called once, when its time is over."""

    what: str
    end: Callable[[], object] | None = None


CLOCK_JUMP_MAX_S: Final = 7200.0
"""Beyond the retention that the checked bus has, so that messages also leave by age."""

_PIDFD_GETFD: Final = 438

ADAPTER_POINTS: Final = tuple(name for name, what in POINTS.items() if what.startswith("adapter:"))
DAEMON_POINTS: Final = tuple(
    name
    for name, what in POINTS.items()
    if what.startswith(("ledger:", "projector:", "attachment:", "inspector:"))
)


def kill_daemon(world: World, rng: random.Random) -> Done:
    return _kill("daemon", world.daemon_pid())


def kill_redis(world: World, rng: random.Random | None = None) -> Done:
    return _kill("Redis", world.redis_pid())


def kill_adapter(world: World, rng: random.Random) -> Done:
    adapter = rng.choice(world.adapters)
    return _kill(adapter.name, _pid(adapter.process))


def pause_daemon(world: World, rng: random.Random) -> Done:
    return _pause("daemon", world.daemon_pid())


def pause_redis(world: World, rng: random.Random) -> Done:
    return _pause("Redis", world.redis_pid())


def pause_adapter(world: World, rng: random.Random) -> Done:
    adapter = rng.choice(world.adapters)
    return _pause(adapter.name, _pid(adapter.process))


def outlast_lease(world: World, rng: random.Random) -> Done:
    """An adapter stands still, with work in its hands if any has some; see schedule.py for how
    long."""
    at_work = [adapter for adapter in world.adapters if adapter.peering.is_at_work]
    adapter = rng.choice(at_work or world.adapters)
    return _pause(adapter.name, _pid(adapter.process))


def full_disk(world: World, rng: random.Random) -> Done:
    if not world.fill_disk():
        return Done("full disk: not possible without a file system of its own")
    return Done("full disk", world.empty_disk)


def clock(world: World, rng: random.Random) -> Done:
    shift_s = rng.choice((-1, 1)) * rng.uniform(1.0, CLOCK_JUMP_MAX_S)
    world.set_clock(shift_s)
    return Done(f"clock wrong by {shift_s:+.0f} s")  # until it is wrong by something else


def cut(world: World, rng: random.Random) -> Done:
    """The connection of an adapter to the daemon, or the daemon's to Redis, breaks."""
    if rng.random() < 0.5:
        adapter = rng.choice(world.adapters)
        name, pid, path = adapter.name, _pid(adapter.process), world.bus.runtime.socket
    else:
        name, pid, path = "daemon", world.daemon_pid(), world.bus.runtime.redis_socket
    count = _shut_down(pid, path) if pid is not None else 0
    return Done(f"{count} connections of {name} to {path.name} cut")


def restart_race(world: World, rng: random.Random) -> Done:
    """Several stop it and several want it at the same time."""
    moves: list[Callable[[], object]] = [world.stop_daemon] * rng.randint(1, 2)
    moves += [lambda: world.start_daemon(within_s=15.0)] * rng.randint(1, 3)
    rng.shuffle(moves)
    for move in moves:
        world.in_background(move)
    return Done(f"{len(moves)} stop and start at once")


def daemon_failpoint(world: World, rng: random.Random) -> Done:
    """A new daemon that will end, stop or fail at a named place."""
    action = rng.choice(("kill", "kill", "kill", "pause", "raise"))
    entry = f"{rng.choice(DAEMON_POINTS)}@{rng.choice((1, 1, 2, 5, 20))}:{action}"
    _kill("daemon", world.daemon_pid())
    world.in_background(lambda: world.start_daemon(entry, within_s=10.0))
    return Done(f"daemon armed with {entry}", world.end_armed_daemon)


def adapter_failpoint(world: World, rng: random.Random) -> Done:
    """An adapter is killed, and the next one of its client ends at a named place."""
    adapter = rng.choice(world.adapters)
    action = rng.choice(("kill", "kill", "raise"))
    entry = f"{rng.choice(ADAPTER_POINTS)}@{rng.choice((1, 1, 2, 5))}:{action}"
    adapter.next_failpoint = entry
    _kill(adapter.name, _pid(adapter.process))

    def end() -> None:
        adapter.next_failpoint = ""
        pid = _pid(adapter.process)
        if entry in environment_of(pid):
            _kill(adapter.name, pid)

    return Done(f"{adapter.name} armed with {entry}", end)


FAULTS: Final[dict[str, Callable[[World, random.Random], Done]]] = {
    fault.__name__: fault
    for fault in (
        kill_daemon,
        kill_redis,
        kill_adapter,
        pause_daemon,
        pause_redis,
        pause_adapter,
        outlast_lease,
        full_disk,
        clock,
        cut,
        restart_race,
        daemon_failpoint,
        adapter_failpoint,
    )
}


def _pid(process: object) -> int | None:
    """Of a child that has not been waited for, so the number is still its own."""
    return getattr(process, "pid", None) if getattr(process, "returncode", 0) is None else None


def _kill(name: str, pid: int | None) -> Done:
    return Done(f"kill {name}" if _signal(pid, signal.SIGKILL) else f"kill {name}: not there")


def _pause(name: str, pid: int | None) -> Done:
    if not _signal(pid, signal.SIGSTOP):
        return Done(f"pause {name}: not there")
    return Done(f"pause {name}", lambda: _signal(pid, signal.SIGCONT))


def _signal(pid: int | None, number: signal.Signals) -> bool:
    if pid is None:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _shut_down(pid: int, path: Path) -> int:
    """Shut every connection of another process to that socket; how many there were.

    Linux gives a duplicate of another's descriptor to whoever may trace it. The process itself only
    sees that its connection ended.
    """
    count = 0
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if not os.readlink(entry).startswith("socket:"):
                        continue
                    descriptor = libc.syscall(_PIDFD_GETFD, process, int(entry.name), 0)
                    if descriptor < 0:
                        continue
                    with socket.socket(fileno=descriptor) as connected:
                        if connected.getpeername() == str(path):
                            connected.shutdown(socket.SHUT_RDWR)
                            count += 1
        finally:
            os.close(process)
    return count
