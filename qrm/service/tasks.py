"""The loops of the process: named, and never ending unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger(__name__)

_PAUSE = 1.0
"""Seconds before a loop that failed is started again."""


async def guarded(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run an endless loop; one that fails is logged and started again, since the others do not depend on it."""
    while True:
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("task failed", task=name, next="it is started again")
            await asyncio.sleep(_PAUSE)
        else:
            return


async def periodic(name: str, period: Callable[[], float], cycle: Callable[[], Awaitable[str]]) -> None:
    """Run `cycle` again and again with `period()` seconds between; it returns a sentence on what it did, or ""."""
    while True:
        await asyncio.sleep(period())
        try:
            did = await cycle()
        except Exception:
            log.exception("cycle failed", task=name)
        else:
            if did:
                log.info("cycle", task=name, did=did)
