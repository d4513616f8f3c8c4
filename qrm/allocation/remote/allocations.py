"""What a plugin allocates, on the wire and back. All of it is pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from qrm.allocation.remote.annotations import HELD, Held, held_annotation, held_of
from qrm.allocation.remote.convert import from_wire_amount, from_wire_hint, to_nodes, to_wire_hint
from qrm.allocation.remote.errors import PluginError
from qrm.allocator import MEMORY, Allocation, QosLevel, ResourceRequest, TopologyHint
from qrm.cpuset import CPUSet, NodeSet
from qrm.errors import ParseError
from qrm.pods.declared import CPU
from qrm.topology.machine import Machine
from qrm.wire import resource_plugin_pb2 as wire

CPUSET_CPUS = "CpusetCpus"
CPUSET_MEMS = "CpusetMems"
PROPERTIES = {
    "CpuPeriod": "cpu_period",
    "CpuQuota": "cpu_quota",
    "CpuShares": "cpu_shares",
    "MemoryLimitInBytes": "memory_limit_in_bytes",
    "OomScoreAdj": "oom_score_adj",
    CPUSET_CPUS: "cpuset_cpus",
    CPUSET_MEMS: "cpuset_mems",
    "MemorySwapLimitInBytes": "memory_swap_limit_in_bytes",
}
"""The Go names in CRI's LinuxContainerResources, by which plugins say what to set, and the fields' own names.

