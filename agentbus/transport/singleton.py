"""Where the daemon of a user lives, and the locks that make it the only one.

Owns: the runtime folder (its place and its checks), the lock files, the socket's path. Never:
starts a daemon (launch.py), trusts a pid. Plain functions, any thread, both sides of the socket.

    runtime_directory(env, uid) -> RuntimePaths       # where; touches nothing
    prepare_directory(paths, uid)                     # create or check it: ours, 0700, no symlink
    check_directory(paths, uid)                       # check only; NotFoundError when it is absent
    DaemonLock(path).acquire() -> bool; .release(); .held_by_another() -> bool; holder_pid(path)
    bind_socket(paths, lock, uid) -> socket.socket    # for the holder of the lock only
    remove_socket(paths, lock)
    Place(paths, lock).is_ours()                      # clients that look for us still find us

The place depends on HOME and the user id and on nothing else, because harnesses pass different
environments and two adapters must never compute two sockets.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pwd
import socket
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentbus.errors import BusError, ForbiddenError, NotFoundError, UnavailableError

SOCKET_PATH_BYTES: Final = 104 if sys.platform == "darwin" else 108
"""Size of `sun_path`, terminating NUL included: a path of so many bytes does not fit any more."""

BACKLOG: Final = 128
LOCK_RETRY_S: Final = 0.2
"""How long `acquire` tries again: `held_by_another` holds the lock itself for an instant."""

EXIT_CONFIGURATION: Final = 2
EXIT_DATABASE: Final = 65
EXIT_ALREADY_RUNNING: Final = 75
"""Exit codes of the daemon, each with one readable line on stderr: the configuration is refused,
the database is, another daemon holds the lock."""

_HASH_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class RuntimePaths:
    """Everything in the runtime folder. All names are fixed, so both sides agree."""

    directory: Path

    @property
    def socket(self) -> Path:
        """Clients connect here."""
        return self.directory / "daemon.sock"

    @property
    def lock(self) -> Path:
        """Held by the daemon as long as it lives."""
        return self.directory / "lock"

    @property
    def start_lock(self) -> Path:
        """Held by the one process that is starting a daemon."""
        return self.directory / "start.lock"

    @property
    def refusal(self) -> Path:
        """Why the last start was refused, if it was."""
        return self.directory / "refused"

    @property
    def exposures(self) -> Path:
        """Adapters note here what clients may have seen, a file per session."""
        return self.directory / "exposed"

    @property
    def redis_socket(self) -> Path:
        """The private Redis listens here."""
        return self.directory / "redis.sock"


def runtime_directory(env: Mapping[str, str], uid: int) -> RuntimePaths:
    """The runtime folder of this user. Depends on HOME, the uid, and the tests' override only."""
    override = env.get("AGENTBUS_RUNTIME_DIR", "")
    if override:
        if not os.path.isabs(override):
            raise ForbiddenError(
                f"AGENTBUS_RUNTIME_DIR must be an absolute path, not {override!r}; correct it"
            )
        directory = Path(os.path.normpath(override))
    else:
        home = env.get("HOME", "")
        if not os.path.isabs(home):  # unset, empty or of no use
            home = _home_of(uid)
        directory = Path(os.path.normpath(home)) / ".local" / "state" / "agentbus" / "run"
    paths = RuntimePaths(directory)
    longest = max(len(os.fsencode(path)) for path in (paths.socket, paths.redis_socket))
    if longest < SOCKET_PATH_BYTES:
        return paths
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:_HASH_CHARACTERS]
    return RuntimePaths(Path(f"/tmp/agentbus-{uid}-{digest}"))


def _home_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        raise ForbiddenError(
            f"HOME is not set and user {uid} is not in the user database; set HOME"
        ) from None


def prepare_directory(paths: RuntimePaths, uid: int) -> None:
    """Create the runtime folder, or check the one that is there. Safe for many at once."""
    directory = paths.directory
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)  # one step: it never exists with another mode
    except FileExistsError:
        pass  # checked below, whoever made it
    except OSError as error:
        raise ForbiddenError(f"cannot create {directory}: {error.strerror}") from None
    check_directory(paths, uid)


