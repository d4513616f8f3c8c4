"""A node on its sockets, and the two steps in which it ends: it leaves the node to another process, then it drains."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import structlog

from qrm import __version__
from qrm.config import Config, socket_path
from qrm.enforcement.runtime import SERVICE
from qrm.metrics import Metrics
from qrm.service.admin import admin_socket
from qrm.service.entrance import Entrance
from qrm.service.metrics_page import metrics_page
from qrm.service.node import Node, build
from qrm.service.notify import watchdog
from qrm.service.pod_resources import pod_resources_socket
from qrm.service.sockets import listening
from qrm.service.tasks import guarded, periodic
from qrm.shim.handlers import make_handlers
from qrm.shim.transport import Limits, Transport

log = structlog.get_logger(__name__)

_SETTLE = 2.0
"""Seconds that calls which change something may still take before the node is left. kubelet's new connection waits
meanwhile, and gRPC gives it 5 s (kubelet's minimal connection timeout) in which a successor has to start as well."""
_GLANCE = 0.05
"""Seconds between two looks at what is still under way."""
_ENDLESS = frozenset({f"{SERVICE}GetContainerEvents".encode()})
"""Streams that end with a connection only. kubelet opens them again."""


class Server:
    """A node that serves. Made by `start`, to be ended by `retire` and `drain`."""

    def __init__(self, node: Node, transport: Transport, loops: AsyncExitStack, own: AsyncExitStack) -> None:
        """`own` is what one process only may have: the lock, the ledger, the other sockets."""
        self.node = node
        self._transport = transport
        self._loops = loops
        self._own = own

    @property
    def streams(self) -> int:
        """Calls that are under way."""
        return self._transport.streams

    async def retire(self) -> None:
        """Leave the node to another process. After that this one only passes on the calls that are under way.

        Clients are told to go elsewhere first; their calls wait there in the public socket's backlog.
        """
        node, under_way = self.node, self.node.context.under_way
        await self._transport.leave()
        if not await under_way.settled(_SETTLE):
            log.warning("left in the middle of calls", seconds=_SETTLE)
        under_way.close()
        await node.fall_silent()
        await self._loops.aclose()
        await node.leave(time.time() + node.config.shim.drain_seconds)
        await self._own.aclose()

    async def drain(self) -> None:
        """Wait until nothing but endless streams is under way, or for as long as is configured; then end all."""
        seconds = self.node.config.shim.drain_seconds
        try:
            async with asyncio.timeout(seconds):
                while not _ENDLESS.issuperset(self._transport.paths):  # noqa: ASYNC110, there is nothing to wait for
                    await asyncio.sleep(_GLANCE)
        except TimeoutError:
            log.warning("calls ended", streams=self.streams, seconds=seconds)
        await self.close()

    async def close(self) -> None:
        """End what is under way."""
        await self._transport.close()


async def start(config: Config, entrance: Entrance, metrics: Metrics) -> Server:
    """A server at `entrance`, which it closes in the end.

    Raises:
        QrmError, OSError: it cannot start; everything is closed again.
    """
    async with AsyncExitStack() as own:
        own.callback(entrance.close)
        node = await own.enter_async_context(build(config, metrics))
        await node.prepare()
        own.enter_context(metrics_page(config.metrics.listen, node.metrics.registry))
        await own.enter_async_context(admin_socket(node, entrance.give_way))
        socket = Path(config.shim.pod_resources_socket)
        await own.enter_async_context(pod_resources_socket(node.book, node.context.ready, socket))
        limits = Limits(max_message_bytes=config.shim.max_message_bytes)
        transport = Transport(socket_path(config.runtime.endpoint), make_handlers(node.context), node.metrics, limits)
        await transport.listen(entrance.listener or listening(entrance.public))
        loops = AsyncExitStack()
        await loops.enter_async_context(_tasks(node))
        log.info("serving", version=__version__, socket=str(entrance.public), runtime=config.runtime.endpoint)
        return Server(node, transport, loops, own.pop_all())
    raise AssertionError  # for mypy: the stack swallows nothing


@asynccontextmanager
async def _tasks(node: Node) -> AsyncIterator[None]:
    """Every loop of the process."""

    def pause() -> float:
        return node.config.upkeep.drift_seconds

    loops: dict[str, Callable[[], Awaitable[None]]] = {
        "runtime": node.follow_runtime,
        "growth": node.grow,
        "upkeep": lambda: periodic("upkeep", pause, node.upkeep.cycle),
        "repair": lambda: periodic("repair", pause, node.upkeep.repair),
        "isolation": lambda: periodic("isolation", pause, node.isolate),
        "watchdog": watchdog,
    }
    if node.registry is not None:
        loops |= {"plugins": node.registry.run, "reconcile": node.reconcile}
    tasks = [asyncio.create_task(guarded(name, loop), name=name) for name, loop in loops.items()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
