"""The contract between qrm and an allocator of one resource.

An allocator is a set of pure functions over immutable values: no I/O, no clock, no memory of its own. It is given
everything that is held (`State`) and answers with what changes. The same state always gives the same answer, so qrm can
ask again after a restart, or ask "what if" without consequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from qrm.cpuset import CPUSet, NodeSet
from qrm.pods.model import ContainerKey, ResourceRequest
from qrm.topology.machine import Machine


@dataclass(frozen=True, slots=True)
class TopologyHint:
    """A set of NUMA nodes on which a request could be served, and whether that is as good as it gets."""

    nodes: NodeSet
    preferred: bool


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one container, or a pod as a whole, holds of one resource. Which fields count depends on the resource."""

    pool: str
    """Whose share it is part of. CPU: `share`, a named pool, `share-NUMA<n>`, `reclaim`, `system`, `dedicated`, ..."""
    cpus: CPUSet = field(default_factory=CPUSet)
    """CPU: where it runs, what the cgroup must show. Never empty for a container."""
    exclusive: CPUSet = field(default_factory=CPUSet)
    """CPU: the part of `cpus` that no other container of another pod may run on."""
    nodes: NodeSet = field(default_factory=NodeSet)
    """The NUMA nodes that it is on. Memory: where its pages may be, what the cgroup must show."""
    why: str = ""
    """One sentence for people: how this choice came about."""
    amounts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """What it counts for, by resource name and NUMA node, in the unit of the request (memory and hugepages: bytes)."""
    device: str = ""
    """The device that it is on, such as a NIC's name."""
    envs: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the container; those of the pod's spec win."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations for the container."""
    oci: Mapping[str, str | int] = field(default_factory=dict)
    """Other fields of CRI's LinuxContainerResources that are to be set, by name, such as memory_limit_in_bytes."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One line of the state: who asked for what, and what it holds.

    For the pod as a whole (key with an empty container name) `request` is that of the container which was planned last.
    """

    request: ResourceRequest
    allocation: Allocation
    running: bool = True
    """False once the container has exited: what it held stays reserved for its pod, and only for it."""
    adopted: bool = False
    """It ran before qrm did: its own exclusive CPUs are taken as they are and never moved."""


@dataclass(frozen=True, slots=True)
class State:
    """Everything an allocator may base its answer on, besides its own settings."""

    machine: Machine
    holdings: Mapping[ContainerKey, Holding]


@dataclass(frozen=True, slots=True)
class Changes:
    """The allocations that differ from the state they were derived from: new ones and changed ones."""

    allocations: Mapping[ContainerKey, Allocation]


@dataclass(frozen=True, slots=True)
class Quantities:
    """How much there is of a resource by NUMA node, in the resource's unit (CPU: millicores)."""

    allocatable: Mapping[int, int]
    """What containers can hold at all."""
    free: Mapping[int, int]
    """What no container holds exclusively and no pool needs."""
    pools: Mapping[str, CPUSet] = field(default_factory=dict)
    """The pools as they are now."""


class Allocator(Protocol):
    """What qrm asks of an allocator. Every method is pure."""

    @property
    def resource(self) -> str:
        """The resource's name: "cpu", "memory", or an extended resource."""

    def hints(self, request: ResourceRequest, state: State) -> Sequence[TopologyHint]:
        """The NUMA node sets on which `request` could be served, best first.

        A container that already holds something (a restart, a resize, another container of the same pod) gets hints
        that keep it where it is as long as that is possible.

        Raises:
            DoesNotFit: nowhere; the message says what is asked, what is free by NUMA node and what would fit.
            BadRequest: the request contradicts itself or the machine, such as a NUMA node that does not exist.
        """

    def allocate(self, request: ResourceRequest, hint: TopologyHint, state: State) -> Changes:
        """The allocation of `request`'s container on `hint`'s nodes, and of every other one that changes because of it.

        Raises:
            DoesNotFit: as `hints`.
        """

    def settle(self, state: State) -> Changes:
        """The changes that are due after holdings were removed, exited or resized, or the machine changed.

        It never fails and never takes exclusive CPUs from a container that runs; of a settled state it changes nothing.
        """

    def allocatable(self, state: State) -> Quantities:
        """How much there is, for status, metrics and reports."""
