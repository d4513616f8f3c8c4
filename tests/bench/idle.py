"""What qrm costs while nothing happens but kubelet's relists."""

from __future__ import annotations

import asyncio
import time

import psutil

from qrm.demo.kubelet import KubeletClient
from tests.bench.processes import Service
from tests.bench.report import Table

MIB = 1 << 20
_SECONDS = 20


async def idle(service: Service, process: psutil.Popen, pods: int, containers: int) -> Table:
    """The table; `process` is qrm, and as many pods run."""
    table = Table(
        f"Idle, {pods} pods with {containers} containers",
        f"ListPodSandbox and ListContainers each second for {_SECONDS} s, as kubelet does. "
        "CPU is user and system time over wall time, 100 % is one CPU; memory is what is resident at the end.",
    )
    async with service.kubelet() as kubelet:
        await _relist(kubelet)
        before, begun = process.cpu_times(), time.monotonic()
        for turn in range(_SECONDS):
            await _relist(kubelet)
            await asyncio.sleep(max(begun + turn + 1 - time.monotonic(), 0))
        after, wall = process.cpu_times(), time.monotonic() - begun
    memory = process.memory_full_info()
    table.lines.append(
        {
            "relists": _SECONDS,
            "CPU %": round(100 * (after.user + after.system - before.user - before.system) / wall, 2),
            "RSS MiB": round(memory.rss / MIB, 1),
            "of it private": round(memory.uss / MIB, 1),
            "threads": process.num_threads(),
            "file descriptors": process.num_fds(),
        }
    )
    return table


async def _relist(kubelet: KubeletClient) -> None:
    await kubelet.pods()
    await kubelet.containers()
