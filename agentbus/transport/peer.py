"""Who is at the other end of a Unix socket, as the kernel knows it.

Owns: reading peer credentials on Linux and macOS. Never: decides what they allow. Any thread.
"""

from __future__ import annotations

import socket
import struct
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """Credentials of the peer when it connected; `pid` is None where the kernel does not say."""

    uid: int
    pid: int | None


if sys.platform == "darwin":
    _SOL_LOCAL = 0
    _LOCAL_PEERCRED = 1  # struct xucred {u_int version; uid_t uid; short ngroups; gid_t groups[16]}
    _LOCAL_PEERPID = 2
    _XUCRED = struct.Struct("IIh2x16I")

    def peer_of(connection: socket.socket) -> Peer:
        """Raises OSError when the peer is already gone."""
        credentials = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size)
        _version, uid, *_ = _XUCRED.unpack(credentials)
        try:
            pid: int | None = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID)
        except OSError:
            pid = None
        return Peer(uid=uid, pid=pid)

else:
    _UCRED = struct.Struct("iII")  # pid, uid, gid

    def peer_of(connection: socket.socket) -> Peer:
        """Raises OSError when the peer is already gone."""
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        pid, uid, _gid = _UCRED.unpack(credentials)
        return Peer(uid=uid, pid=pid or None)
