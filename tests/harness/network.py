"""A network that has nothing but loopback, so that no command line under test can reach outside.

Owns the network namespace of the test's thread while the context lasts (Linux, as root; elsewhere
nothing is changed). Processes and threads started inside it inherit the namespace. Main thread.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_IFREQ = "16sh14x"


@contextmanager
def loopback_only() -> Iterator[bool]:
    """Whether this platform and user allow it; what runs inside must not count on it."""
    if not sys.platform.startswith("linux") or os.getuid() != 0:
        yield False
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/self/task/{os.getpid()}/ns/net") as outside:
        if libc.unshare(_CLONE_NEWNET):  # a container may forbid it even to root
            yield False
            return
        try:
            _bring_loopback_up()
            yield True
        finally:
            if libc.setns(outside.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "cannot return to the network of this machine")


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack(_IFREQ, b"lo", 0)
        _, flags = struct.unpack(_IFREQ, fcntl.ioctl(control, _SIOCGIFFLAGS, request))
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack(_IFREQ, b"lo", flags | _IFF_UP))
