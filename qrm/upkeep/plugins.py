"""Lets plugins forget pods that are gone, and takes over what they change by themselves."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from qrm.allocation.placements import Placements

PERIOD = 5.0
"""Seconds between two comparisons while nothing happens (Katalyst's kubelet: 3 s, and it pushes each time)."""


class PluginUpkeep:
    """A loop of its own: a plugin that hangs delays nobody else's upkeep."""

    def __init__(self, placements: Placements) -> None:
        self._placements = placements

    async def run(self) -> None:
        """Compare whenever something was released, and now and then; runs until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._placements.stale.wait(), PERIOD)
            self._placements.stale.clear()
            if await self._placements.reconcile():
                self._placements.due.set()
