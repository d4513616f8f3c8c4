"""From a client to a server over unix sockets: directly, and through the transport."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qrm.metrics import Metrics
from qrm.shim.exchange import Handlers
from qrm.shim.transport import Limits, Transport
from tests.shim.frames.peer import Manners, Peer
from tests.support import PATIENCE


@dataclass
class Road:
    """Where clients connect, and where their connections come out."""

    entry: Path
    transport: Transport | None = None
    troubles: list[str] = field(default_factory=list)
    """What the event loop was told of exceptions that nobody handled."""
    _arrivals: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=asyncio.Queue)
    _peers: list[Peer] = field(default_factory=list)

    async def connect(self, client: Manners | None = None, server: Manners | None = None) -> tuple[Peer, Peer]:
        """A new connection's two ends, both of which have said their first words."""
        near = await self.client(client)
        far = await self.server(server)
        near.opposite, far.opposite = far, near
        return near, far

    async def client(self, manners: Manners | None = None) -> Peer:
        """A new connection's near end."""
        reader, writer = await asyncio.open_unix_connection(self.entry, limit=1 << 18)
        peer = Peer(reader, writer, client=True, manners=manners or Manners())
        self._peers.append(peer)
        await peer.start()
        return peer

    async def server(self, manners: Manners | None = None) -> Peer:
        """The far end of the connection that arrived first of those that were not asked for yet."""
        reader, writer = await asyncio.wait_for(self.arrival(), PATIENCE)
        peer = Peer(reader, writer, client=False, manners=manners or Manners())
        self._peers.append(peer)
        await peer.start()
        return peer

    async def arrival(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The far end of a connection, bare."""
        return await self._arrivals.get()

    def forget_arrived(self) -> None:
        """Close what has arrived and nobody asked for."""
        while not self._arrivals.empty():
            self._arrivals.get_nowait()[1].close()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection that arrives."""
        await self._arrivals.put((reader, writer))

    async def close(self) -> None:
        """End what was opened, and what has arrived."""
        for peer in list(self._peers):
            await self.drop(peer)
        self.forget_arrived()

    async def drop(self, peer: Peer) -> None:
        """End a connection's end, and remember nothing of it."""
        self._peers.remove(peer)
        await peer.close()


@asynccontextmanager
async def direct(folder: Path) -> AsyncIterator[Road]:
    """Nothing in between."""
    path = folder / "server.sock"
    road = Road(path)
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: road.troubles.append(_trouble(context)))
    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(road.accept, path, limit=1 << 18)
    try:
        yield road
        await road.close()
        assert not road.troubles
    finally:
        await road.close()
        server.close()
        loop.set_exception_handler(handler)


@asynccontextmanager
async def through(folder: Path, handlers: Handlers | None = None, limits: Limits | None = None) -> AsyncIterator[Road]:
    """The transport in between; without `handlers` it intercepts nothing."""
    async with direct(folder) as road:
        listener = listening(folder / "shim.sock")
        transport = Transport(folder / "server.sock", handlers or {}, Metrics(), limits or Limits())
        await transport.listen(listener)
        road.entry, road.transport = folder / "shim.sock", transport
        try:
            yield road
        finally:
            await transport.close()
            listener.close()


def listening(path: Path) -> socket.socket:
    """A listening unix socket at `path`."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    listener.bind(str(path))
    listener.listen(128)
    return listener


def _trouble(context: Mapping[str, Any]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r}"
