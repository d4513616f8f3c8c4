"""What a node is made of. Read once, immutable; ids are the kernel's and may be sparse.

An id of None means that the kernel does not say; nothing is ever guessed to be node 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from qrm.cpuset import CPUSet, NodeSet

LOCAL_DISTANCE = 10
"""ACPI SLIT's value for the node itself."""
NO_DISTANCE = 255
"""ACPI SLIT's value for "unreachable", used where the kernel gives no distance."""


@dataclass(frozen=True, slots=True)
class CPU:
    """One online logical CPU."""

    id: int
    core: int
    """The lowest CPU id of the physical core: unique on the machine, unlike the kernel's core_id."""
    siblings: CPUSet
    """All online threads of the physical core, this one among them."""
    socket: int
    """The kernel's physical_package_id; all CPUs for which it gives none are one more socket. Cores, dies and L3
    domains lie within one socket; a NUMA node may contain several L3 domains, or an L3 domain several NUMA nodes."""
    die: int
    """The lowest CPU id of the die; the socket's lowest where the kernel names no dies."""
    l3: int
    """The lowest CPU id of those that share the L3 cache; where the kernel names no cache, of those in the socket for
    which it names none."""
    l3_id: int | None
    """The kernel's cache id, as resctrl's schemata use it; None where it is not given."""
    node: int
    """The NUMA node."""


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node. `cpus` is empty for memory-only nodes, `memory` is 0 for CPU-only ones."""

    id: int
    cpus: CPUSet
    memory: int
    """MemTotal in bytes; 0 also where the kernel does not say."""
    hugepages: Mapping[int, int]
    """Page size in bytes to the number of pages."""
    distances: Mapping[int, int]
    """Other node's id to distance, this node included; 10 is local (ACPI SLIT)."""


@dataclass(frozen=True, slots=True)
class Nic:
    """One network interface that stands on a device of its own, or a bond of such in their place."""

    name: str
    speed: int | None
    """Mbit/s."""
    node: int | None
    up: bool
    addresses: tuple[str, ...] = ()
    """Its IPv4 and IPv6 addresses that reach beyond the link, as text."""


@dataclass(frozen=True, slots=True)
class Disk:
    """One whole block device that stands on a device of its own."""

    name: str
    device: str
    """major:minor, as io.max wants it."""
    rotational: bool | None
    node: int | None


@dataclass(frozen=True)
class Machine:
    """The whole node. Only online CPUs are in `cpus`."""

    cpus: Mapping[int, CPU]
    nodes: Mapping[int, NumaNode]
    offline: CPUSet = field(default_factory=CPUSet)
    """CPUs that are present but not online."""
    isolated: CPUSet = field(default_factory=CPUSet)
    """Online CPUs that the kernel's isolcpus= keeps free of ordinary tasks."""
    nics: tuple[Nic, ...] = ()
    disks: tuple[Disk, ...] = ()

    @cached_property
    def online(self) -> CPUSet:
        """All online CPUs."""
        return CPUSet(self.cpus)

    @cached_property
    def sockets(self) -> Mapping[int, CPUSet]:
        """Socket id to its CPUs, ascending."""
        return self._grouped("socket")

    @cached_property
    def dies(self) -> Mapping[int, CPUSet]:
        """Die to its CPUs, ascending."""
        return self._grouped("die")

    @cached_property
    def l3_domains(self) -> Mapping[int, CPUSet]:
        """L3 domain to the CPUs that share it, ascending."""
        return self._grouped("l3")

    @cached_property
    def cores(self) -> Mapping[int, CPUSet]:
        """Physical core to its threads, ascending."""
        return self._grouped("core")

    @cached_property
    def cpu_nodes(self) -> NodeSet:
        """The NUMA nodes that have CPUs."""
        return NodeSet(node.id for node in self.nodes.values() if node.cpus)

    @cached_property
    def threads_per_core(self) -> int:
        """The largest number of threads of one core: 1 without SMT."""
        return max((len(core) for core in self.cores.values()), default=1)

    def cpus_of(self, nodes: NodeSet) -> CPUSet:
        """All CPUs of `nodes`."""
        return CPUSet.union(self.nodes[node].cpus for node in nodes if node in self.nodes)

    def nodes_of(self, cpus: CPUSet) -> NodeSet:
        """The NUMA nodes on which `cpus` lie."""
        return NodeSet(node.id for node in self.nodes.values() if node.cpus & cpus)

    def socket_of(self, node: int) -> int | None:
        """The socket of a NUMA node; None for a node without CPUs."""
        first = next(iter(self.nodes[node].cpus), None)
        return None if first is None else self.cpus[first].socket

    def _grouped(self, attribute: str) -> Mapping[int, CPUSet]:
        masks: dict[int, int] = {}
        for cpu in self.cpus.values():
            group = getattr(cpu, attribute)
            masks[group] = masks.get(group, 0) | 1 << cpu.id
        return {group: CPUSet.from_mask(masks[group]) for group in sorted(masks)}
