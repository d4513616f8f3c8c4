"""A pod's QoS as annotations again, and what qrm tells its own kind beyond the protocol.

Katalyst's plugins read the pod's annotations themselves: the level, and the JSON objects of the enhancements. They
flatten these and forget everything else (katalyst-core qrm-plugins/util GetKatalystQoSLevelFromResourceReq). A request
holds both forms, so that plugins which look for the flattened keys right away find them too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec

from qrm.allocator import Allocation, Qos, QosLevel, ResourceRequest
from qrm.cpuset import CPUSet, NodeSet
from qrm.errors import BadRequest, ParseError
from qrm.pods.qos import (
    CPU_ENHANCEMENT,
    MEMORY_ENHANCEMENT,
    MEMORY_ONLY_NODES,
    NETWORK_ENHANCEMENT,
    NUMA_IDS,
    NUMA_NUMBER,
    QOS_LEVEL,
    read_qos,
)

REQUEST = "qrm.io/request"
"""On a request: `Told` as JSON. Plugins that are not ours do not look at it."""
HELD = "qrm.io/held"
"""On an allocation: `Held` as JSON. Our client takes it off; under another kubelet it ends as a harmless annotation."""


Amount = Annotated[int, msgspec.Meta(ge=0)]
"""Checked, since under another kubelet the annotation is whatever the pod's author wrote."""


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the protocol has no word for in a request."""

    v: Literal[1]
    """Version of the format; always written."""
    by_default: bool = False
    cpu: Amount = 0
    cpu_limit: Amount | None = None
    memory_limit: Amount = 0
    pod_cpu: Amount = 0
    quantities: dict[str, Amount] = {}
    source: str = "cri"


class Held(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the protocol has no word for in an allocation. Sets are in kernel list format."""

    v: Literal[1]
    """Version of the format; always written."""
    pool: str = ""
    cpus: str = ""
    """Only where no CRI field of the answer says it."""
    exclusive: str = ""
    nodes: str = ""
    why: str = ""
    amounts: dict[str, dict[int, int]] = {}
    device: str = ""


def annotations_of(request: ResourceRequest) -> dict[str, str]:
    """What the annotations of the request's pod say, in both forms, and `Told`."""
    qos = request.qos
    told = Told(
        v=1,
        by_default=qos.by_default,
        cpu=request.cpu_millis,
        cpu_limit=request.cpu_limit_millis,
        memory_limit=request.memory_limit,
        pod_cpu=request.pod_cpu_millis,
        quantities=dict(request.quantities),
        source=request.source,
    )
    found = {QOS_LEVEL: str(qos.level), REQUEST: msgspec.json.encode(told).decode()}
    enhancements = {CPU_ENHANCEMENT: qos.cpu, MEMORY_ENHANCEMENT: qos.memory, NETWORK_ENHANCEMENT: qos.network}
    for annotation, enhancement in enhancements.items():
        said = _said(enhancement)
        if said:
            found[annotation] = json.dumps(said)
            found.update(said)
    if qos.numa_number is not None:
        found[NUMA_NUMBER] = str(qos.numa_number)
    if qos.numa_ids is not None:
        found[NUMA_IDS] = str(qos.numa_ids)
    if qos.memory_only_nodes:
        found[MEMORY_ONLY_NODES] = "true"
    return found


def qos_of(annotations: Mapping[str, str], default: QosLevel, told: Told | None) -> Qos:
    """The QoS that the annotations of a request say; raises BadRequest as `qrm.pods.qos.read_qos`."""
    qos = read_qos(annotations, default)
    return replace(qos, by_default=told.by_default) if told else qos


def told_of(annotations: Mapping[str, str]) -> Told | None:
    """What a client of our kind tells; None where it is none. Raises BadRequest."""
    text = annotations.get(REQUEST)
    try:
        return None if text is None else msgspec.json.decode(text, type=Told)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRequest(f"annotation {REQUEST} cannot be read: {error}") from error


def held_annotation(allocation: Allocation, *, cpus: bool, nodes: bool) -> dict[str, str]:
    """`Held` for `allocation`; whether its CPUs and nodes have to be in it."""
    held = Held(
        v=1,
        pool=allocation.pool,
        cpus=str(allocation.cpus) if cpus else "",
        exclusive=str(allocation.exclusive),
        nodes=str(allocation.nodes) if nodes else "",
        why=allocation.why,
        amounts={resource: dict(by_node) for resource, by_node in allocation.amounts.items()},
        device=allocation.device,
    )
    return {HELD: msgspec.json.encode(held).decode()}


def held_of(annotations: Mapping[str, str]) -> tuple[Held, CPUSet, CPUSet, NodeSet] | None:
    """`Held` with its CPUs, exclusive CPUs and nodes; None where there is none. Raises ParseError."""
    text = annotations.get(HELD)
    if text is None:
        return None
    try:
        held = msgspec.json.decode(text, type=Held)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ParseError(f"annotation {HELD} cannot be read: {error}") from error
    return held, CPUSet.parse(held.cpus), CPUSet.parse(held.exclusive), NodeSet.parse(held.nodes)


def _said(enhancement: Any) -> dict[str, str]:
    """The keys of one enhancement that do not have their default; the fields of its class are Katalyst's keys."""
    usual = type(enhancement)()
    values = {each.name: getattr(enhancement, each.name) for each in fields(enhancement)}
    return {name: _text(value) for name, value in values.items() if value != getattr(usual, name)}


def _text(value: bool | float | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return format(Decimal(repr(value)), "f") if isinstance(value, float) else str(value)
