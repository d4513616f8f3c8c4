"""The running process: how it begins, its signals, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from qrm.config import Config, load
from qrm.errors import ConfigError
from qrm.metrics import Metrics
from qrm.service.detach import detach
from qrm.service.entrance import enter, take_over
from qrm.service.node import Node
from qrm.service.notify import by_systemd, notify
from qrm.service.server import start

log = structlog.get_logger(__name__)


@asynccontextmanager
async def running(config: Config, *, metrics: Metrics | None = None) -> AsyncIterator[Node]:
    """A node that serves while the context is open.

    Raises:
        QrmError: it cannot start.
    """
    server = await start(config, enter(config), metrics or Metrics())
    try:
        yield server.node
    finally:
        await server.retire()
        await server.drain()


async def serve(
    config: Config, *, source: Path | None = None, metrics: Metrics | None = None, replace: bool = False
) -> None:
    """Run the service until SIGTERM or SIGINT, or until another process takes over; SIGHUP reads `source` again.

    At the end the node is left to whoever comes next, at once, and only the calls that are under way go on, without
    being in anybody's way. A second signal ends those too.

    Args:
        config: All settings.
        source: Where they are from.
        metrics: Where to count.
        replace: Take over from a process that serves already.

    Raises:
        QrmError: it cannot start.
    """
    entrance = await take_over(config) if replace else enter(config)
    server = await start(config, entrance, metrics or Metrics())
    stopping = _stop_signals(lambda: _reload(server.node, source))
    given_away = asyncio.create_task(_then(entrance.given_away, stopping))
    notify("READY=1")
    await stopping.wait()
    stopping.clear()
    given_away.cancel()
    notify("STOPPING=1")
    await server.retire()
    log.info("retired", streams=server.streams)
    detached = by_systemd() and detach()
    drained = asyncio.create_task(server.drain())
    await asyncio.wait({drained, asyncio.create_task(stopping.wait())}, return_when=asyncio.FIRST_COMPLETED)
    if not drained.done():
        await server.close()
    log.info("stopped", streams=server.streams)
    if detached:
        os._exit(0)


async def _then(event: asyncio.Event, other: asyncio.Event) -> None:
    await event.wait()
    other.set()


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
