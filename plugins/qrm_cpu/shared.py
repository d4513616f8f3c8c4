"""Containers that run on a pool's CPUs: who may join a floating pool, and who has to follow when pools change."""

from __future__ import annotations

from collections.abc import Mapping

from qrm.allocator import Allocation, ContainerKey, Holding, ResourceRequest
from qrm.cpuset import CPUSet, NodeSet
from qrm.units import MILLIS_PER_CPU
from qrm_cpu import wording
from qrm_cpu.layout import Layout
from qrm_cpu.scene import Scene
from qrm_cpu.survey import RECLAIM


def with_member(
    holdings: Mapping[ContainerKey, Holding], key: ContainerKey, request: ResourceRequest, pool: str, nodes: NodeSet
) -> dict[ContainerKey, Holding]:
    """`holdings` with `request` as a member of `pool`, on the CPUs that it has there already, or none yet."""
    old = holdings.get(key)
    stays = old is not None and not old.adopted and old.allocation.pool == pool
    allocation = old.allocation if old is not None and stays else Allocation(pool, CPUSet(), nodes=nodes)
    return {**holdings, key: Holding(request, allocation)}


def check_floating(scene: Scene, request: ResourceRequest, before: int) -> None:
    """Refuses where the promises to floating shared containers exceed the CPUs for them.

    Args:
        scene: The state with the request in it.
        request: The one that is new or grows.
        before: What it was promised until now, in millicores; no promise is taken back.

    Raises:
        DoesNotFit: They do.
    """
    promised, have = scene.floating_millis, scene.floating_cpus * MILLIS_PER_CPU
    if request.cpu_millis <= before or promised <= have:
        return
    others = promised - request.cpu_millis
    raise wording.refusal(
        request,
        wording.cpus(request.cpu_millis),
        scene.ground.count_by_node(scene.layout.pooled & ~scene.layout.bound),
        wording.cpus(max(have - others, 0)),
        because=f"other shared containers were promised {wording.cpus(others)} of these",
    )


def pool_changes(scene: Scene, layout: Layout, exclusive: int) -> dict[ContainerKey, Allocation]:
    """The allocations in `layout` of those pool members that hold something else now.

    Adopted containers stay where they are as long as no CPU there is exclusively somebody's, or gone.
    """
    changes: dict[ContainerKey, Allocation] = {}
    forbidden = exclusive | ~scene.ground.online
    for pool, members in scene.survey.pools.items():
        mask = layout.pools[pool]
        made: dict[int, Allocation] = {}
        for key, holding in members:
            cpus = holding.allocation.cpus.mask
            wanted = mask
            if pool == RECLAIM and holding.request.qos.memory.numa_binding:
                wanted = reclaimed_part(scene, mask, holding.request, holding.allocation.nodes)
            if cpus == wanted or (holding.adopted and cpus and not cpus & forbidden):
                continue
            if wanted not in made:
                made[wanted] = _allocation(scene, pool, wanted)
            changes[key] = made[wanted]
    return changes


def reclaimed_parts(scene: Scene, reclaim: int, request: ResourceRequest) -> Mapping[int, int]:
    """The parts of the reclaim pool on single NUMA nodes that a NUMA-bound reclaimed container may have."""
    ids = request.qos.numa_ids
    nodes = (node for node in scene.ground.nodes if ids is None or node.id in ids)
    return {node.id: node.mask & reclaim for node in nodes if node.mask & reclaim}


def reclaimed_part(scene: Scene, reclaim: int, request: ResourceRequest, home: NodeSet) -> int:
    """The part on the node of `home`; where that has none, the largest one; the whole pool where no node may be had."""
    parts = reclaimed_parts(scene, reclaim, request)
    if len(home) == 1 and (node := next(iter(home))) in parts:
        return parts[node]
    return max(parts.values(), key=int.bit_count, default=reclaim)


def _allocation(scene: Scene, pool: str, mask: int) -> Allocation:
    nodes = scene.ground.nodes_of(mask)
    size = wording.count(mask.bit_count(), "CPU")
    demand = scene.share if pool == scene.share.pool else scene.carved.get(pool)
    promised = f", of which {wording.cpus(demand.millis)} are promised" if demand else ""
    why = f"pool {pool} has {size} on {wording.nodes(nodes)}{promised}"
    return Allocation(pool, CPUSet.from_mask(mask), nodes=nodes, why=why)
