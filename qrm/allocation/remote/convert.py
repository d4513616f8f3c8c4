"""Requests and hints on the wire and back. All of it is pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from qrm.allocation.remote.annotations import Told, annotations_of, qos_of, told_of
from qrm.allocation.remote.errors import PluginError
from qrm.allocator import (
    MEMORY,
    BadRequest,
    ContainerKind,
    NativeQos,
    PodIdentity,
    QosLevel,
    ResourceRequest,
    TopologyHint,
)
from qrm.cpuset import NodeSet
from qrm.pods.declared import CPU, RECLAIMED_CPU, RECLAIMED_MEMORY
from qrm.pods.qos import QOS_LEVEL
from qrm.topology.machine import Machine
from qrm.units import LARGEST, MILLIS_PER_CPU
from qrm.wire import resource_plugin_pb2 as wire

VERSION = "v1alpha1"
"""Of the protocol; there is only this one."""
KIND = "ResourcePlugin"
"""The type by which kubelet's plugin watcher knows this protocol."""

_RECLAIMED = {CPU: RECLAIMED_CPU, MEMORY: RECLAIMED_MEMORY}
_TYPES = {
    ContainerKind.INIT: wire.INIT,
    ContainerKind.MAIN: wire.MAIN,
    ContainerKind.UNKNOWN: wire.MAIN,
    ContainerKind.SIDECAR: wire.SIDECAR,
    ContainerKind.EPHEMERAL: wire.EPHEMERAL,
}
_KINDS = {
    wire.INIT: ContainerKind.INIT,
    wire.MAIN: ContainerKind.MAIN,
    wire.SIDECAR: ContainerKind.SIDECAR,
    wire.EPHEMERAL: ContainerKind.EPHEMERAL,
}
_NATIVE = {str(each): each for each in NativeQos}


def asked_of(request: ResourceRequest, resource: str) -> int:
    """How much of `resource` is asked, in our unit; 0 where nothing is.

    Without a memory request the limit counts for Guaranteed pods, where Kubernetes has both equal, and dedicated ones.
    """
    if resource == CPU:
        return request.cpu_millis
    limited = request.native_qos is NativeQos.GUARANTEED or request.qos.level is QosLevel.DEDICATED
    return request.quantities.get(resource, request.memory_limit if limited and resource == MEMORY else 0)


def to_wire_amount(resource: str, amount: int) -> float:
    """An amount of ours as the protocol has it: CPUs at milli precision, everything else in the same unit."""
    return amount / MILLIS_PER_CPU if resource == CPU else float(amount)


def from_wire_amount(resource: str, amount: float) -> int:
    """The reverse of `to_wire_amount`, fractions rounded up; raises ValueError for what is no amount."""
    scaled = amount * MILLIS_PER_CPU if resource == CPU else amount
    if not math.isfinite(scaled) or not 0 <= scaled <= LARGEST + 1:
        raise ValueError(f"{amount} is not an amount from 0 to 2^63-1")
    whole = round(scaled)
    close = math.isclose(scaled, whole, rel_tol=1e-12, abs_tol=1e-6)
    return min(whole if close else math.ceil(scaled), LARGEST)


def to_wire_request(
    request: ResourceRequest, resource: str, hint: TopologyHint | None = None, *, index: int = 0, original: bool = True
) -> wire.ResourceRequest:
    """What a plugin for `resource` is asked.

    Args:
        request: The container's ask.
        resource: The plugin's resource, which is the mapped name: `cpu` also where reclaimed CPUs are asked.
        hint: Where it is to be allocated; None while hints are being asked for, or without a preference.
        index: The container's place in its list in the pod.
        original: Whether the quantity has the name that the pod asks with, as under Katalyst's kubelet. With False it
            has the mapped name and its unit, which katalyst-core since 2026-02 insists on.
    """
    amount, name = asked_of(request, resource), resource
    quantity = to_wire_amount(resource, amount)
    if original and request.qos.level is QosLevel.RECLAIMED and resource in _RECLAIMED:
        name, quantity = _RECLAIMED[resource], float(amount)
    known = request.native_qos is not NativeQos.UNKNOWN
    message = wire.ResourceRequest(
        pod_uid=request.pod.uid,
        pod_namespace=request.pod.namespace,
        pod_name=request.pod.name,
        container_name=request.container,
        container_type=_TYPES[request.kind],
        container_index=index,
        resource_name=resource,
        resource_requests={name: quantity},
        labels={QOS_LEVEL: str(request.qos.level)},
        annotations=annotations_of(request),
        native_qos_class=str(request.native_qos) if known else "",
    )
    if hint is not None:
        message.hint.CopyFrom(to_wire_hint(hint))
    return message


