"""Compares the kernel's cpusets with the ledger and has put back what differs."""

from __future__ import annotations

from dataclasses import replace

import structlog

from qrm.allocation.placements import Placements
from qrm.enforcement.cgroup import KernelCpuset
from qrm.enforcement.processes import Processes
from qrm.ledger.record import Record

log = structlog.get_logger(__name__)


class Drift:
    """One comparison of everything that runs."""

    def __init__(self, placements: Placements, processes: Processes) -> None:
        self._placements = placements
        self._processes = processes

    async def check(self) -> int:
        """Find what differs and hand it to growth's queue, which puts it back; returns how many containers it is."""
        ledger = self._placements.book.ledger
        running = [record for record in ledger if record.running and record.container_id and record.applied]
        self._processes.forget_all_but({record.container_id for record in running})
        drifted = 0
        for record in running:
            found = await self._processes.cpuset(record.container_id)
            current = ledger.find(record.container_id)
            if found is None or current != record or current.push_due or current.mems_due:
                continue
            if seen := self._drifted(record, found):
                self._placements.book.put(seen)
                drifted += 1
        if drifted:
            self._placements.due.set()
        return drifted

    def _drifted(self, record: Record, found: KernelCpuset) -> Record | None:
        """The record with what the kernel has in place of what it should have; None where that is the same."""
        cpus = found.cpus or found.effective  # an empty cpuset of cgroup v2 means "as the parent"
        mems = found.mems if record.mems else record.applied_mems
        if (cpus, mems) == (record.applied, record.applied_mems):
            return None
        for dimension, ledger, kernel in (("cpuset", record.applied, cpus), ("mems", record.applied_mems, mems)):
            if ledger != kernel:
                log.warning(f"{dimension} drifted", **record.named, ledger=str(ledger), kernel=str(kernel))
                self._placements.metrics.drift.labels(dimension).inc()
        return replace(record, applied=cpus, applied_mems=mems)
