"""Processes that have run out of something, made on purpose and within bounds."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from agentbus.limits import MIB

OBEYS_PERMISSIONS = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
if os.geteuid() == 0:
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        if ctypes.CDLL(None, use_errno=True).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            sys.exit("cannot give up the right to pass over permissions")
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A program that runs its arguments so that, even as root, they may not write where a folder's mode
says so."""


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """In this process, which cannot open anything meanwhile. Other threads feel it too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    # Descriptors are given lowest first: none below the lowest free one is free.
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def obeying_permissions(command: list[str]) -> list[str]:
    """The command, without root's right to write everywhere."""
    return [sys.executable, "-c", OBEYS_PERMISSIONS, *command]


CAN_MOUNT = sys.platform == "linux" and os.geteuid() == 0 and shutil.which("mount") is not None
MOUNTED_BY = "agentbus-test-"
"""What a file system of a test is called, before the process id of whoever mounted it."""


def mount(folder: Path, size_bytes: int) -> None:
    """A file system of that size on `folder`, which is made; needs `CAN_MOUNT`.

    It is the caller's to unmount. What somebody left who was killed before that is unmounted here.
    Raises OSError.
    """
    _unmount_what_is_left()
    folder.mkdir(mode=0o700, exist_ok=True)
    options = f"size={size_bytes},mode=0700"
    name = f"{MOUNTED_BY}{os.getpid()}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, name, str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        raise OSError(mounted.stderr)


def unmount(folder: Path) -> None:
    """Also while somebody still has a file of it open: then it goes with the last of them."""
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _unmount_what_is_left() -> None:
    for line in Path("/proc/mounts").read_text().splitlines():
        name, folder, *_ = line.split()
        pid = name.removeprefix(MOUNTED_BY)
        if pid != name and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(subprocess.CalledProcessError):  # another one was quicker
                unmount(Path(folder))


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int = 2 * MIB) -> Iterator[None]:
    """A file system of that size on `folder`; needs `CAN_MOUNT`."""
    mount(folder, size_bytes)
    try:
        yield
    finally:
        unmount(folder)


def fill(folder: Path) -> Path:
    """Take all room that is left; the file that has it."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return ballast
