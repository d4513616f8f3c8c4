"""How long CPU, memory and NIC allocator think together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from qrm.allocator import MEMORY, NET_EGRESS, MemoryEnhancement, PodIdentity, Qos, QosLevel, ResourceRequest
from qrm.topology.generate import GIB, Layout
from qrm.topology.machine import Nic
from tests.bench import crowd
from tests.bench.allocation import CONTAINERS, PODS, Figures, figures_of, filled, sample
from tests.bench.report import Table

_CPUS = 256
_SAMPLES = 100
_HUGE = "hugepages-1Gi"
_MACHINES = {2: (2, 1), 4: (2, 2), 8: (4, 2)}
"""Sockets, and NUMA nodes in each, by NUMA nodes in all."""


def together(folder: Path) -> Table:
    """The table; machines are written under `folder`."""
    table = Table(
        f"One plan for CPU, memory and NIC in ms of CPU time, {PODS} pods with {CONTAINERS} containers resident",
        f"{_CPUS} CPUs. Asked: 4 dedicated CPUs, 8 GiB, 1 GiB of hugepages and 5000 Mbit/s, all on one NUMA node. "
        "All residents hold memory, some hugepages and bandwidth. Columns as for one CPU allocation; merging the hints "
        "under best-effort is part of the plan.",
    )
    for nodes in _MACHINES:
        book = filled(folder / f"nodes-{nodes}", _layout(nodes), ("cpu", "memory", "nic"), _residents())
        figures = Figures()
        for turn in range(_SAMPLES):
            sample(book, _asked(f"new-{turn}"), figures)
        table.lines.append({"nodes": nodes, **figures_of(figures)})
        book.ledger.close()
    return table


def _layout(nodes: int) -> Layout:
    sockets, each = _MACHINES[nodes]
    return Layout(
        sockets=sockets,
        nodes_per_socket=each,
        l3_per_socket=16 // sockets,
        cores_per_socket=128 // sockets,
        threads=2,
        memory=1024 * GIB // nodes,
        hugepages={GIB: 128 // nodes},
        nics=tuple(Nic(f"eth{node}", 100_000, node, up=True) for node in range(nodes)),
    )


def _residents() -> Iterator[ResourceRequest]:
    """The usual crowd, which asks for more than CPUs here."""
    for number, request in enumerate(crowd.requests(crowd.crowd(PODS, CONTAINERS, _CPUS))):
        quantities = {MEMORY: GIB // 4}
        if number % 10 == 0:
            quantities[_HUGE] = GIB
        if number % 5 == 0:
            quantities[NET_EGRESS] = 200
        yield replace(request, quantities=quantities)


def _asked(name: str) -> ResourceRequest:
    return ResourceRequest(
        PodIdentity(name, "default", name),
        "main",
        qos=Qos(QosLevel.DEDICATED, memory=MemoryEnhancement(numa_binding=True)),
        cpu_millis=4000,
        quantities={MEMORY: 8 * GIB, _HUGE: GIB, NET_EGRESS: 5000},
    )