def check_directory(paths: RuntimePaths, uid: int) -> None:
    """Refuse a runtime folder that somebody else could put a socket into."""
    directory = paths.directory
    try:
        found = os.lstat(directory)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"runtime folder {directory} does not exist") from None
    except OSError as error:
        raise ForbiddenError(f"cannot look at {directory}: {error.strerror}") from None
    if stat.S_ISLNK(found.st_mode):
        raise ForbiddenError(
            f"runtime folder {directory} is a symbolic link; remove it, it is made anew as a folder"
        )
    if not stat.S_ISDIR(found.st_mode):
        raise ForbiddenError(f"runtime folder {directory} is not a folder; remove it")
    if found.st_uid != uid:
        raise ForbiddenError(
            f"runtime folder {directory} belongs to user {found.st_uid}, not to {uid}; "
            "have its owner remove it"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077 or mode & 0o700 != 0o700:
        raise ForbiddenError(
            f"runtime folder {directory} has mode {mode:04o}, must be 0700; "
            f"run: chmod 700 {directory}"
        )


class DaemonLock:
    """An exclusive lock on a file, freed by the kernel when its holder ends in whatever way.

    The file stays: unlinking it would let two processes lock two files of one name. The pid inside
    is for messages only.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """By this object."""
        return self._descriptor is not None

    def acquire(self, retry_s: float = LOCK_RETRY_S) -> bool:
        """Take the lock. False: another process has it."""
        give_up_s = time.monotonic() + retry_s
        while not self._try():
            if time.monotonic() >= give_up_s:
                return False
            time.sleep(0.01)
        assert self._descriptor is not None
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the pid as well
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"%d\n" % os.getpid(), 0)
        return True

    def release(self) -> None:
        """Give the lock back; nothing happens when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def in_place(self) -> bool:
        """Whether what is held is still what others find under the name."""
        return self._descriptor is not None and os.fstat(self._descriptor).st_ino == _inode(
            self.path
        )

    def held_by_another(self) -> bool:
        """Whether some other process has the lock now. Takes it for an instant to find out."""
        if self.held:
            return False
        taken = self._try()
        self.release()
        return not taken

    def _try(self) -> bool:
        if self._descriptor is not None:
            return True
        descriptor = _open_lock(self.path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise UnavailableError(
                f"cannot lock {self.path}: {error.strerror}; use a local file system"
            ) from None
        self._descriptor = descriptor
        return True


def holder_pid(path: Path) -> int | None:
    """The pid in a lock file, for messages: it may be that of a process long gone."""
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _open_lock(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise _unusable(f"lock file {path}", error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ForbiddenError(f"lock file {path} is not a regular file; remove it")
    return descriptor


def _unusable(what: str, error: OSError) -> BusError:
    if error.errno == errno.ELOOP:
        return ForbiddenError(f"{what} is a symbolic link; remove it")
    return ForbiddenError(f"{what} cannot be opened: {error.strerror}")


def bind_socket(paths: RuntimePaths, lock: DaemonLock, uid: int) -> socket.socket:
    """The listening socket. Replaces the one of a daemon that died.

    Only the lock proves that its owner is dead, so only the lock's holder may call this; what is
    not a socket of ours is never removed.
    """
    if not (lock.held and lock.path == paths.lock):
        raise AssertionError("only the holder of the daemon lock may bind the socket")
    check_directory(paths, uid)
    _remove_stale(paths.socket, uid)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(os.fspath(paths.socket))  # the folder's 0700 protects it meanwhile
        os.chmod(paths.socket, 0o600)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise UnavailableError(f"cannot listen on {paths.socket}: {error.strerror}") from None
    return listening


class Place:
    """The names by which this daemon is found: the lock's and the socket's.

    Somebody who cleans up may remove them. Then nobody reaches the daemon any more, and what has
    the names now may be another daemon's.
    """

    def __init__(self, paths: RuntimePaths, lock: DaemonLock) -> None:
        self._lock = lock
        self._socket = paths.socket
        self._inode = _inode(paths.socket)

    def is_ours(self) -> bool:
        """Three system calls."""
        return self._lock.in_place() and _inode(self._socket) == self._inode


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def remove_socket(paths: RuntimePaths, lock: DaemonLock) -> None:
    """At an orderly end, before the lock is released: clients see at once that nobody is there."""
    if lock.held and lock.path == paths.lock and lock.in_place():
        with contextlib.suppress(FileNotFoundError):
            paths.socket.unlink()


def _remove_stale(path: Path, uid: int) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a socket"
        raise ForbiddenError(f"{path} is {kind}; look what it is and remove it")
    if found.st_uid != uid:
        raise ForbiddenError(
            f"{path} belongs to user {found.st_uid}, not to {uid}; have its owner remove it"
        )
    path.unlink()
