"""The plan: pure, from a request and what everybody holds to what everybody shall hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qrm.allocation.hints import Policy, merge
from qrm.allocator import (
    Allocation,
    Allocator,
    ContainerKey,
    Holding,
    Quantities,
    ResourceRequest,
    State,
    TopologyHint,
)
from qrm.cpuset import NodeSet
from qrm.topology.machine import Machine

Holdings = Mapping[str, Mapping[ContainerKey, Holding]]
"""By resource, then by container."""

Allocations = dict[ContainerKey, dict[str, Allocation]]
"""By container, then by resource."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The allocations of a new container, and of every other one that changes because of it."""

    key: ContainerKey
    allocations: Allocations
    """What changes; the container's own are always among them."""
    hints: Mapping[str, tuple[TopologyHint, ...]]
    """What each allocator offered, best first."""
    nodes: NodeSet
    """The NUMA nodes that suit all resources."""
    chosen: Mapping[str, TopologyHint]
    """The hint that each resource was or, by a plugin, is to be allocated with."""

    @property
    def own(self) -> Mapping[str, Allocation]:
        """The container's own allocations by resource."""
        return self.allocations.get(self.key, {})


@dataclass(frozen=True, slots=True)
class Alignment:
    """How close to each other the resources of a container have to be."""

    policy: Policy = Policy.BEST_EFFORT
    aligned: tuple[str, ...] = ("cpu", "memory")
    """For the numeric policy: resources that must be on the same NUMA nodes."""


class Planner:
    """Asks the allocators. Holds no state besides the machine and its settings."""

    def __init__(self, machine: Machine, allocators: Sequence[Allocator], alignment: Alignment | None = None) -> None:
        self.machine = machine
        self.allocators = tuple(allocators)
        self.alignment = alignment or Alignment()

    def plan(
        self, request: ResourceRequest, holdings: Holdings, offers: Mapping[str, tuple[TopologyHint, ...]] | None = None
    ) -> Plan:
        """Where `request`'s container shall run; `offers` are the hints of allocators outside this process.

        Raises:
            DoesNotFit: an allocator has no room, or no NUMA nodes suit all of them; the message carries the numbers.
            BadRequest: the request contradicts itself or the machine.
        """
        states = {each.resource: State(self.machine, holdings.get(each.resource, {})) for each in self.allocators}
        hints = {each.resource: tuple(each.hints(request, states[each.resource])) for each in self.allocators}
        hints |= offers or {}
        merged = merge(hints, self.alignment.policy, self.machine.cpu_nodes, self.alignment.aligned)
        allocations: Allocations = {}
        for each in self.allocators:
            changes = each.allocate(request, merged.chosen[each.resource], states[each.resource])
            _add(allocations, each.resource, changes.allocations)
        return Plan(request.key, allocations, hints, merged.nodes, merged.chosen)

    def settle(self, holdings: Holdings) -> Allocations:
        """What changes for those that stay after others left, exited or shrank."""
        allocations: Allocations = {}
        for each in self.allocators:
            changes = each.settle(State(self.machine, holdings.get(each.resource, {})))
            _add(allocations, each.resource, changes.allocations)
        return allocations

    def quantities(self, holdings: Holdings) -> dict[str, Quantities]:
        """How much there is of each resource."""
        return {
            each.resource: each.allocatable(State(self.machine, holdings.get(each.resource, {})))
            for each in self.allocators
        }


def _add(allocations: Allocations, resource: str, changes: Mapping[ContainerKey, Allocation]) -> None:
    for key, allocation in changes.items():
        allocations.setdefault(key, {})[resource] = allocation
