"""Connections as asyncio sees them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import cast

from qrm.shim.http2.connection import Connection
from qrm.shim.http2.link import Link, RuntimeSide

_LINGER = 5.0
"""Seconds that a peer gets to read what was sent before its connection was closed."""
_AT_ONCE = 64
"""Connections accepted before others get their turn."""


class Edge(asyncio.Protocol):
    """A socket, as the connection's wire."""

    def __init__(self, connection: Connection, link: Link) -> None:
        self._connection = connection
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._reading = True

    # For asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is none by its type
        self._transport = transport
        transport.set_write_buffer_limits(high=self._connection.limits.buffer_bytes)
        if self._connection.closed:
            transport.abort()
            return
        self._connection.wire = self
        self._link.flush()

    def data_received(self, data: bytes) -> None:
        self._connection.receive(data)
        self._link.flush()

    def pause_writing(self) -> None:
        self._connection.paused = True
        self._link.throttle()

    def resume_writing(self) -> None:
        self._connection.paused = False
        self._connection.pump()
        self._link.throttle()
        self._link.flush()

    def connection_lost(self, _: Exception | None) -> None:
        self._connection.wire = None
        self._connection.close()
        self._link.flush()

    # For the connection.

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def waiting(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def close(self) -> None:
        transport = self._transport
        if transport is not None:
            transport.close()
            if self.waiting():
                asyncio.get_running_loop().call_later(_LINGER, transport.abort)

    def read(self, *, on: bool) -> None:
        transport = self._transport
        if transport is None or on is self._reading or transport.is_closing():
            return
        self._reading = on
        if on:
            transport.resume_reading()
        else:
            transport.pause_reading()


class Acceptor:
    """Takes connections from a listening socket, which is ours from now on."""

    def __init__(self, listener: socket.socket, accepted: Callable[[socket.socket], None]) -> None:
        self._listener = listener
        self._accepted = accepted
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener.fileno(), self._take)

    def _take(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                made, _address = self._listener.accept()
            except OSError:  # nobody waits, or there are no descriptors: the next event tries again
                return
            self._accepted(made)

    def close(self) -> None:
        """Take who waits already, and stop."""
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        self._take()
        self._listener.close()


def connect(path: Path) -> socket.socket:
    """A socket that is connected to `path`; a unix socket's peer takes it at once or not at all. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.connect(str(path))
    except BaseException:
        made.close()
        raise
    return made


async def attach(connected: socket.socket, connection: Connection, link: Link) -> None:
    """Give a connection its socket."""
    loop = asyncio.get_running_loop()
    try:
        if isinstance(connection, RuntimeSide):
            await loop.create_unix_connection(lambda: Edge(connection, link), sock=connected)
        else:
            await loop.connect_accepted_socket(lambda: Edge(connection, link), sock=connected)
    except OSError:
        with contextlib.suppress(OSError):
            connected.close()
        connection.close()
        link.flush()
