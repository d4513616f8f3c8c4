"""What qrm adds to a call: through it and past it in turns, to the same runtime."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from qrm.demo.kubelet import KubeletClient
from qrm.demo.pods import Pod
from tests.bench import crowd
from tests.bench.processes import Admin, Service
from tests.bench.report import Cell, Table, millis, p50, p99

_FSYNCS = 50

Measure = Callable[[KubeletClient, int], Awaitable[float]]
"""One call; returns its seconds."""


@dataclass(frozen=True)
class _Row:
    what: str
    samples: int
    measure: Measure
    settle: bool = False
    """Whether to wait after each call until other containers have been told what it means for them."""


_ROWS = (
    _Row("Version, passed on", 1000, lambda client, _: _seconds(client.version())),
    _Row("ListContainers, looked at", 300, lambda client, _: _seconds(client.containers())),
    _Row("CreateContainer, shared", 150, lambda client, turn: _create(client, crowd.shared(f"new-{turn}"))),
    _Row(
        "CreateContainer, 4 dedicated", 30, lambda client, turn: _create(client, crowd.dedicated(f"own-{turn}")), True
    ),
)


async def latency(service: Service, containers: int) -> Table:
    """The table; `containers` run already."""
    table = Table(
        f"Added latency in ms, {containers} containers",
        "Each call in turns past qrm and through it, one at a time, all three in processes of their own. "
        "Added and ratio are of the medians. A creation waits for the ledger to be on its disk, where an fsync of a "
        f"page takes {millis(p50(_fsyncs(service.state)))} ms ({_FSYNCS} samples). A dedicated one first takes CPUs "
        "from running containers, and waits until the runtime has told each of them.",
    )
    async with service.direct() as direct, service.kubelet() as through, Admin(service.admin) as admin:
        for row in _ROWS:
            table.lines.append(await _line(row, direct, through, admin))
    return table


async def _line(row: _Row, direct: KubeletClient, through: KubeletClient, admin: Admin) -> dict[str, Cell]:
    past: list[float] = []
    via: list[float] = []
    for turn in range(-2, row.samples):
        for client, samples in ((direct, past), (through, via)):
            seconds = await row.measure(client, turn)
            if turn >= 0:
                samples.append(seconds)
            if row.settle:
                await admin.settled()
    return _figures(row, past, via)


def _figures(row: _Row, past: list[float], via: list[float]) -> dict[str, Cell]:
    return {
        "call": row.what,
        "samples": row.samples,
        "direct p50": millis(p50(past)),
        "through p50": millis(p50(via)),
        "added p50": millis(p50(via) - p50(past)),
        "ratio": round(p50(via) / p50(past), 2),
        "direct p99": millis(p99(past)),
        "through p99": millis(p99(via)),
        "added p99": millis(p99(via) - p99(past)),
    }


async def _seconds(call: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await call
    return time.perf_counter() - begun


async def _create(client: KubeletClient, pod: Pod) -> float:
    """The creation of a pod's first container; the pod is gone afterwards."""
    sandbox = await client.run_pod(pod)
    seconds = await _seconds(client.create_container(sandbox, pod, pod.containers[0]))
    await client.stop_pod(sandbox)
    await client.remove_pod(sandbox)
    return seconds


def _fsyncs(folder: Path) -> list[float]:
    """What the disk of `folder` takes to make one page durable."""
    seconds = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_FSYNCS):
            begun = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            seconds.append(time.perf_counter() - begun)
    return seconds


async def populate(client: KubeletClient, pods: Iterable[Pod]) -> None:
    """Start pods one after the other."""
    for pod in pods:
        await client.start_pod(pod)
