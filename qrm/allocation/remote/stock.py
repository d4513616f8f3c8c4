"""What is held and what there is, by place, in the form in which Katalyst's node reports want it."""

from __future__ import annotations

from collections.abc import Mapping

from qrm.allocation.remote.convert import to_wire_amount
from qrm.allocator import MEMORY, Allocation, Quantities
from qrm.pods.declared import CPU
from qrm.topology.machine import Machine
from qrm.units import MILLIS_PER_CPU
from qrm.wire import resource_plugin_pb2 as wire


def held_amounts(resource: str, allocation: Allocation, machine: Machine) -> Mapping[str, wire.TopologyAwareResource]:
    """What one container holds by resource name; CPUs are counted, whoever else may run on them."""
    by_resource = dict(allocation.amounts)
    if resource == CPU:
        on = {node: len(machine.nodes[node].cpus & allocation.cpus) for node in machine.nodes_of(allocation.cpus)}
        by_resource[CPU] = {node: count * MILLIS_PER_CPU for node, count in on.items()}
    by_resource.setdefault(resource, {})
    found = {}
    for name, by_node in by_resource.items():
        total = to_wire_amount(name, sum(by_node.values()))
        places = _places(name, by_node, allocation.device)
        found[name] = wire.TopologyAwareResource(
            is_scalar_resource=True,
            aggregated_quantity=total,
            original_aggregated_quantity=total,
            topology_aware_quantity_list=places,
            original_topology_aware_quantity_list=places,
        )
    return found


def stock(resource: str, quantities: Quantities, machine: Machine) -> wire.AllocatableTopologyAwareResource:
    """How much of a resource containers can hold, and how much the machine has, as far as it is known."""
    capacity = {
        CPU: {node.id: len(node.cpus) * MILLIS_PER_CPU for node in machine.nodes.values() if node.cpus},
        MEMORY: {node.id: node.memory for node in machine.nodes.values() if node.memory},
    }.get(resource, quantities.allocatable)
    return wire.AllocatableTopologyAwareResource(
        is_scalar_resource=True,
        aggregated_allocatable_quantity=to_wire_amount(resource, sum(quantities.allocatable.values())),
        topology_aware_allocatable_quantity_list=_places(resource, quantities.allocatable),
        aggregated_capacity_quantity=to_wire_amount(resource, sum(capacity.values())),
        topology_aware_capacity_quantity_list=_places(resource, capacity),
    )


def _places(resource: str, by_node: Mapping[int, int], device: str = "") -> list[wire.TopologyAwareQuantity]:
    return [
        wire.TopologyAwareQuantity(
            resource_value=to_wire_amount(resource, by_node[node]), node=node, name=device, topology_level=wire.NUMA
        )
        for node in sorted(by_node)
    ]
