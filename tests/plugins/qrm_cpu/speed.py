"""How long one placement takes on a full machine: `python -m tests.plugins.qrm_cpu.speed` prints a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from time import perf_counter

from qrm_cpu import CpuAllocator, create

from qrm.allocator import ContainerKey, CpuEnhancement, DoesNotFit, Holding, ResourceRequest, State
from qrm.allocator.testing import machine, request
from qrm.topology.machine import Machine
from tests.plugins.qrm_cpu.nodes import DEDICATED, RECLAIMED, SHARED, SYSTEM

PODS = 250
MACHINES = {
    16: machine(l3_per_node=2, cores_per_l3=4, threads=2),
    256: machine(sockets=2, nodes_per_socket=4, l3_per_node=4, cores_per_l3=4, threads=2),
    1024: machine(sockets=4, nodes_per_socket=4, l3_per_node=8, cores_per_l3=4, threads=2),
}
ASKED = {
    "shared": request("new", 1300, SHARED),
    "shared, bound": request("new", 1000, SHARED, numa_binding=True),
    "dedicated": request("new", 2000, DEDICATED),
    "dedicated, bound": request("new", 4000, DEDICATED, numa_binding=True),
    "dedicated, whole cores": request("new", 4000, DEDICATED, cpu=CpuEnhancement(full_pcpus_pairing=True)),
    "dedicated, large": request("new", 32000, DEDICATED),
    "reclaimed": request("new", 1000, RECLAIMED),
    "reclaimed, bound": request("new", 1000, RECLAIMED, numa_binding=True),
    "system": request("new", 0, SYSTEM),
}


def resident(node: Machine) -> tuple[CpuAllocator, State]:
    """An allocator and a machine with 250 pods of all kinds, half of its CPUs dedicated or promised."""
    allocator, holdings = create({"reserved": 2}), dict[ContainerKey, Holding]()
    for asked in _pods(len(node.online)):
        state = State(node, holdings)
        for key, allocation in allocator.allocate(asked, allocator.hints(asked, state)[0], state).allocations.items():
            known = holdings.get(key) if key.pod_uid != asked.pod.uid else None
            holdings[key] = replace(known, allocation=allocation) if known else Holding(asked, allocation)
    return allocator, State(node, holdings)


def _pods(cpus: int) -> Iterator[ResourceRequest]:
    dedicated = min(PODS // 5, cpus // 8)
    for number in range(PODS):
        pod = f"pod{number}"
        if number < dedicated:
            yield request(pod, 2000, DEDICATED, numa_binding=number % 2 == 0)
        elif number % 10 == 0:
            yield request(pod, cpus // 2, SHARED, numa_binding=True)
        elif number % 3 == 0:
            yield request(pod, 500, RECLAIMED, numa_binding=number % 2 == 0)
        elif number % 7 == 0:
            yield request(pod, cpus // 2, SHARED, cpu=CpuEnhancement(cpuset_pool=f"pool{number % 2}"))
        else:
            yield request(pod, cpus // 2, SHARED)


def placed_in(allocator: CpuAllocator, state: State, asked: ResourceRequest, *, times: int) -> float:
    """The median of the seconds from the question to the changes."""
    took = []
    for _ in range(times):
        start = perf_counter()
        allocator.allocate(asked, allocator.hints(asked, state)[0], state)
        took.append(perf_counter() - start)
    return median(took)


def settled_in(allocator: CpuAllocator, state: State, *, times: int) -> float:
    """The median of the seconds that settling takes when there is nothing to settle."""
    took = []
    for _ in range(times):
        start = perf_counter()
        allocator.settle(state)
        took.append(perf_counter() - start)
    return median(took)


def main() -> None:
    """Prints microseconds by machine and kind of request."""
    for cpus, node in MACHINES.items():
        allocator, state = resident(node)
        print(f"{cpus} CPUs, {PODS} pods, {len(state.holdings)} holdings")
        for kind, asked in ASKED.items():
            try:
                took = f"{placed_in(allocator, state, asked, times=200) * 1e6:.0f} us"
            except DoesNotFit:
                took = "no room"
            print(f"  {kind:24} {took:>8}")
        print(f"  {'settle':24} {settled_in(allocator, state, times=200) * 1e6:.0f} us")


if __name__ == "__main__":
    main()
