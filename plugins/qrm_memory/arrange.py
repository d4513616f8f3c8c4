"""From a scene to what changes: the one place in which allocations are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qrm.allocator import Allocation, ContainerKey, Holding, ResourceRequest
from qrm.cpuset import NodeSet
from qrm_memory import wording
from qrm_memory.ground import Ground, members
from qrm_memory.requested import Amounts, asked, page_size
from qrm_memory.scene import Scene
from qrm_memory.spread import Entry, Parts, balance, portions
from qrm_memory.survey import DEDICATED, FLOATING, Unit

Changes = dict[ContainerKey, Allocation]
ByResource = Mapping[str, Parts]


def arrange(
    scene: Scene,
    moves: Mapping[ContainerKey, int] | None = None,
    *,
    why: str = "",
    planned: ResourceRequest | None = None,
) -> Changes:
    """The allocations of all that are held otherwise than they should be, and those of `planned` in any case.

    Args:
        scene: What is held, with what is planned in it.
        moves: The new zones of those that make room.
        why: The reason for the choice of `planned`.
        planned: The container that is planned. Its pod has a line if it is bound.
    """
    moves = moves or {}
    changes = _floating(scene, moves)
    parts = _parts(scene, moves)
    for unit in scene.survey.units.values():
        zone = moves.get(unit.key, unit.zone)
        mine = planned if planned and planned.pod.uid == unit.uid else None
        reason = why if mine else f"widened to {wording.nodes(zone or scene.floor)} to make room for another pod"
        for key, allocation in _of_unit(scene, unit, zone, parts[unit.uid], reason, mine):
            changes[key] = allocation
    return changes


def float_on(ground: Ground, request: ResourceRequest, zone: int, why: str) -> Allocation:
    """The allocation of a container that floats. Its amounts are in proportion to the sizes of the nodes."""
    return Allocation(FLOATING, nodes=NodeSet.from_mask(zone), why=why, amounts=_divided(ground, asked(request), zone))


def used_by_units(scene: Scene, resource: str) -> dict[int, int]:
    """The bytes that bound pods count for, by node."""
    used: dict[int, int] = {}
    for parts in _parts(scene, {}).values():
        for node, amount in parts.get(resource, {}).items():
            used[node] = used.get(node, 0) + amount
    return used


def _floating(scene: Scene, moves: Mapping[ContainerKey, int]) -> Changes:
    """The changes of containers that float, or are reclaimed and on one node."""
    changes = {}
    lost = ~(scene.ground.present & ~scene.exclusive)
    for key, held in scene.survey.floats:
        nodes = held.allocation.nodes.mask
        rest = nodes & ~lost
        zone = rest or scene.zone_for(held.request)
        if not held.adopted:
            zone |= scene.zone_for(held.request)
        if zone != nodes:
            changes[key] = float_on(scene.ground, held.request, zone, floating_why(zone))
    for key, held in scene.survey.narrow:
        zone = moves.get(key, scene.home_of(held))
        if zone != held.allocation.nodes.mask:
            changes[key] = float_on(scene.ground, held.request, zone, f"{wording.nodes(zone)}, which had room")
    return changes


def floating_why(zone: int) -> str:
    """The reason for the nodes of what floats."""
    return f"floats on {wording.nodes(zone)}, which no pod has for itself"


def _of_unit(
    scene: Scene, unit: Unit, zone: int, parts: ByResource, why: str, planned: ResourceRequest | None
) -> Iterator[tuple[ContainerKey, Allocation]]:
    """The allocations of a bound pod and its containers that are to change."""
    pool = DEDICATED if zone else FLOATING
    nodes = NodeSet.from_mask(zone or scene.floor)
    if not zone:
        why = f"its NUMA nodes are gone; {floating_why(nodes.mask)}"
    line = unit.line
    same = line is not None and _is(line.allocation, pool, nodes, parts)
    if planned or (line is not None and not same):
        yield unit.key, Allocation(pool, nodes=nodes, why=f"{why}, for the whole pod", amounts=parts)
    for key, held in unit.containers:
        mine = planned is not None and key == planned.key
        if not mine and _stays(scene, held, pool, nodes, same_line=same):
            continue
        amounts = _share(asked(held.request), parts)
        if mine or not _is(held.allocation, pool, nodes, amounts):
            yield key, Allocation(pool, nodes=nodes, why=why, amounts=amounts)


def _stays(scene: Scene, held: Holding, pool: str, nodes: NodeSet, *, same_line: bool) -> bool:
    """Whether a container of a bound pod keeps what it has: it was adopted, or nothing has changed for its pod."""
    old = held.allocation
    if held.adopted:
        return bool(old.nodes.mask & scene.ground.present)
    return same_line and old.pool == pool and old.nodes == nodes


def _is(allocation: Allocation, pool: str, nodes: NodeSet, amounts: ByResource) -> bool:
    return (allocation.pool, allocation.nodes, allocation.amounts) == (pool, nodes, amounts)


def _parts(scene: Scene, moves: Mapping[ContainerKey, int]) -> dict[str, dict[str, Parts]]:
    """By bound pod and resource, what it counts for on which node."""
    found: dict[str, dict[str, Parts]] = {uid: {} for uid in scene.survey.units}
    entries: dict[str, list[Entry]] = {}
    for unit in scene.survey.units.values():
        zone = moves.get(unit.key, unit.zone) or scene.floor
        for name, amount in unit.need.items():
            before = unit.line.allocation.amounts.get(name, {}) if unit.line else {}
            entries.setdefault(name, []).append(Entry(unit.uid, zone, amount, before))
    for name, several in entries.items():
        capacity = scene.ground.capacity.get(name, {})
        for uid, parts in balance(several, capacity, page_size(name)).items():
            if parts:
                found[uid][name] = parts
    return found


def _divided(ground: Ground, amounts: Amounts, zone: int) -> dict[str, dict[int, int]]:
    return {
        name: portions(amount, {node: ground.total(name, 1 << node) for node in members(zone)}, page_size(name))
        for name, amount in amounts.items()
    }


def _share(amounts: Amounts, parts: ByResource) -> dict[str, dict[int, int]]:
    """A container's part of what is its pod's, in the same proportion."""
    return {name: portions(amount, parts.get(name, {}), page_size(name)) for name, amount in amounts.items()}
