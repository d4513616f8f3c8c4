"""The plan: pure, from a request and what everybody holds to what everybody shall hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

    @property
    def own(self) -> Mapping[str, Allocation]:
        """The container's own allocations by resource."""
        return self.allocations[self.key]


class Planner:
    """Asks the allocators. Holds no state besides the machine."""

    def __init__(self, machine: Machine, allocators: Sequence[Allocator]) -> None:
        self.machine = machine
        self.allocators = tuple(allocators)

    def plan(self, request: ResourceRequest, holdings: Holdings) -> Plan:
        """Where `request`'s container shall run.

        Each allocator's best hint is taken. (With more than one allocator their hints are to be merged here first.)

        Raises:
            DoesNotFit: an allocator has no room; the message carries its numbers.
            BadRequest: the request contradicts itself or the machine.
        """
        states = {each.resource: State(self.machine, holdings.get(each.resource, {})) for each in self.allocators}
        hints = {each.resource: tuple(each.hints(request, states[each.resource])) for each in self.allocators}
        allocations: Allocations = {}
        for each in self.allocators:
            changes = each.allocate(request, hints[each.resource][0], states[each.resource])
            _add(allocations, each.resource, changes.allocations)
        return Plan(request.key, allocations, hints)

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
