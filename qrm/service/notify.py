"""systemd's service notification protocol: datagrams to NOTIFY_SOCKET (sd_notify(3))."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress


def by_systemd() -> bool:
    """Whether systemd runs this process, and is told how it is."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


def notify(state: str) -> None:
    """Send `state`, such as "READY=1"; nothing happens where systemd did not ask for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.connect("\0" + address[1:] if address.startswith("@") else address)
        out.send(state.encode())


async def watchdog() -> None:
    """Tell systemd twice in each WatchdogSec that the event loop turns; returns where no watchdog is set."""
    period = int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6
    while period:
        notify("WATCHDOG=1")
        await asyncio.sleep(period / 2)
