"""Connections as asyncio sees them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import cast

import structlog

from qrm.shim.http2.connection import Connection
from qrm.shim.http2.frames import INTERNAL_ERROR, ProtocolError
from qrm.shim.http2.link import Link
from qrm.shim.http2.sending import Bytes

log = structlog.get_logger(__name__)

_LINGER = 5.0
"""Seconds that a peer gets to read what was sent, and to close its side."""
_PAUSE = 1.0
"""Seconds before the next try where the process can take no more connections."""
_AT_ONCE = 64
"""Connections accepted before others get their turn."""


class Edge(asyncio.Protocol):
    """A socket, as the connection's wire."""

    def __init__(self, connection: Connection, link: Link) -> None:
        self._connection = connection
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._reading = True
        self._ending = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the socket is closed."""

    # For asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        transport = cast("asyncio.Transport", transport)  # uvloop's is none by its type
        self._transport = transport
        transport.set_write_buffer_limits(high=self._connection.limits.buffer_bytes)
        if self._connection.closed:
            self.abort()
            return
        self._connection.wire = self
        self._link.flush()

    def data_received(self, data: bytes) -> None:
        """A mistake of ours ends one connection, too, not the process's others."""
        try:
            self._connection.receive(data)
        except Exception:
            log.exception("connection given up")
            self._connection.close(ProtocolError(INTERNAL_ERROR, "qrm failed; see its log"))
        self._link.flush()

    def pause_writing(self) -> None:
        """The socket takes nothing more for now."""
        self._connection.paused = True
        self._link.throttle()

    def resume_writing(self) -> None:
        """It does again."""
        self._connection.paused = False
        self._connection.pump()
        self._link.throttle()
        self._link.flush()

    def eof_received(self) -> None:
        """The peer says no more. What waits to be sent to it may never be read: nobody is to wait for that."""
        self._connection.close()
        self._link.flush()

    def connection_lost(self, _: Exception | None) -> None:
        """It is closed, by whomever."""
        if not self.lost.done():
            self.lost.set_result(None)
        self._connection.wire = None
        self._connection.close()
        self._link.flush()

    # For the connection.

    def write(self, *pieces: Bytes) -> None:
        """As Wire."""
        if self._transport is not None and not (self._ending or self._transport.is_closing()):
            self._transport.writelines(pieces)

    def waiting(self) -> int:
        """As Wire."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def close(self, *, at_once: bool) -> None:
        """As Wire. The peer is the first to close its socket.

        One that writes to a socket that is closed already may not read any more what was sent to it before.
        """
        transport = self._transport
        if at_once:
            self.abort()
        elif transport is not None and not (self._ending or transport.is_closing()):
            self.read(on=True)
            self._ending = True
            transport.write_eof()
            asyncio.get_running_loop().call_later(_LINGER, self.abort)

    def abort(self) -> None:
        """Close the socket, whatever is still under way on it."""
        if self._transport is not None:
            self._transport.abort()

    def read(self, *, on: bool) -> None:
        """As Wire."""
        transport = self._transport
        if transport is None or on is self._reading or self._ending or transport.is_closing():
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
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._poll()

    def _poll(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._take)

    def _take(self) -> bool:
        """Accept; whether somebody may still be waiting."""
        for _ in range(_AT_ONCE):
            try:
                made, _address = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return False
            except OSError as error:  # no descriptors or memory: it would be so again at once
                log.warning("no connection taken", error=str(error), next="another try soon")
                self._loop.remove_reader(self._listener.fileno())
                if self._pause is None:
                    self._pause = self._loop.call_later(_PAUSE, self._poll)
                return False
            self._accepted(made)
        return True

    def close(self) -> None:
        """Take who waits already, and stop."""
        while self._take():
            pass
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
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
    """Give a connection its socket, until that is closed."""
    loop = asyncio.get_running_loop()
    edge = Edge(connection, link)
    try:
        # Also for those that we made: uvloop's create_unix_connection(sock=) forgets the socket object where its
        # transport is closed at once, and that closes the descriptor again when it may be somebody else's.
        await loop.connect_accepted_socket(lambda: edge, sock=connected)
        await edge.lost
    except OSError:
        connected.close()
        connection.close()
        link.flush()
    except asyncio.CancelledError:
        edge.abort()
        connected.close()
        raise
