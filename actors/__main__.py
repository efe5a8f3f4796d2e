"""The daemon process: `python -m actors [--detach | --foreground] [--config PATH]`.

Takes the locks, reads the configuration, starts the system, waits for a signal or a request to
stop, and ends it in order. Exit codes: 0 after an orderly stop, 1 after a failure; with one
readable line on stderr, 2 when it cannot start as it is configured (Redis included), 65 for a
refused database, 75 when another daemon already runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from docopt import docopt

from actors.detaching import detach
from actors.system import System
from agentbus.config import Config, load_config
from agentbus.descriptors import raise_descriptor_limit
from agentbus.errors import BusError, ForbiddenError
from agentbus.logs import setup_logging
from agentbus.store.connection import DatabaseUnusable
from agentbus.transport.refusals import forget_refusal, note_refusal
from agentbus.transport.singleton import (
    EXIT_ALREADY_RUNNING,
    EXIT_CONFIGURATION,
    EXIT_DATABASE,
    DaemonLock,
    Place,
    RuntimePaths,
    prepare_directory,
    runtime_directory,
)

USAGE = """Usage: actors [--config PATH] [--detach | --foreground]

Options:
  --config PATH  Configuration file.
  --detach       Go on in a process that descends from nobody who is left; end when it serves.
  --foreground   Log to stderr instead of the log file.
"""

EXIT_OK = 0
EXIT_FAILURE = 1

SWITCH_INTERVAL_SECONDS = 0.001
"""Python's own 5 ms would be the daemon's tail latency: it is what a waiting thread pays for each
step while another one computes."""

LOOK_SECONDS = 0.5
"""A signal that comes just before the main thread begins to wait does not end that wait; its
handler runs when the wait is over. And how soon a runtime folder that was cleared is noticed."""

_log = logging.getLogger("actors.daemon")


def main(argv: list[str] | None = None) -> int:
    arguments = docopt(USAGE, argv)
    tell_starter = detach() if arguments["--detach"] else _nobody_waits
    try:
        path = arguments["--config"]
        config = load_config(Path(path) if path else None)
        code = _run(config, lambda: tell_starter(EXIT_OK), foreground=arguments["--foreground"])
    except DatabaseUnusable as error:
        code = _refuse(str(error), EXIT_DATABASE)
    except BusError as error:
        code = _refuse(str(error), EXIT_CONFIGURATION)
    tell_starter(code)  # heard only if it does not serve by then
    return code


def _nobody_waits(_code: int) -> None:
    """Whoever started this process has it as its child."""


def _run(config: Config, serves: Callable[[], None], *, foreground: bool) -> int:
    paths = runtime_directory(os.environ, os.getuid())
    prepare_directory(paths, os.getuid())
    _make_folder(config.data_directory)
    lock, data_lock = DaemonLock(paths.lock), DaemonLock(config.data_directory / "lock")
    if not lock.acquire():
        return _refuse("another daemon already runs for this user", EXIT_ALREADY_RUNNING)
    forget_refusal(paths)
    try:
        if not data_lock.acquire():
            problem = f"another daemon already uses {config.data_directory}"
            return _refuse(
                f"{problem}; stop it, or choose another data_directory", EXIT_CONFIGURATION
            )
        log_path = None if foreground else config.data_directory / "logs" / "daemon.log"
        if log_path is not None:
            _make_folder(log_path.parent)
        _begin_log(log_path, config.log_level)
        return _serve(config, paths, lock, serves, foreground=foreground)
    finally:
        data_lock.release()
        lock.release()


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ForbiddenError(
            f"cannot make the folder {path}: {error.strerror}; repair it, or choose another "
            "data_directory"
        ) from None


def _begin_log(path: Path | None, level: str) -> None:
    try:
        setup_logging(path, level)
    except OSError as error:
        raise ForbiddenError(
            f"cannot open the log {path}: {error.strerror}; repair it, or choose another "
            "data_directory"
        ) from None


def _serve(
    config: Config,
    paths: RuntimePaths,
    lock: DaemonLock,
    serves: Callable[[], None],
    *,
    foreground: bool,
) -> int:
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    raise_descriptor_limit()  # about four per attachment
    system = System(config, paths, lock)
    signals = _catch_signals()
    system.start()
    _end_at_signal(signals, system)
    _log.info("daemon %d serves %s", os.getpid(), paths.socket)
    place = Place(paths, lock)
    explains = not foreground
    while not system.wait(LOOK_SECONDS):
        if not place.is_ours():
            system.give_up(f"{paths.directory} was cleared by somebody: nobody finds this daemon")
        if explains and system.redis_started:
            _let_go_of_stderr()
            serves()
            explains = False
    clean = system.stop()
    if not clean:
        _log.error("something was still busy after the grace; ending without it")
        logging.shutdown()
        os._exit(EXIT_FAILURE)  # a thread that hangs would keep the process alive
    if system.refusal is not None:
        raise system.refusal
    if system.failure is not None:
        _log.error("daemon ends: %s", system.failure)
        return EXIT_FAILURE
    _log.info("daemon ended in order")
    return 0


def _catch_signals() -> int:
    """From here on a signal to end is a byte to read from the descriptor that is returned.

    Python runs a handler on the main thread, at its next step. A signal that comes just before
    that thread falls asleep would wait with it, so what C writes at once is read instead.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reading


def _end_at_signal(signals: int, system: System) -> None:
    """A signal that came during the start counts too: its byte waits."""

    def watch() -> None:
        while os.read(signals, 1):
            system.ask_to_end()

    threading.Thread(target=watch, name="signals", daemon=True).start()


def _let_go_of_stderr() -> None:
    """It belongs to whoever started us and was kept only to explain a failed start."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stderr.fileno())
    os.close(null)


def _refuse(problem: str, code: int) -> int:
    """One readable line for whoever started this process, and for `agentbus status` later."""
    sys.stderr.write(f"agentbus: {problem}\n")
    if code != EXIT_ALREADY_RUNNING:
        with contextlib.suppress(ForbiddenError):
            note_refusal(runtime_directory(os.environ, os.getuid()), problem)
    return code


if __name__ == "__main__":
    sys.exit(main())
