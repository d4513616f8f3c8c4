"""Which NUMA node: for shared and reclaimed pods that are bound to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qrm.allocator import ContainerKey, Holding, QosLevel, ResourceRequest, TopologyHint
from qrm.cpuset import NodeSet
from qrm.units import MILLIS_PER_CPU
from qrm_cpu import wording
from qrm_cpu.requested import check_nodes, pool_name
from qrm_cpu.scene import Scene
from qrm_cpu.shared import reclaimed_parts
from qrm_cpu.survey import DEDICATED, RECLAIM, Demand, pool_of_node


def is_bound(request: ResourceRequest, holdings: Mapping[ContainerKey, Holding]) -> bool:
    """Whether the request is for a shared pool on one NUMA node.

    A container beside which its pod holds CPUs of its own floats: the pod's line in the ledger is theirs.
    """
    if request.qos.level is not QosLevel.SHARED or not request.qos.memory.numa_binding:
        return False
    pod = holdings.get(request.pod_key)
    return pod is None or pod.allocation.pool != DEDICATED


@dataclass(frozen=True, slots=True)
class _Offer:
    """What one NUMA node has for a pod."""

    fits: bool
    largest: int
    """The millicores that would fit."""


def shared_hints(scene: Scene, request: ResourceRequest) -> Sequence[TopologyHint]:
    """The NUMA nodes on which a bound shared pod can live, the one with the most free CPUs first.

    Raises:
        DoesNotFit: There is none.
        BadRequest: The name of its pool is not allowed, or it is new and names NUMA nodes that do not exist.
    """
    home = _home(scene, request)
    if home is None:
        check_nodes(request, scene.ground.machine)
    offers = {
        node.id: _offer(scene, request, node.id)
        for node in scene.ground.nodes
        if (node.id == home if home is not None else _welcome(scene, request, node.id))
    }
    room = {node.id: scene.room.on(node.id) for node in scene.ground.nodes}
    fitting = [node for node, offer in offers.items() if offer.fits]
    if not fitting:
        raise wording.refusal(
            request,
            wording.cpus(max(request.cpu_millis, request.pod_cpu_millis)),
            room,
            wording.cpus(max((offer.largest for offer in offers.values()), default=0)),
            because="" if offers or home is not None else 'numa_share "false" keeps NUMA-bound shared pods apart',
        )
    return [TopologyHint(NodeSet([node]), preferred=True) for node in sorted(fitting, key=lambda node: -room[node])]


def _home(scene: Scene, request: ResourceRequest) -> int | None:
    """The NUMA node on which the request's pod lives already."""
    return next((each.node for each in scene.carved.values() if request.pod.uid in each.pods), None)


def _welcome(scene: Scene, request: ResourceRequest, node: int) -> bool:
    """Whether a new pod may live beside the bound pods of that node."""
    if request.qos.numa_ids is not None and node not in request.qos.numa_ids:
        return False
    there = [demand for demand in scene.carved.values() if demand.node == node]
    return not any(demand.alone for demand in there) if request.qos.cpu.numa_share else not there


def _offer(scene: Scene, request: ResourceRequest, node: int) -> _Offer:
    name = pool_of_node(pool_name(request), node)
    pool = scene.carved.get(name)
    now, has = (pool.millis, pool.size(scene.ground.threads)) if pool else (0, 0)
    others, after = _promises(scene, request, name, now)
    limit = has + scene.room.on(node)
    needs = Demand(name, others + after, 0).size(scene.ground.threads)
    fits = needs <= limit or (pool is not None and others + after <= now)
    return _Offer(fits, max(limit * MILLIS_PER_CPU - others, 0))


def _promises(scene: Scene, request: ResourceRequest, pool: str, now: int) -> tuple[int, int]:
    """What `pool` promises to other pods, and what it would promise to the request's pod, in millicores."""
    members = scene.survey.pools.get(pool, ())
    mine = {key: holding.request for key, holding in members if key.pod_uid == request.pod.uid}
    whole = mine.pop(request.pod_key, None)
    before = max(whole.pod_cpu_millis if whole else 0, sum(each.cpu_millis for each in mine.values()))
    mine[request.key] = request
    return now - before, max(request.pod_cpu_millis, sum(each.cpu_millis for each in mine.values()))


def reclaimed_hints(scene: Scene, request: ResourceRequest) -> Sequence[TopologyHint]:
    """The NUMA nodes on which a bound reclaimed container can run: its pod's, or the one with the most to spare first.

    A reclaimed container is never refused: where no node that it may have has reclaimed CPUs, it gets all nodes.
    """
    load: dict[NodeSet, int] = {}
    homes: dict[str, NodeSet] = {}
    for key, holding in scene.survey.pools.get(RECLAIM, ()):
        if key.container and holding.request.qos.memory.numa_binding and not holding.adopted:
            nodes = holding.allocation.nodes
            load[nodes] = load.get(nodes, 0) + holding.request.cpu_millis
            if key.pod_uid == request.pod.uid:
                homes[key.container] = nodes
    home = homes.get(request.container) or next((homes[name] for name in sorted(homes)), None)
    parts = reclaimed_parts(scene, scene.layout.pools[RECLAIM], request)
    if not parts:
        return [TopologyHint(scene.ground.machine.cpu_nodes, preferred=True)]
    spare = {NodeSet([node]): part.bit_count() * MILLIS_PER_CPU for node, part in parts.items()}
    ranked = [home] if home and home in spare else sorted(spare, key=lambda nodes: load.get(nodes, 0) - spare[nodes])
    return [TopologyHint(nodes, preferred=True) for nodes in ranked]