Katalyst's kubelet sets any field that is a string or an int64: these are all."""
_PROPERTY_OF = {CPU: CPUSET_CPUS, MEMORY: CPUSET_MEMS}
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_INT64 = range(-(2**63), 2**63)
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class RemoteAllocation:
    """What a plugin allocated of one resource to one container."""

    resource: str
    allocation: Allocation
    oci: Mapping[str, str | int] = field(default_factory=dict)
    """What is to be set in CRI's LinuxContainerResources, by the field's own name, such as `cpuset_cpus`."""
    hints: tuple[TopologyHint, ...] = ()
    """The hints that it was allocated with, as far as the plugin repeats them."""
    quantity: int = 0
    """How much the plugin says that it is, in our unit (CPU: millicores)."""

    @property
    def envs(self) -> Mapping[str, str]:
        """Environment variables for the container."""
        return self.allocation.envs

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations for the container."""
        return self.allocation.annotations


def to_wire_allocation(
    resource: str, allocation: Allocation, hint: TopologyHint | None = None
) -> wire.ResourceAllocationInfo:
    """`allocation` of `resource` for a kubelet; what the protocol has no word for goes into an annotation."""
    amounts = allocation.amounts.get(resource, {})
    result = {CPU: str(allocation.cpus), MEMORY: str(allocation.nodes)}.get(resource, allocation.device)
    message = wire.ResourceAllocationInfo(
        oci_property_name=_PROPERTY_OF.get(resource, "") if result else "",
        is_scalar_resource=True,
        allocated_quantity=_quantity(resource, allocation),
        allocation_result=result,
        envs=allocation.envs,
        annotations={
            **allocation.annotations,
            **held_annotation(allocation, cpus=resource != CPU, nodes=resource != MEMORY),
        },
    )
    if resource != CPU:
        message.topology_assignments.update(amounts)
    if hint is not None:
        message.resource_hints.hints.append(to_wire_hint(hint))
    return message


def _quantity(resource: str, allocation: Allocation) -> float:
    if resource == CPU:
        return float(len(allocation.cpus))
    return float(sum(allocation.amounts.get(resource, {}).values()))


def from_wire_allocation(
    resource: str,
    message: wire.ResourceAllocationInfo,
    machine: Machine,
    request: ResourceRequest | None = None,
) -> RemoteAllocation | None:
    """What a plugin allocated of `resource`; None where it leaves the container's CPUs or memory alone.

    Args:
        resource: The resource's name in the answer.
        message: The plugin's word.
        machine: The machine on which it has to make sense.
        request: Whose it is: where the plugin cannot say so, it tells the pool, and that dedicated CPUs are exclusive.

    Raises:
        PluginError: It cannot be used; the message says what and why.
    """
    if message.mounts or message.devices:
        raise PluginError("it wants mounts or devices in the container, which are not supported")
    name, result = message.oci_property_name, message.allocation_result
    annotations = {key: value for key, value in message.annotations.items() if key != HELD}
    try:
        found = held_of(message.annotations)
        oci = _property(name, result) if name else {}
        cpus = CPUSet.parse(result) if name == CPUSET_CPUS else CPUSet()
        nodes = NodeSet.parse(result) if name == CPUSET_MEMS else NodeSet()
        quantity = from_wire_amount(resource, message.allocated_quantity)
    except (ParseError, ValueError) as error:
        raise PluginError(str(error)) from None
    if not name and resource in _PROPERTY_OF:
        return None
    nodes, assigned = to_nodes(nodes, machine), to_nodes(message.topology_assignments, machine)
    if found is None:
        nodes = nodes or assigned
        held = _guessed(resource, message, cpus, nodes, quantity, request)
        exclusive = cpus if _is_dedicated(request) else CPUSet()
    else:
        held, more, exclusive, others = found
        cpus, nodes = cpus | more, nodes | to_nodes(others, machine)
        to_nodes((node for by_node in held.amounts.values() for node in by_node), machine)
    _check_cpus(cpus, exclusive, machine)
    allocation = Allocation(
        pool=held.pool,
        cpus=cpus,
        exclusive=exclusive,
        nodes=nodes or machine.nodes_of(cpus),
        why=held.why,
        amounts=held.amounts,
        device=held.device,
        envs=dict(message.envs),
        annotations=annotations,
    )
    hints = tuple(from_wire_hint(each, machine) for each in message.resource_hints.hints)
    return RemoteAllocation(resource, allocation, oci, hints, quantity)


def _property(name: str, result: str) -> dict[str, str | int]:
    """The CRI field and its value."""
    if name not in PROPERTIES:
        raise PluginError(f"there is no OCI property {_cut(name)!r}", hint=f"there are {', '.join(sorted(PROPERTIES))}")
    if name in (CPUSET_CPUS, CPUSET_MEMS):
        if not result.strip():
            raise PluginError(f"{name} is empty")
        return {PROPERTIES[name]: str(CPUSet.parse(result))}
    if not _NUMBER.fullmatch(result) or int(result) not in _INT64:
        raise PluginError(f"{name} is {_cut(result)!r}, which is no 64-bit number")
    return {PROPERTIES[name]: int(result)}


def _check_cpus(cpus: CPUSet, exclusive: CPUSet, machine: Machine) -> None:
    if not cpus <= machine.online:
        raise PluginError(f"CPUs {_cut(str(cpus - machine.online))} are not online", hint=f"online: {machine.online}")
    if not exclusive <= cpus:
        raise PluginError(f"CPUs {_cut(str(exclusive - cpus))} are exclusive to the container, which is not on them")


def _is_dedicated(request: ResourceRequest | None) -> bool:
    return request is not None and request.qos.level is QosLevel.DEDICATED


def _guessed(
    resource: str,
    message: wire.ResourceAllocationInfo,
    cpus: CPUSet,
    nodes: NodeSet,
    quantity: int,
    request: ResourceRequest | None,
) -> Held:
    """What a plugin that is not ours does not say, as far as it follows from the rest."""
    amounts = {node: from_wire_amount(resource, each) for node, each in message.topology_assignments.items()}
    if not amounts and len(nodes) == 1 and quantity:
        amounts = {next(iter(nodes)): quantity}
    return Held(v=1, pool=_pool(request) if cpus else "", amounts={resource: amounts} if amounts else {})


def _pool(request: ResourceRequest | None) -> str:
    """Whose share CPUs are part of by the container's QoS, as Katalyst names its pools."""
    if request is None:
        return ""
    usual = {QosLevel.DEDICATED: "dedicated", QosLevel.RECLAIMED: "reclaim", QosLevel.SYSTEM: "system"}
    return usual.get(request.qos.level) or request.qos.cpu.cpuset_pool or "share"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
