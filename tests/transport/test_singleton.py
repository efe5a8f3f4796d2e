"""The runtime folder and the locks: one place per user, one daemon per place."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentbus.errors import ForbiddenError, NotFoundError
from agentbus.transport import singleton
from agentbus.transport.singleton import (
    DaemonLock,
    Place,
    RuntimePaths,
    bind_socket,
    check_directory,
    holder_pid,
    prepare_directory,
    remove_socket,
    runtime_directory,
)

UID = os.getuid()
ROOT = Path(__file__).parents[2]
as_root = pytest.mark.skipif(UID != 0, reason="giving a file to another user takes root")


@pytest.fixture
def paths(folder: Path) -> RuntimePaths:
    paths = RuntimePaths(folder / "run")
    prepare_directory(paths, UID)
    return paths


@pytest.fixture
def lock(paths: RuntimePaths) -> DaemonLock:
    lock = DaemonLock(paths.lock)
    assert lock.acquire()
    return lock


# Where


def test_place_depends_on_home_and_nothing_else() -> None:
    plain = runtime_directory({"HOME": "/home/sam", "PATH": "/bin"}, 1000)
    rich = {
        "HOME": "/home/sam/",
        "XDG_RUNTIME_DIR": "/run/user/1000",
        "XDG_STATE_HOME": "/elsewhere",
        "TMPDIR": "/var/tmp",
        "USER": "max",
    }
    assert runtime_directory(rich, 1000) == plain
    assert plain.directory == Path("/home/sam/.local/state/agentbus/run")


@pytest.mark.parametrize("env", [{}, {"HOME": ""}, {"HOME": "relative"}])
def test_home_comes_from_the_user_database_when_the_variable_is_of_no_use(
    env: dict[str, str],
) -> None:
    home = pwd.getpwuid(UID).pw_dir
    assert runtime_directory(env, UID) == runtime_directory({"HOME": home}, UID)


def test_user_without_home_is_told_to_set_it() -> None:
    with pytest.raises(ForbiddenError, match="set HOME"):
        runtime_directory({}, 2**31 - 7)


def test_override_is_taken_as_it_is() -> None:
    paths = runtime_directory({"HOME": "/home/sam", "AGENTBUS_RUNTIME_DIR": "/tmp/x/"}, 1000)
    assert paths.directory == Path("/tmp/x")
    with pytest.raises(ForbiddenError, match="absolute"):
        runtime_directory({"HOME": "/home/sam", "AGENTBUS_RUNTIME_DIR": "x"}, 1000)


def test_longest_path_that_a_socket_can_have_is_used_and_one_more_byte_is_not(
    folder: Path,
) -> None:
    fixed = len(os.fsencode(folder / "x" / "daemon.sock")) - 1
    fits = folder / ("x" * (singleton.SOCKET_PATH_BYTES - 1 - fixed))
    paths = runtime_directory({"AGENTBUS_RUNTIME_DIR": str(fits)}, UID)
    assert paths.directory == fits
    prepare_directory(paths, UID)
    lock = DaemonLock(paths.lock)
    lock.acquire()
    bind_socket(paths, lock, UID).close()  # the kernel agrees
    lock.release()
    too_long = runtime_directory({"AGENTBUS_RUNTIME_DIR": f"{fits}x"}, UID)
    assert too_long.directory.parent == Path("/tmp")


def test_too_long_home_gives_both_sides_the_same_short_folder_of_their_own() -> None:
    home = "/home/" + "ä" * 50
    one = runtime_directory({"HOME": home}, 1000)
    other = runtime_directory({"HOME": home, "XDG_RUNTIME_DIR": "/run/user/1000"}, 1000)
    assert one == other
    assert len(os.fsencode(one.redis_socket)) < 104
    assert len(os.fsencode(one.socket)) < 104
    assert runtime_directory({"HOME": home}, 1001) != one
    assert runtime_directory({"HOME": home + "x"}, 1000) != one


# The folder


def test_folder_is_made_private_whatever_the_umask(folder: Path) -> None:
    paths = RuntimePaths(folder / "a" / "b" / "run")
    before = os.umask(0)
    try:
        prepare_directory(paths, UID)
    finally:
        os.umask(before)
    assert stat.S_IMODE(paths.directory.stat().st_mode) == 0o700


def test_folder_may_be_prepared_by_many_at_once(folder: Path) -> None:
    paths = RuntimePaths(folder / "a" / "b" / "run")
    failures: list[BaseException] = []

    def prepare() -> None:
        try:
            prepare_directory(paths, UID)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=prepare) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_absent_folder_is_not_found(folder: Path) -> None:
    with pytest.raises(NotFoundError):
        check_directory(RuntimePaths(folder / "nothing"), UID)


def test_folder_that_is_a_symbolic_link_is_refused(folder: Path, paths: RuntimePaths) -> None:
    link = folder / "link"
    link.symlink_to(paths.directory)
    with pytest.raises(ForbiddenError, match="symbolic link"):
        prepare_directory(RuntimePaths(link), UID)


def test_dangling_link_in_the_folders_place_is_refused(folder: Path) -> None:
    link = folder / "link"
    link.symlink_to(folder / "nothing")
    with pytest.raises(ForbiddenError, match="symbolic link"):
        prepare_directory(RuntimePaths(link), UID)
    assert not (folder / "nothing").exists()


def test_file_in_the_folders_place_is_refused(folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(ForbiddenError, match="not a folder"):
        prepare_directory(RuntimePaths(folder / "file"), UID)


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o770, 0o666, 0o500])
def test_folder_of_another_mode_is_refused_with_the_way_to_mend_it(
    paths: RuntimePaths, mode: int
) -> None:
    paths.directory.chmod(mode)
    with pytest.raises(ForbiddenError, match=f"chmod 700 {paths.directory}"):
        prepare_directory(paths, UID)
    paths.directory.chmod(0o700)
    prepare_directory(paths, UID)


@as_root
def test_folder_of_another_user_is_refused(paths: RuntimePaths) -> None:
    os.chown(paths.directory, 4242, -1)
    with pytest.raises(ForbiddenError, match="user 4242"):
        prepare_directory(paths, UID)


# The lock


def test_lock_is_held_by_one_and_free_after_release(paths: RuntimePaths) -> None:
    first, second = DaemonLock(paths.lock), DaemonLock(paths.lock)
    assert first.acquire()
    assert first.held
    assert not second.acquire(retry_s=0.0)
    assert second.held_by_another()
    assert not first.held_by_another()
    assert holder_pid(paths.lock) == os.getpid()
    first.release()
    assert not second.held_by_another()
    assert second.acquire()


def test_lock_file_is_private_and_stays(paths: RuntimePaths, lock: DaemonLock) -> None:
    assert stat.S_IMODE(paths.lock.stat().st_mode) == 0o600
    lock.release()
    assert paths.lock.exists()


def test_acquire_outlasts_somebody_who_only_looks(paths: RuntimePaths) -> None:
    looker, lock = DaemonLock(paths.lock), DaemonLock(paths.lock)
    assert looker.acquire()
    release = threading.Timer(0.05, looker.release)
    release.start()
    assert lock.acquire(retry_s=10.0)
    release.join()


def test_lock_file_that_is_a_link_or_no_file_is_refused(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "target")
    with pytest.raises(ForbiddenError, match="symbolic link"):
        DaemonLock(folder / "link").acquire()
    assert not (folder / "target").exists()
    os.mkfifo(folder / "fifo")
    with pytest.raises(ForbiddenError, match="regular file"):
        DaemonLock(folder / "fifo").acquire()


def test_pid_in_the_lock_file_proves_nothing(paths: RuntimePaths) -> None:
    paths.lock.write_text(f"{os.getppid()}\n")  # a living process that is no daemon
    assert not DaemonLock(paths.lock).held_by_another()
    assert DaemonLock(paths.lock).acquire()
    paths.lock.write_text("nonsense")
    assert holder_pid(paths.lock) is None
    assert holder_pid(paths.directory / "none") is None


_CONTEND = """
import sys
from pathlib import Path
from agentbus.transport.singleton import DaemonLock
lock = DaemonLock(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
print("won" if lock.acquire(retry_s=0.0) else "lost", flush=True)
sys.stdin.readline()
"""


def test_one_of_several_processes_gets_the_lock_and_its_death_frees_it(
    paths: RuntimePaths,
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _CONTEND, str(paths.lock)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        for _ in range(6)
    ]
    outcomes = []
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout is not None
        outcomes.append(process.stdout.readline().strip())
    assert sorted(outcomes) == ["lost"] * 5 + ["won"]
    lock = DaemonLock(paths.lock)
    assert lock.held_by_another()
    winner = processes[outcomes.index("won")]
    assert holder_pid(paths.lock) == winner.pid
    winner.send_signal(signal.SIGKILL)
    for process in processes:
        process.communicate()
    assert lock.acquire()


# The socket


def test_socket_is_private(paths: RuntimePaths, lock: DaemonLock) -> None:
    before = os.umask(0)
    try:
        listening = bind_socket(paths, lock, UID)
    finally:
        os.umask(before)
    assert stat.S_IMODE(paths.socket.stat().st_mode) == 0o600
    listening.close()


def test_socket_of_a_dead_daemon_is_replaced(paths: RuntimePaths, lock: DaemonLock) -> None:
    bind_socket(paths, lock, UID).close()  # leaves its name behind
    with bind_socket(paths, lock, UID), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(paths.socket))


def test_socket_is_for_the_holder_of_the_lock_only(folder: Path, paths: RuntimePaths) -> None:
    other = DaemonLock(folder / "other")
    other.acquire()
    for lock in (DaemonLock(paths.lock), other):
        with pytest.raises(AssertionError):
            bind_socket(paths, lock, UID)


def test_what_is_no_socket_of_ours_is_refused_and_kept(
    folder: Path, paths: RuntimePaths, lock: DaemonLock
) -> None:
    paths.socket.write_text("precious")
    with pytest.raises(ForbiddenError, match="not a socket"):
        bind_socket(paths, lock, UID)
    assert paths.socket.read_text() == "precious"
    paths.socket.unlink()
    paths.socket.symlink_to(folder / "elsewhere")
    with pytest.raises(ForbiddenError, match="symbolic link"):
        bind_socket(paths, lock, UID)
    assert paths.socket.is_symlink()


@as_root
def test_socket_of_another_user_is_refused(paths: RuntimePaths, lock: DaemonLock) -> None:
    bind_socket(paths, lock, UID).close()
    os.chown(paths.socket, 4242, -1)
    with pytest.raises(ForbiddenError, match="user 4242"):
        bind_socket(paths, lock, UID)
    assert paths.socket.exists()


def test_what_another_daemon_has_put_there_meanwhile_is_not_removed(
    paths: RuntimePaths, lock: DaemonLock
) -> None:
    bind_socket(paths, lock, UID).close()
    place = Place(paths, lock)
    assert place.is_ours()
    for made in (paths.socket, paths.lock):
        made.unlink()
    assert not place.is_ours()
    successor = DaemonLock(paths.lock)
    assert successor.acquire()
    bind_socket(paths, successor, UID).close()
    assert not place.is_ours()
    assert Place(paths, successor).is_ours()
    remove_socket(paths, lock)
    assert paths.socket.exists()
    successor.release()


def test_socket_is_removed_at_an_orderly_end(paths: RuntimePaths, lock: DaemonLock) -> None:
    bind_socket(paths, lock, UID).close()
    remove_socket(paths, DaemonLock(paths.lock))
    assert paths.socket.exists()
    remove_socket(paths, lock)
    assert not paths.socket.exists()
    remove_socket(paths, lock)
