"""One line of the ledger: a container, what it asked for, what it holds, and how far that has got."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from qrm.allocator import MEMORY, Allocation, ContainerKey, Holding, ResourceRequest, TopologyHint
from qrm.cpuset import CPUSet, NodeSet

CPU = "cpu"


class Mark(StrEnum):
    """Why a container is not simply one of ours."""

    NONE = ""
    ADOPTED = "adopted"
    """It ran before qrm: kept as it is."""
    UNMANAGED = "unmanaged"
    """It passed unmodified because qrm itself failed; it holds nothing until it is repaired."""


@dataclass(frozen=True, slots=True)
class Record:
    """A container instance in the ledger; with an empty container name, what its pod holds as a whole."""

    key: ContainerKey
    request: ResourceRequest
    sandbox_id: str
    attempt: int = 0
    container_id: str = ""
    """The runtime's id; empty while the creation's outcome is not known."""
    running: bool = True
    """False once this instance has exited: reserved, not enforced."""
    mark: Mark = Mark.NONE
    allocations: Mapping[str, Allocation] = field(default_factory=dict)
    """By resource."""
    hints: Mapping[str, tuple[TopologyHint, ...]] = field(default_factory=dict)
    """What each allocator offered when the choice was made, best first."""
    nodes: NodeSet = field(default_factory=NodeSet)
    """The NUMA nodes that suited all resources then."""
    asked: bytes = b""
    """kubelet's own LinuxContainerResources, serialised."""
    applied: CPUSet | None = None
    """The cpuset that the runtime last confirmed; None before the first time."""
    applied_mems: NodeSet | None = None
    """The memory nodes that the runtime last confirmed; None before the first time."""
    created: float = 0.0
    """Unix time of the first planning of this instance."""
    awaited: float = 0.0
    """Unix time until which a process that has retired may still be waiting for the runtime to make this instance."""

    @property
    def cpus(self) -> CPUSet | None:
        """Where it shall run; None where qrm does not say."""
        allocation = self.allocations.get(CPU)
        return allocation.cpus if allocation else None

    @property
    def mems(self) -> NodeSet | None:
        """The NUMA nodes that its memory may be on; None where qrm does not say."""
        allocation = self.allocations.get(MEMORY)
        return allocation.nodes if allocation else None

    @property
    def named(self) -> dict[str, str]:
        """How it is called in the log."""
        return {"pod": str(self.request.pod), "container": self.key.container, "attempt": str(self.attempt)}

    @property
    def is_pod(self) -> bool:
        """Whether this line stands for the pod as a whole."""
        return not self.key.container

    @property
    def pending(self) -> bool:
        """Whether the runtime has not confirmed this instance yet."""
        return not self.container_id and not self.is_pod

    @property
    def push_due(self) -> bool:
        """Whether a live container's cpuset differs from what the runtime last confirmed."""
        return bool(self.container_id) and self.running and self.cpus is not None and self.applied != self.cpus

    @property
    def mems_due(self) -> bool:
        """As `push_due`, for the memory nodes."""
        return bool(self.container_id) and self.running and self.mems is not None and self.applied_mems != self.mems

    def holding(self, resource: str) -> Holding | None:
        """The record as an allocator of `resource` sees it."""
        allocation = self.allocations.get(resource)
        if allocation is None:
            return None
        return Holding(self.request, allocation, running=self.running, adopted=self.mark is Mark.ADOPTED)
