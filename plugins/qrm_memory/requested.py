"""What a request asks for in bytes, how it wants to live, and where it contradicts itself or the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from qrm.allocator import HUGEPAGES, MEMORY, BadRequest, NativeQos, QosLevel, ResourceRequest
from qrm.cpuset import NodeSet
from qrm.errors import ParseError
from qrm.units import parse_quantity
from qrm_memory.ground import Ground, hugepages_name

Amounts = Mapping[str, int]
"""Bytes by resource name, without zeros."""

_DOMAIN = "katalyst.kubewharf.io"


def is_bound(request: ResourceRequest) -> bool:
    """Whether the container stays on NUMA nodes that were chosen for its pod."""
    level = request.qos.level
    return level is QosLevel.DEDICATED or (level is QosLevel.SHARED and request.qos.memory.numa_binding)


def is_narrow(request: ResourceRequest) -> bool:
    """Whether it is reclaimed and wants to be on one NUMA node, for which nothing is promised."""
    return request.qos.level is QosLevel.RECLAIMED and request.qos.memory.numa_binding


def is_exclusive(request: ResourceRequest) -> bool:
    """Whether its NUMA nodes are to be nobody else's."""
    return request.qos.level is QosLevel.DEDICATED and request.qos.memory.numa_exclusive


def asked(request: ResourceRequest) -> Amounts:
    """What counts for the container: memory, and hugepages in whole pages, under their canonical names.

    Without a memory request the limit counts for Guaranteed pods, where Kubernetes has both equal, and dedicated ones.
    """
    quantities = request.quantities
    memory = quantities.get(MEMORY)
    if memory is None:
        limited = request.native_qos is NativeQos.GUARANTEED or request.qos.level is QosLevel.DEDICATED
        memory = request.memory_limit if limited else 0
    found = {MEMORY: memory} if memory > 0 else {}
    for name, amount in quantities.items():
        if amount > 0 and name.startswith(HUGEPAGES) and (page := page_size(name)):
            canonical = hugepages_name(page)
            found[canonical] = found.get(canonical, 0) + -(-amount // page) * page
    return found


@lru_cache(maxsize=64)
def page_size(resource: str) -> int:
    """The bytes of one page of `resource`: 1 for memory, 0 for names that are none."""
    if resource == MEMORY:
        return 1
    try:
        size = parse_quantity(resource.removeprefix(HUGEPAGES))
    except ParseError:
        return 0
    return int(size) if size == int(size) else 0


def added(amounts: Iterable[Amounts]) -> dict[str, int]:
    """The sum."""
    total: dict[str, int] = {}
    for each in amounts:
        for name, amount in each.items():
            total[name] = total.get(name, 0) + amount
    return total


def check(request: ResourceRequest, ground: Ground) -> None:
    """Raises BadRequest where hugepages have no size, or the machine has no such NUMA nodes as are asked for."""
    for name in request.quantities:
        if name.startswith(HUGEPAGES) and not page_size(name):
            raise BadRequest(f"{name} names no page size", hint=f"write it like {HUGEPAGES}2Mi or {HUGEPAGES}1Gi")
    if is_bound(request):
        _check_nodes(request, ground)


def _check_nodes(request: ResourceRequest, ground: Ground) -> None:
    ids, number = request.qos.numa_ids, request.qos.numa_number
    if ids is not None:
        usable = ground.base | (ground.remote if request.qos.memory_only_nodes else 0)
        if not ids.mask & ground.base or ids.mask & ~usable:
            remote = NodeSet.from_mask(ground.remote)
            rest = f"; {remote} have memory alone, for pods with qrm.io/memory_only_nodes" if remote else ""
            raise BadRequest(
                f"{_DOMAIN}/numa_ids asks for NUMA nodes {str(ids)!r}",
                hint=f"nodes {NodeSet.from_mask(ground.base)} of this machine have CPUs and memory{rest}",
            )
    elif number is not None and not 1 <= number <= ground.base.bit_count():
        raise BadRequest(
            f"{_DOMAIN}/numa_number asks for {number} NUMA nodes",
            hint=f"this machine has {ground.base.bit_count()} with CPUs and memory",
        )
