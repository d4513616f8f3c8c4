"""Which devices' qdiscs, classes and filters others have changed: the kernel tells, so that nobody has to look.

To read the filters of 250 veths costs hundreds of requests; what has been compared once needs to be compared again only
when the kernel has announced a change.
"""

from __future__ import annotations

import errno
import socket
import struct

_GROUP = 1 << 3
"""RTMGRP_TC (kernel uapi linux/rtnetlink.h)."""
_BUFFER = 4 << 20
"""Bytes: some two thousand announcements."""
_SO_RCVBUFFORCE = 33
"""Beyond net.core.rmem_max (socket(7)); needs CAP_NET_ADMIN, as all that is done here."""
_TYPES = frozenset((36, 37, 40, 41, 44, 45))
"""RTM_NEWQDISC, RTM_DELQDISC, RTM_NEWTCLASS, RTM_DELTCLASS, RTM_NEWTFILTER, RTM_DELTFILTER."""
_HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence, port of the author."""
_INDEX = struct.Struct("=i")
_INDEX_OFFSET = _HEADER.size + 4
"""Of tcm_ifindex in struct tcmsg."""


class Watch:
    """A socket that collects the kernel's announcements about tc in the thread's network namespace."""

    def __init__(self, ours: int) -> None:
        """What the netlink port `ours` changes is not news."""
        self._ours = ours
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        self._socket.bind((0, _GROUP))

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def changed(self) -> frozenset[int] | None:
        """The devices that others have touched since the last call; None: too many to tell, so perhaps all."""
        found: set[int] = set()
        lost = False
        while True:
            try:
                found |= changed_devices(self._socket.recv(1 << 17), self._ours)
            except BlockingIOError:
                return None if lost else frozenset(found)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                lost = True


def changed_devices(data: bytes, ours: int) -> set[int]:
    """The device of each announcement in one read of the socket, without those of the author `ours`. Pure."""
    found, start = set(), 0
    while start + _HEADER.size <= len(data):
        length, kind, _, _, author = _HEADER.unpack_from(data, start)
        if length < _HEADER.size:
            break
        if kind in _TYPES and author != ours and start + _INDEX_OFFSET + _INDEX.size <= len(data):
            found.add(_INDEX.unpack_from(data, start + _INDEX_OFFSET)[0])
        start += (length + 3) & ~3
    return found
