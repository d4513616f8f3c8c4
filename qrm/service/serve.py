"""The running process: sockets, signals, and the list of its tasks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import structlog

from qrm import __version__
from qrm.config import Config, load, socket_path
from qrm.errors import ConfigError
from qrm.metrics import Metrics
from qrm.service.admin import admin_socket
from qrm.service.metrics_page import metrics_page
from qrm.service.node import Node, build
from qrm.service.notify import notify, watchdog
from qrm.service.pod_resources import pod_resources_socket
from qrm.service.sockets import listening, only_instance
from qrm.service.tasks import guarded, periodic
from qrm.shim.handlers import make_handlers
from qrm.shim.transport import Limits, Transport

log = structlog.get_logger(__name__)

DRAIN_SECONDS = 10.0
"""How long calls under way may go on after a stop was asked for."""


@asynccontextmanager
async def running(config: Config, *, metrics: Metrics | None = None) -> AsyncIterator[Node]:
    """A node that serves while the context is open.

    Raises:
        QrmError: it cannot start.
    """
    public = Path(config.shim.socket)
    async with AsyncExitStack() as stack:
        stack.enter_context(only_instance(Path(f"{public}.lock")))
        node = await stack.enter_async_context(build(config, metrics or Metrics()))
        await node.prepare()
        stack.enter_context(metrics_page(config.metrics.listen, node.metrics.registry))
        await stack.enter_async_context(admin_socket(node))
        socket = Path(config.shim.pod_resources_socket)
        await stack.enter_async_context(pod_resources_socket(node.book, node.context.ready, socket))
        await stack.enter_async_context(_listening(node, public))
        await stack.enter_async_context(_tasks(node))
        log.info("serving", version=__version__, socket=str(public), runtime=config.runtime.endpoint)
        yield node


async def serve(config: Config, *, source: Path | None = None, metrics: Metrics | None = None) -> None:
    """Run the service until SIGTERM or SIGINT; SIGHUP reads `source` again.

    Raises:
        QrmError: it cannot start.
    """
    async with running(config, metrics=metrics) as node:
        stopping = _stop_signals(lambda: _reload(node, source))
        notify("READY=1")
        await stopping.wait()
        notify("STOPPING=1")
    log.info("stopped")


@asynccontextmanager
async def _tasks(node: Node) -> AsyncIterator[None]:
    """Every loop of the process."""

    def pause() -> float:
        return node.config.upkeep.drift_seconds

    loops: dict[str, Callable[[], Awaitable[None]]] = {
        "compare": node.compare_at_start,
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


@asynccontextmanager
async def _listening(node: Node, public: Path) -> AsyncIterator[None]:
    """The shim on its socket; on the way out, calls under way may finish."""
    limits = Limits(max_message_bytes=node.config.shim.max_message_bytes)
    runtime = socket_path(node.config.runtime.endpoint)
    transport = Transport(runtime, make_handlers(node.context), node.metrics, limits)
    await transport.listen(listening(public))
    try:
        yield
    finally:
        await transport.drain(DRAIN_SECONDS)


def _stop_signals(reload: Callable[[], None]) -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, reload)
    return stopping


def _reload(node: Node, source: Path | None) -> None:
    if source is None:
        log.warning("nothing to reload", reason="started without --config")
        return
    notify("RELOADING=1")
    try:
        node.apply(load(source))
        log.info("reloaded", file=str(source))
    except ConfigError as error:
        log.error("not reloaded", error=str(error), next="the old settings stay")
    notify("READY=1")
