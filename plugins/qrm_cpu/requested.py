"""What a request says about pools and NUMA nodes, and where that contradicts itself or the machine."""

from __future__ import annotations

from qrm.allocator import BadRequest, QosLevel, ResourceRequest
from qrm.cpuset import NodeSet
from qrm.topology.machine import Machine
from qrm_cpu.survey import DEDICATED, RECLAIM, RESERVE, SHARE, SYSTEM, node_of_pool, pool_of_node

_TAKEN_NAMES = (RESERVE, RECLAIM, DEDICATED)
_TAKEN_STARTS = (SYSTEM, pool_of_node(SHARE, 0).removesuffix("0"))
_DOMAIN = "katalyst.kubewharf.io"
_POOL_FIELD = f"{_DOMAIN}/cpu_enhancement: cpuset_pool"


def pool_name(request: ResourceRequest) -> str:
    """The pool that a request is for; without the NUMA node if it is bound to one.

    Raises:
        BadRequest: it names a pool that is not for pods of its QoS level.
    """
    level, named = request.qos.level, request.qos.cpu.cpuset_pool
    if level is QosLevel.DEDICATED:
        return DEDICATED
    if level is QosLevel.RECLAIMED:
        return RECLAIM
    if named and node_of_pool(named) is not None:
        raise BadRequest(
            f"{_POOL_FIELD} {named!r} looks like the part of a pool that is bound to a NUMA node",
            hint="any name that does not end in -NUMA and a number is allowed; numa_binding binds a pod to a node",
        )
    if level is QosLevel.SYSTEM:
        if not named:
            return SYSTEM
        return named if named.startswith(SYSTEM) else f"{SYSTEM}-{named}"
    pool = named or SHARE
    if pool in _TAKEN_NAMES or pool.startswith(_TAKEN_STARTS):
        raise BadRequest(
            f"{_POOL_FIELD} {pool!r} is not a pool for {level}",
            hint=f"any name is allowed but {', '.join(_TAKEN_NAMES)} and those that start with system or share-NUMA",
        )
    return pool


def check_nodes(request: ResourceRequest, machine: Machine) -> None:
    """Raises BadRequest where the machine has no such NUMA nodes as are asked for."""
    ids, number = request.qos.numa_ids, request.qos.numa_number
    if ids is not None and not (ids and ids <= NodeSet(machine.nodes) and ids & machine.cpu_nodes):
        raise BadRequest(
            f"{_DOMAIN}/numa_ids asks for NUMA nodes {str(ids)!r}",
            hint=f"this machine has nodes {NodeSet(machine.nodes)}, of which {machine.cpu_nodes} have CPUs",
        )
    if ids is None and number is not None and not 1 <= number <= len(machine.cpu_nodes):
        raise BadRequest(
            f"{_DOMAIN}/numa_number asks for {number} NUMA nodes",
            hint=f"this machine has {len(machine.cpu_nodes)} with CPUs",
        )
