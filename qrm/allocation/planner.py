"""The plan: pure, from a request and what everybody holds to what everybody shall hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qrm.allocation.hints import Merged, Policy, merge
from qrm.allocator import (
    Allocation,
    Allocator,
    ContainerKey,
    DoesNotFit,
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

Offers = Mapping[str, tuple[TopologyHint, ...]]
"""Hints by resource, from outside this process."""

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
    whole_pod: bool = False
    """All containers of a pod go to the nodes that suit the pod as a whole (kubelet's scope `pod`)."""


class Planner:
    """Asks the allocators. Holds no state besides the machine and its settings."""

    def __init__(self, machine: Machine, allocators: Sequence[Allocator], alignment: Alignment | None = None) -> None:
        self.machine = machine
        self.allocators = tuple(allocators)
        self.alignment = alignment or Alignment()

    def plan(
        self,
        request: ResourceRequest,
        holdings: Holdings,
        offers: Offers | None = None,
        home: NodeSet | None = None,
        pod_offers: Offers | None = None,
    ) -> Plan:
        """Where `request`'s container shall run.

        Args:
            request: What it asks for.
            holdings: What everybody holds.
            offers: The hints of allocators outside this process.
            home: With the scope `pod`, the nodes on which other containers of the pod are; None for the first one.
            pod_offers: As `offers`, for the pod as a whole, where `home` is None.

        Raises:
            DoesNotFit: an allocator has no room, or no NUMA nodes suit all of them; the message carries the numbers.
            BadRequest: the request contradicts itself or the machine.
        """
        states = {each.resource: State(self.machine, holdings.get(each.resource, {})) for each in self.allocators}
        hints = self._hints(request, states) | dict(offers or {})
        if self.alignment.whole_pod:
            together = self._hints(whole_pod(request), states) | dict(pod_offers or {})
            home = home or self._merged(together).nodes
            hints = {resource: self._at_home(resource, offered, home) for resource, offered in hints.items()}
        merged = self._merged(hints)
        allocations: Allocations = {}
        for each in self.allocators:
            changes = each.allocate(request, merged.chosen[each.resource], states[each.resource])
            _add(allocations, each.resource, changes.allocations)
        return Plan(request.key, allocations, hints, home or merged.nodes, merged.chosen)

    def _hints(self, request: ResourceRequest, states: Mapping[str, State]) -> dict[str, tuple[TopologyHint, ...]]:
        return {each.resource: tuple(each.hints(request, states[each.resource])) for each in self.allocators}

    def _merged(self, hints: Mapping[str, tuple[TopologyHint, ...]]) -> Merged:
        return merge(hints, self.alignment.policy, self.machine.cpu_nodes, self.alignment.aligned)

    def _at_home(self, resource: str, offered: tuple[TopologyHint, ...], home: NodeSet) -> tuple[TopologyHint, ...]:
        """The hints within the pod's nodes; all of them where the resource has no preference."""
        if not offered or (offered[0].preferred and self.machine.cpu_nodes <= offered[0].nodes):
            return offered
        if within := tuple(hint for hint in offered if hint.nodes <= home):
            return within
        elsewhere = ", ".join(str(hint.nodes) for hint in offered)
        raise DoesNotFit(f"{resource}: does not fit on NUMA nodes {home}, where its pod is, but on {elsewhere}")

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


def whole_pod(request: ResourceRequest) -> ResourceRequest:
    """What the pod as a whole asks for, as far as it is known."""
    most = {name: max(amount, request.quantities.get(name, 0)) for name, amount in request.pod_quantities.items()}
    return replace(
        request,
        cpu_millis=max(request.cpu_millis, request.pod_cpu_millis),
        quantities={**request.quantities, **most},
    )


def _add(allocations: Allocations, resource: str, changes: Mapping[ContainerKey, Allocation]) -> None:
    for key, allocation in changes.items():
        allocations.setdefault(key, {})[resource] = allocation
