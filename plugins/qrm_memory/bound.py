"""Bound pods: finding NUMA nodes for one that comes, and room where it is for one that grows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from qrm.allocator import MEMORY, Allocation, ContainerKey, DoesNotFit, Holding, ResourceRequest, TopologyHint
from qrm.cpuset import NodeSet
from qrm_memory import wording
from qrm_memory.arrange import arrange
from qrm_memory.ground import Ground, members
from qrm_memory.requested import added, asked, is_bound, is_exclusive, page_size
from qrm_memory.scene import Scene, look
from qrm_memory.search import Candidate, Wish, candidates, hints_for, judge, may_have, node_sets, usable_nodes, zone_on
from qrm_memory.survey import DEDICATED, Unit, at_least, importance, survey, unit_of
from qrm_memory.zones import NOTHING, Ask, Board

Holdings = Mapping[ContainerKey, Holding]


def hints(ground: Ground, request: ResourceRequest, holdings: Holdings) -> Sequence[TopologyHint]:
    """The sets of NUMA nodes on which the pod of `request` can live with it, best first: where it is, if it is.

    Raises:
        DoesNotFit: There are none.
    """
    scene, wish = _prepare(ground, request, holdings)
    if wish.home:
        if judge(scene, wish, wish.home).fit.short:
            raise _refusal(scene, wish, [wish.home])
        return [TopologyHint(NodeSet.from_mask(wish.home & ground.base or wish.home), preferred=True)]
    found = candidates(scene, wish, ground.present)
    if not found:
        raise _refusal(scene, wish, list(node_sets(scene, request, ground.present)))
    return hints_for(scene, wish, found)


def place(
    ground: Ground, request: ResourceRequest, hint: TopologyHint, holdings: Holdings
) -> dict[ContainerKey, Allocation]:
    """What the pod of `request` and its containers hold with it, and what changes for others.

    The container's and the pod's own allocations are always among the changes.

    Raises:
        DoesNotFit: Not on the nodes of `hint`, or for a pod that is there already, not where it is.
    """
    scene, wish = _prepare(ground, request, holdings)
    chosen = _chosen(scene, wish, hint)
    allocation = Allocation(DEDICATED, nodes=NodeSet.from_mask(chosen.zone))
    line = Holding(request, replace(wish.line.allocation if wish.line else allocation, nodes=allocation.nodes))
    old = holdings.get(request.key)
    mine = Holding(request, old.allocation if old else allocation)
    containers = sorted([*wish.siblings, (request.key, mine)], key=lambda item: item[0].container)
    unit = replace(unit_of(ground, request.pod.uid, line, containers), zone=chosen.zone, need=wish.need)
    final = scene.with_unit(unit)
    return arrange(final, chosen.fit.moves, why=_why(scene, wish, chosen), planned=request)


def _prepare(ground: Ground, request: ResourceRequest, holdings: Holdings) -> tuple[Scene, Wish]:
    """The scene without the pod, and what the pod asks for."""
    found = survey(ground, holdings, request.key)
    units = dict(found.units)
    unit = units.pop(request.pod.uid, None)
    return look(ground, replace(found, units=units)), _wish(ground, request, holdings, unit)


def _wish(ground: Ground, request: ResourceRequest, holdings: Holdings, unit: Unit | None) -> Wish:
    """What the pod needs with `request`'s container beside those of `unit`.

    A container that exited has left what it had to its pod: an init container's memory is there for those after it.
    One that changes its request changes what is reserved for the pod by as much.
    """
    old = holdings.get(request.key)
    known = [(request.key, old)] if old is not None and is_bound(old.request) else []
    siblings = unit.containers if unit else ()
    if not known and not siblings:
        need = asked(request)
        return Wish(request, None, (), 0, {}, Ask(need, tuple(need), importance(request)))
    before = unit_of(ground, request.pod.uid, holdings.get(request.pod_key), [*siblings, *known])
    running = added([asked(request), *(asked(held.request) for _, held in siblings if held.running)])
    kept = dict(before.need)
    for held in (held for _, held in known):
        was, now = asked(held.request), asked(request)
        for name in was.keys() | now.keys():
            kept[name] = max(kept.get(name, 0) + now.get(name, 0) - was.get(name, 0), 0)
    need = {name: amount for name, amount in at_least(running, kept).items() if amount}
    more = [name for name, amount in need.items() if not before.zone or amount > before.need.get(name, 0)]
    rank = max(importance(request), *(importance(held.request) for _, held in before.containers))
    return Wish(request, before.line, siblings, before.zone, before.need, Ask(need, more, rank))


def _chosen(scene: Scene, wish: Wish, hint: TopologyHint) -> Candidate:
    """Where the pod goes: where it is; else on all nodes of the hint, if it may have so many; else on the best there.

    A hint can have more nodes than were offered, because another resource needs them: memory near all of a pod's CPUs
    is better than on fewer nodes.
    """
    if wish.home:
        here = judge(scene, wish, wish.home)
        if here.fit.short:
            raise _refusal(scene, wish, [wish.home])
        return here
    within = hint.nodes.mask & usable_nodes(scene, wish.request)
    for nodes in (within, within & scene.ground.base):
        if may_have(scene, wish.request, nodes) and not (exact := judge(scene, wish, nodes)).fit.short:
            return exact
    found = candidates(scene, wish, hint.nodes.mask)
    if not found:
        raise _refusal(scene, wish, list(node_sets(scene, wish.request, hint.nodes.mask)))
    return found[0]


def _why(scene: Scene, wish: Wish, chosen: Candidate) -> str:
    where = wording.nodes(chosen.zone)
    if wish.home:
        why = f"{where}, where its pod is"
    elif is_exclusive(wish.request):
        why = f"{where}, for its pod alone"
    else:
        free = wording.quantity(scene.board.room(MEMORY, chosen.zone)) if scene.ground.known else "unknown"
        why = f"{where}, of which {free} was free"
    moved = len(chosen.fit.moves)
    if moved:
        why += f"; {moved} less important {'pod was' if moved == 1 else 'pods were'} widened"
    return why


def _refusal(scene: Scene, wish: Wish, sets: Sequence[int]) -> DoesNotFit:
    """The refusal: one sentence for each resource that fits nowhere, or for all where they do not fit together."""
    ask = replace(wish.ask, amounts={MEMORY: 0, **wish.need})
    boards = list(_boards(scene, wish, sets))
    names = ask.more or (MEMORY,)
    largest = {name: max((board.largest(ask, name, zone) for zone, board in boards), default=0) for name in names}
    lacking = [name for name in names if largest[name] < ask.amounts[name] or not boards]
    filled = scene.board.filled(wish.home, wish.held)
    shown = scene.ground.present if wish.request.qos.memory_only_nodes else scene.ground.base
    open_to = members(usable_nodes(scene, wish.request) & shown)
    sentences = []
    for name in lacking or names:
        free = dict.fromkeys(members(scene.ground.base | wish.home), 0)
        free |= {node: filled.room(name, 1 << node) for node in open_to}
        asked_for = wording.quantity(ask.amounts[name], up=True)
        if wish.home:
            asked_for += f" (the whole pod, which has {wording.quantity(wish.held.get(name, 0))})"
        fits = largest[name] // page_size(name) * page_size(name)
        sentences.append(wording.sentence(name, asked_for, wish.request, free, fits))
    return wording.refusal(sentences, _because(wish, sets, boards, together=not lacking))


def _boards(scene: Scene, wish: Wish, sets: Sequence[int]) -> Iterator[tuple[int, Board]]:
    """The zones that the pod could have, with what is in them then."""
    for nodes in sets:
        zone = nodes if wish.home else zone_on(scene, wish.request, nodes)
        if not is_exclusive(wish.request):
            yield zone, scene.board
        elif wish.home or not (alone := scene.without(zone)).board.fit(NOTHING, zone, alone.floating).short:
            yield zone, scene.without(zone).board


def _because(wish: Wish, sets: Sequence[int], boards: Sequence[object], *, together: bool) -> str:
    if wish.home:
        return f"the pod stays on {wording.nodes(wish.home)}"
    if is_exclusive(wish.request) and not sets:
        return "a pod that wants NUMA nodes for itself needs ones without bound pods, and must leave one for others"
    if is_exclusive(wish.request) and not boards:
        return "what other containers were promised would not fit on the other nodes"
    return "not all of this on one set of NUMA nodes" if together else ""
