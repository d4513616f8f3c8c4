"""Finds a container's cgroup through its process, and remembers which process that was."""

from __future__ import annotations

import asyncio
from pathlib import Path

from qrm.enforcement.cgroup import Cgroups, KernelCpuset, named, read_cpuset
from qrm.enforcement.channel import CallError
from qrm.enforcement.runtime import RuntimeClient


class Processes:
    """The first process of each container that runs."""

    def __init__(self, runtime: RuntimeClient, cgroups: Cgroups) -> None:
        self.cgroups = cgroups
        self._runtime = runtime
        self._pids: dict[str, int] = {}

    async def cpuset(self, container_id: str) -> KernelCpuset | None:
        """The container's cpuset as the kernel has it; None where it does not run."""
        v2 = self.cgroups.version == 2
        path = (await self.folders(container_id)).get("" if v2 else "cpuset")
        return await asyncio.to_thread(read_cpuset, path, v2=v2) if path else None

    async def folders(self, container_id: str) -> dict[str, Path]:
        """The container's cgroup folders, as `Cgroups.folders_of`; empty where it does not run."""
        pid = await self._pid(container_id)
        found = await asyncio.to_thread(self.cgroups.folders_of, pid) if pid else {}
        # The pid may be another process's by now: a container's cgroup carries its id.
        own = {name: folder for name, path in found.items() if (folder := named(path, container_id))}
        if not own:
            self._pids.pop(container_id, None)
        return own

    def forget_all_but(self, container_ids: set[str]) -> None:
        """Drop what is remembered of containers that are gone."""
        self._pids = {key: pid for key, pid in self._pids.items() if key in container_ids}

    async def _pid(self, container_id: str) -> int:
        """0 where it does not run."""
        pid = self._pids.get(container_id, 0)
        if not pid:
            try:
                pid = (await self._runtime.container(container_id)).pid
            except CallError:
                return 0
            if pid:
                self._pids[container_id] = pid
        return pid
