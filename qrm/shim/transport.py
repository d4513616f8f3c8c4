"""The socket that kubelet talks to: HTTP/2 frames pass to the runtime and back, and some calls are held on the way.

Nothing here knows a method by name: what has a handler is held for it, everything else is passed on as it comes,
whether this qrm has ever heard of it or not.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Mapping
from pathlib import Path

from qrm.metrics import Metrics
from qrm.shim.exchange import Handler, Handlers
from qrm.shim.http2.counting import Counting
from qrm.shim.http2.edge import Acceptor, attach, connect
from qrm.shim.http2.limits import Limits
from qrm.shim.http2.link import Link
from qrm.shim.http2.sides import RuntimeSide
from qrm.shim.http2.stream import Call

__all__ = ["Limits", "Transport"]

_HEARD = 1.0
"""Seconds that a client gets to say that it has heard of the end; gRPC's own servers wait for a round trip, too."""

_GLANCE = 0.002
"""Seconds between two looks whether all clients have said so."""

_LIMITS = Limits()


class Transport:
    """Serves kubelet on the sockets that it is given, each connection with one of its own to the runtime."""

    def __init__(self, runtime: Path, handlers: Handlers, metrics: Metrics, limits: Limits = _LIMITS) -> None:
        """`runtime` is the runtime's socket, which need not exist yet; without `handlers` everything passes."""
        self.limits = limits
        self.handlers: Mapping[bytes, Handler] = {path.encode(): handler for path, handler in handlers.items()}
        self._runtime = runtime
        self._counting = Counting(metrics)
        self._acceptors: list[Acceptor] = []
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._attached: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def connections(self) -> int:
        """Clients that are connected."""
        return len(self._links)

    @property
    def streams(self) -> int:
        """Calls that are under way."""
        return sum(len(link.client.streams) for link in self._links)

    @property
    def paths(self) -> list[bytes]:
        """The `:path` of each call that is under way."""
        return [half.call.path for link in self._links for half in link.client.streams.values()]

    async def listen(self, listener: socket.socket) -> None:
        """Accept on a unix socket that listens already; it is closed by `stop_accepting`, its path is the caller's."""
        self._acceptors.append(Acceptor(listener, self._accepted))

    def stop_accepting(self) -> None:
        """Accept who waits already, and nobody after that; what is connected goes on."""
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()

    async def leave(self) -> None:
        """Let clients begin no more calls here, and return when they know; what they have begun goes on.

        They are told in two steps, as gRPC's servers do: that there will be no more calls, and, once they have heard
        that, which one was the last. So none is lost that was on its way.
        """
        self.stop_accepting()
        links = list(self._links)
        for link in links:
            link.drain()
        end = asyncio.get_running_loop().time() + _HEARD
        while any(link in self._links and link.client.leaving is None for link in links):
            if asyncio.get_running_loop().time() >= end:
                break
            await asyncio.sleep(_GLANCE)
        for link in links:
            link.leave()
            link.flush()

    async def drain(self, seconds: float) -> bool:
        """`leave`, and let clients finish what they have begun; what takes longer than `seconds` is ended.

        Returns whether all ended by themselves.
        """
        end = asyncio.get_running_loop().time() + seconds
        await self.leave()
        done = await self._emptied(end - asyncio.get_running_loop().time())
        await self.close()
        return done

    async def close(self) -> None:
        """End everything at once; clients get a moment to read what they were sent."""
        self.stop_accepting()
        for link in list(self._links):
            link.leave()
            link.client.close()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._attached:
            await asyncio.wait(self._attached, timeout=_HEARD)
        for task in self._attached:
            task.cancel()
        await asyncio.gather(*self._attached, return_exceptions=True)

    async def _emptied(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(max(seconds, 0)):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    # What links need.

    def dial(self, side: RuntimeSide) -> None:
        """Connect to the runtime. Raises OSError."""
        self._start(attach(connect(self._runtime), side, side.link))

    def running(self, task: asyncio.Task[None]) -> None:
        """A handler has begun."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ended(self, call: Call) -> None:
        """A call is over."""
        self._counting.ended(call)

    def gone(self, link: Link) -> None:
        """A client's connection is closed."""
        self._links.discard(link)
        if not self._links:
            self._empty.set()

    def _accepted(self, made: socket.socket) -> None:
        link = Link(self)
        self._links.add(link)
        self._empty.clear()
        self._start(attach(made, link.client, link))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._attached.add(task)
        task.add_done_callback(self._attached.discard)
