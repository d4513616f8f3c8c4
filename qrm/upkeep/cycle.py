"""One round of upkeep: what the runtime has, what the ledger has, what the kernel has."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import structlog

from qrm.allocation.placements import Ask, Placements
from qrm.enforcement.channel import CallError
from qrm.enforcement.runtime import RuntimeClient
from qrm.ledger.record import Mark, Record
from qrm.pods.model import QosLevel
from qrm.pods.request import QosDefaults
from qrm.upkeep.adopt import Adopter
from qrm.upkeep.drift import Drift
from qrm.upkeep.observe import Observer

log = structlog.get_logger(__name__)


class Upkeep:
    """Brings ledger, runtime and kernel together; each round says what it did."""

    def __init__(
        self,
        placements: Placements,
        runtime: RuntimeClient,
        observer: Observer,
        drift: Drift,
        defaults: Callable[[], QosDefaults],
    ) -> None:
        self._placements = placements
        self._runtime = runtime
        self._observer = observer
        self._drift = drift
        self._defaults = defaults
        self._adopter = Adopter(placements.book, runtime)

    async def compare_with_runtime(self) -> int:
        """Take in what exists and adopt what the ledger does not know; returns how many that were.

        Raises:
            CallError: the runtime did not answer.
        """
        asked = time.monotonic()
        containers, sandboxes = await self._runtime.list_containers(), await self._runtime.list_sandboxes()
        self._observer.judge_containers(containers, asked)
        self._observer.judge_sandboxes(sandboxes, asked)
        adopted = await self._adopter.adopt(self._observer.unknown, self._defaults())
        self._placements.settle()
        return adopted

    async def cycle(self) -> str:
        """A round; returns a sentence on what it did, empty where there was nothing to do."""
        did = []
        try:
            if adopted := await self.compare_with_runtime():
                did.append(f"adopted {adopted}")
        except CallError as error:
            return f"the runtime does not answer: {error}"
        if drifted := await self._drift.check():
            did.append(f"put back {drifted} drifted")
        self.count()
        return ", ".join(did)

    def count(self) -> None:
        """Bring the gauges up to date."""
        metrics, book = self._placements.metrics, self._placements.book
        live = [record for record in book.ledger if record.running and not record.is_pod]
        by_level = Counter(record.request.qos.level for record in live)
        for level in QosLevel:
            metrics.allocations.labels(level).set(by_level[level])
        metrics.unmanaged.set(sum(record.mark is Mark.UNMANAGED for record in live))
        metrics.adopted.set(sum(record.mark is Mark.ADOPTED for record in live))
        for quantities in book.quantities().values():
            for node, free in quantities.free.items():
                metrics.free.labels(str(node)).set(free)
            metrics.pool.clear()
            for pool, cpus in quantities.pools.items():
                metrics.pool.labels(pool).set(len(cpus))

    async def repair(self) -> str:
        """Place what had to pass while qrm failed; what still does not work out stays marked.

        A round of its own: where a plugin hangs, it takes as long as the plugin may, and delays nothing else.
        """
        waiting = [
            record
            for record in self._placements.book.ledger
            if record.mark is Mark.UNMANAGED and record.running and record.container_id
        ]
        placed = sum(await asyncio.gather(*(self._place(record) for record in waiting)))
        return f"placed {placed} unmanaged" if placed else ""

    async def _place(self, record: Record) -> bool:
        try:
            await self._placements.reserve(Ask(record.request, record.sandbox_id, record.attempt, record.asked))
        except Exception as error:
            log.warning("still unmanaged", pod=str(record.request.pod), error=str(error))
            return False
        self._placements.changed(record.container_id, record.asked, None)
        return True
