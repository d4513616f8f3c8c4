"""The machine as memory sees it: NUMA nodes as bit masks, and the bytes that containers can be promised on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from qrm.allocator import HUGEPAGES, MEMORY
from qrm.cpuset import NodeSet
from qrm.topology.machine import NO_DISTANCE, Machine
from qrm_memory.settings import Settings

UNKNOWN_BYTES = 1 << 62
"""Stands for the memory of each node where the kernel gives no sizes (without CONFIG_NUMA): nothing is refused."""

_UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@lru_cache(maxsize=4096)
def members(mask: int) -> tuple[int, ...]:
    """The ids in a mask, ascending."""
    return tuple(NodeSet.from_mask(mask))


def hugepages_name(page: int) -> str:
    """Kubernetes' name for pages of that many bytes: "hugepages-2Mi"."""
    power = 0
    while page and page % 1024 == 0 and power + 1 < len(_UNITS):
        page, power = page // 1024, power + 1
    return f"{HUGEPAGES}{page}{_UNITS[power]}"


@dataclass(frozen=True, slots=True)
class Ground:
    """What depends on the machine and the settings alone. Sets of NUMA nodes are masks."""

    machine: Machine
    base: int
    """The nodes with CPUs and memory; all with memory where there are no such. Never empty."""
    remote: int
    """The nodes with memory alone (CXL, HBM), for those who ask for them."""
    capacity: Mapping[str, Mapping[int, int]]
    """By resource, then by node, the bytes that containers can be promised."""
    known: bool
    """Whether the kernel gives the sizes of memory."""
    _totals: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def present(self) -> int:
        """Every node that has memory."""
        return self.base | self.remote

    def total(self, resource: str, mask: int) -> int:
        """The bytes that containers can be promised on all of these nodes."""
        found = self._totals.get((resource, mask))
        if found is None:
            sizes = self.capacity.get(resource, {})
            found = self._totals[resource, mask] = sum(sizes.get(node, 0) for node in members(mask))
        return found

    def distance(self, mask: int, node: int) -> int:
        """From the nearest of these nodes."""
        nodes = self.machine.nodes
        return min((nodes[one].distances.get(node, NO_DISTANCE) for one in members(mask)), default=NO_DISTANCE)

    def spread(self, mask: int) -> int:
        """The sum of the distances between these nodes: what is small is close together."""
        return sum(self.distance(1 << one, other) for one in members(mask) for other in members(mask))

    def with_remote(self, mask: int, usable: int) -> int:
        """`mask` with the usable memory-only nodes that are the nearest to one of its nodes."""
        remote = self.remote & usable
        for node in members(mask) if remote else ():
            distances = {other: self.distance(1 << node, other) for other in members(remote)}
            nearest = min(distances.values())
            mask |= sum(1 << other for other, distance in distances.items() if distance == nearest)
        return mask


def survey_ground(machine: Machine, settings: Settings) -> Ground:
    """Sorts the NUMA nodes of `machine`. Hugepages are taken out of memory, as kubelet does."""
    nodes = list(machine.nodes.values())
    known = any(node.memory for node in nodes)
    with_memory = [node for node in nodes if node.memory or not known]
    near = NodeSet(node.id for node in with_memory if node.cpus)
    present = NodeSet(node.id for node in with_memory)
    capacity: dict[str, dict[int, int]] = {MEMORY: {}}
    for node in with_memory:
        paged = sum(size * number for size, number in node.hugepages.items())
        usable = node.memory - paged - settings.reserved_on(node.id)
        capacity[MEMORY][node.id] = max(usable, 0) if known else UNKNOWN_BYTES
        for size, number in node.hugepages.items():
            capacity.setdefault(hugepages_name(size), {})[node.id] = size * number
    base = (near or present).mask
    return Ground(machine, base, present.mask & ~base, capacity, known)
