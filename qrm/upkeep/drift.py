"""Compares the kernel's cpusets with the ledger and has put back what differs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from qrm.allocation.placements import Placements
from qrm.enforcement.cgroup import Cgroups, KernelCpuset
from qrm.enforcement.channel import CallError
from qrm.enforcement.runtime import RuntimeClient
from qrm.ledger.record import Record

log = structlog.get_logger(__name__)


class Kernel:
    """Finds a container's cgroup through its process, and remembers which process that was."""

    def __init__(self, runtime: RuntimeClient, cgroups: Cgroups) -> None:
        self._runtime = runtime
        self._cgroups = cgroups
        self._pids: dict[str, int] = {}

    async def cpuset(self, container_id: str) -> KernelCpuset | None:
        """The container's cpuset as the kernel has it; None where it does not run."""
        pid = self._pids.get(container_id, 0)
        if not pid:
            try:
                pid = (await self._runtime.container(container_id)).pid
            except CallError:
                return None
            if not pid:
                return None
            self._pids[container_id] = pid
        found = await asyncio.to_thread(self._cgroups.cpuset_of, pid)
        # The pid may be another process's by now: a container's cgroup carries its id.
        if found is None or container_id not in found.path.name:
            del self._pids[container_id]
            return None
        return found

    def forget_all_but(self, container_ids: set[str]) -> None:
        """Drop what is remembered of containers that are gone."""
        self._pids = {key: pid for key, pid in self._pids.items() if key in container_ids}


class Drift:
    """One comparison of everything that runs."""

    def __init__(self, placements: Placements, kernel: Kernel) -> None:
        self._placements = placements
        self._kernel = kernel

    async def check(self) -> int:
        """Find what differs and hand it to growth's queue, which puts it back; returns how many containers it is."""
        ledger = self._placements.book.ledger
        running = [record for record in ledger if record.running and record.container_id and record.applied]
        self._kernel.forget_all_but({record.container_id for record in running})
        drifted = 0
        for record in running:
            found = await self._kernel.cpuset(record.container_id)
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
