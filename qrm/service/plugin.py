"""`qrm plugin serve`: one of our allocators as a QRM plugin, for Katalyst's kubelet or for another qrm."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import structlog

from qrm.allocation.registry import load_allocators
from qrm.allocation.remote.server import serve_plugin
from qrm.config import Config
from qrm.errors import QrmError
from qrm.pods.model import QosLevel
from qrm.service.notify import notify
from qrm.topology.sysfs import read_machine

log = structlog.get_logger(__name__)


async def serve_allocator(config: Config, name: str, directory: Path) -> None:
    """Offer the allocator `name`, with its settings from `config`, on a socket in `directory`, until SIGTERM.

    Raises:
        QrmError: there is no such allocator, its settings are wrong, or the socket cannot be made.
    """
    machine = read_machine(Path(config.host.sysfs))
    (allocator,) = load_allocators({name: config.allocators.get(name, {})})
    _check(directory)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    default = QosLevel(config.qos.default_level)
    async with serve_plugin(allocator, machine, directory, default=default):
        notify("READY=1")
        await stopping.wait()
    log.info("stopped")


def _check(directory: Path) -> None:
    if not directory.is_dir():
        raise QrmError(f"{directory} is no folder", hint="name the one in which the other side looks for plugins")