def to_wire_pod_request(
    request: ResourceRequest, resource: str, hint: TopologyHint | None = None, *, original: bool = True
) -> wire.PodResourceRequest:
    """As `to_wire_request`, for the pod as a whole; `request` has its totals."""
    one = to_wire_request(request, resource, hint, original=original)
    message = wire.PodResourceRequest(
        pod_uid=one.pod_uid,
        pod_namespace=one.pod_namespace,
        pod_name=one.pod_name,
        resource_name=one.resource_name,
        resource_requests=one.resource_requests,
        labels=one.labels,
        annotations=one.annotations,
    )
    if hint is not None:
        message.hint.CopyFrom(one.hint)
    return message


def from_wire_request(message: wire.ResourceRequest, default: QosLevel = QosLevel.SHARED) -> ResourceRequest:
    """The container's ask in `message`; `default` is the level of a pod that names none.

    A client of our kind tells all that the pod asks for; others tell the one resource that the message is about.

    Raises:
        BadRequest: The annotations make no sense, or the quantity is none.
    """
    told = told_of(message.annotations)
    if not message.pod_uid or not message.container_name:
        raise BadRequest("the request names no pod_uid or no container_name")
    whole = _whole(message, default, told)
    asked = _quantities(message.resource_requests)
    cpu = asked.pop(CPU, whole.cpu_millis)
    # What was told to the byte stays where the protocol's double is just that.
    news = {name: amount for name, amount in asked.items() if float(asked_of(whole, name)) != float(amount)}
    quantities = {name: amount for name, amount in {**whole.quantities, **news}.items() if amount}
    return replace(whole, cpu_millis=cpu, quantities=quantities)


def _whole(message: wire.ResourceRequest, default: QosLevel, told: Told | None) -> ResourceRequest:
    """The request apart from its quantity."""
    return ResourceRequest(
        pod=PodIdentity(message.pod_uid, message.pod_namespace, message.pod_name),
        container=message.container_name,
        qos=qos_of(message.annotations, default, told),
        kind=_KINDS.get(message.container_type, ContainerKind.UNKNOWN),
        native_qos=_NATIVE.get(message.native_qos_class, NativeQos.UNKNOWN),
        cpu_millis=told.cpu if told else 0,
        cpu_limit_millis=told.cpu_limit if told else None,
        memory_limit=told.memory_limit if told else 0,
        pod_cpu_millis=told.pod_cpu if told else 0,
        quantities=told.quantities if told else {},
        source=told.source if told else "kubelet",
    )


def _quantities(asked: Mapping[str, float]) -> dict[str, int]:
    """The amounts in our units, by mapped name."""
    mapped = {original: name for name, original in _RECLAIMED.items()}
    found = {}
    for name, quantity in asked.items():
        try:
            # Reclaimed CPUs are asked for in millicores, which is our unit already.
            found[mapped.get(name, name)] = from_wire_amount(name, quantity)
        except ValueError as error:
            raise BadRequest(f"{name}: {error}") from None
    return found


def to_wire_hint(hint: TopologyHint) -> wire.TopologyHint:
    """A hint; the protocol has nodes in ascending order."""
    return wire.TopologyHint(nodes=list(hint.nodes), preferred=hint.preferred)


def from_wire_hint(message: wire.TopologyHint, machine: Machine) -> TopologyHint:
    """A hint; one without nodes means any of them, as for kubelet. Raises PluginError for nodes that do not exist."""
    nodes = to_nodes(message.nodes, machine)
    return TopologyHint(nodes or machine.cpu_nodes, message.preferred)


def to_nodes(ids: Iterable[int], machine: Machine) -> NodeSet:
    """A set of this machine's NUMA nodes. Raises PluginError for others."""
    wanted = sorted(set(ids))
    unknown = [node for node in wanted if node not in machine.nodes]
    if unknown:
        raise PluginError(f"NUMA nodes {unknown[:8]} do not exist here", hint=f"there are {NodeSet(machine.nodes)}")
    return NodeSet(wanted)
