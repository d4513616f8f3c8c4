"""Tells running containers what they have gained. The queue is the ledger itself: what is wanted and not yet applied.

So nothing is lost when qrm restarts, changes to the same container merge, and a failed push is simply still due.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from qrm.allocation.placements import Placements
from qrm.allocator import ContainerKey
from qrm.enforcement.pushes import Outcome

FIRST_RETRY = 1.0
LAST_RETRY = 30.0
"""Seconds between tries while the runtime refuses: doubled each time, up to this."""
AT_ONCE = 4
"""Pushes under way at the same time; more would only queue inside the runtime, before kubelet's calls."""


class Growth:
    """The loop behind `Placements.due`."""

    def __init__(self, placements: Placements) -> None:
        self._placements = placements
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Push whatever is due whenever something may be; runs until cancelled."""
        pause = FIRST_RETRY
        while True:
            await self._placements.due.wait()
            self._placements.due.clear()
            if await self.push_all():
                pause = FIRST_RETRY
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._placements.due.wait(), pause)
            pause = min(pause * 2, LAST_RETRY)
            self._placements.due.set()

    async def push_all(self) -> bool:
        """Make durable what has changed, then push what is due; returns whether all of it was applied.

        In rounds: who gains CPUs that another has to leave first waits for the next one.
        """
        await self._placements.flush_or_log()
        while due := [record.key for record in self._placements.book.due()]:
            with self._placements.metrics.step("grow"):
                outcomes = await asyncio.gather(*(self._push(key) for key in due))
            await self._placements.flush_or_log()
            if not {Outcome.APPLIED, Outcome.GONE} & set(outcomes):
                return False
        return await self._move_memory()

    async def _move_memory(self) -> bool:
        """Tell memory nodes, one container at a time: each may have gigabytes of pages to move."""
        due = [record.key for record in self._placements.book.mems_due()]
        outcomes = [await self._placements.teller.push(key, mems=True) for key in due]
        if due:
            await self._placements.flush_or_log()
        return Outcome.FAILED not in outcomes

    async def _push(self, key: ContainerKey) -> Outcome:
        async with self._slots:
            return await self._placements.teller.push(key)
