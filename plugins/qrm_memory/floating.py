"""Containers that float: on all NUMA nodes that no pod has for itself, or reclaimed ones that want to be on one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qrm.allocator import MEMORY, Allocation, ContainerKey, DoesNotFit, Holding, QosLevel, ResourceRequest, TopologyHint
from qrm.cpuset import NodeSet
from qrm_memory import wording
from qrm_memory.arrange import arrange, float_on, floating_why, used_by_units
from qrm_memory.ground import Ground, members
from qrm_memory.requested import Amounts, asked, is_bound, is_narrow, page_size
from qrm_memory.scene import Scene, look
from qrm_memory.spread import portions
from qrm_memory.survey import importance, survey
from qrm_memory.zones import Ask

Holdings = Mapping[ContainerKey, Holding]


def hints(ground: Ground, request: ResourceRequest, holdings: Holdings) -> Sequence[TopologyHint]:
    """One hint that restricts no other resource; for a reclaimed container that wants one node, single nodes.

    Raises:
        DoesNotFit: What floating containers are promised exceeds the memory of their nodes.
    """
    scene = look(ground, survey(ground, holdings, request.key))
    if is_narrow(request):
        narrow = _narrow_hints(scene, request, holdings)
        if narrow:
            return narrow
    else:
        _check(scene, request, holdings)
    return [TopologyHint(ground.machine.cpu_nodes | NodeSet.from_mask(ground.base), preferred=True)]


def place(
    ground: Ground, request: ResourceRequest, hint: TopologyHint, holdings: Holdings
) -> dict[ContainerKey, Allocation]:
    """What the container holds, and what changes for others.

    Raises:
        DoesNotFit: As `hints`.
    """
    scene = look(ground, survey(ground, holdings, request.key))
    zone = scene.zone_for(request)
    moves: Mapping[ContainerKey, int] = {}
    if is_narrow(request):
        old = holdings.get(request.key)
        stays = old is not None and is_narrow(old.request)
        zone = scene.home_of(old) if old and stays else hint.nodes.mask & scene.floor or zone
        why = f"{wording.nodes(zone)}, which had room"
    else:
        moves = _check(scene, request, holdings)
        why = floating_why(zone)
    return arrange(scene, moves) | {request.key: float_on(ground, request, zone, why)}


def free(scene: Scene) -> dict[int, int]:
    """The bytes of memory on each node that nobody was promised. What floats is spread over what is left to it."""
    ground = scene.ground
    used = used_by_units(scene, MEMORY)
    rest = {
        node: 0 if scene.exclusive >> node & 1 else max(size - used.get(node, 0), 0)
        for node, size in ground.capacity[MEMORY].items()
    }
    for zone, amounts in scene.floating_amounts:
        open_to = {node: rest[node] for node in members(zone)}
        for node, part in portions(min(amounts.get(MEMORY, 0), sum(open_to.values())), open_to).items():
            rest[node] -= part
    return rest


def _check(scene: Scene, request: ResourceRequest, holdings: Holdings) -> Mapping[ContainerKey, int]:
    """Who has to move for the container; nothing is promised to reclaimed ones, and system ones are let in anyway.

    No promise is taken back: a container that asks for no more than before comes in without being asked.

    Raises:
        DoesNotFit: It is shared, asks for more than before, and there is not enough.
    """
    old = holdings.get(request.key)
    held: Amounts = asked(old.request) if old and not is_bound(old.request) else {}
    need = asked(request)
    more = [name for name, amount in need.items() if amount > held.get(name, 0)]
    if request.qos.level is QosLevel.RECLAIMED or not more:
        return {}
    zone = scene.zone_for(request)
    ask = Ask(need, more, importance(request))
    fit = scene.board.fit(ask, zone)
    if fit.short and request.qos.level is QosLevel.SHARED:
        raise _refusal(scene, request, zone, ask)
    return fit.moves


def _refusal(scene: Scene, request: ResourceRequest, zone: int, ask: Ask) -> DoesNotFit:
    sentences, promised = [], []
    for name in ask.more:
        amount, largest = ask.amounts[name], scene.board.largest(ask, name, zone)
        if largest >= amount:
            continue
        used = used_by_units(scene, name)
        left = {node: max(scene.ground.total(name, 1 << node) - used.get(node, 0), 0) for node in members(zone)}
        page = page_size(name)
        sentences.append(
            wording.sentence(name, wording.quantity(amount, up=True), request, left, largest // page * page)
        )
        promised.append(f"{wording.quantity(sum(each.get(name, 0) for each in scene.survey.promised))} of {name}")
    return wording.refusal(sentences, f"other floating containers were promised {' and '.join(promised)} there")


def _narrow_hints(scene: Scene, request: ResourceRequest, holdings: Holdings) -> list[TopologyHint]:
    """The node on which the container or its pod is, or the single nodes, those with most room first.

    Nothing is promised to reclaimed containers, so a full node will do if another resource is there and nowhere else.
    """
    homes = {
        key.container: held.allocation.nodes.mask & scene.floor
        for key, held in [*scene.survey.narrow, (request.key, holdings.get(request.key))]
        if held is not None and key.pod_uid == request.pod.uid and is_narrow(held.request)
    }
    home = homes.get(request.container) or next((homes[name] for name in sorted(homes) if homes[name]), 0)
    if home:
        return [TopologyHint(NodeSet.from_mask(home), preferred=True)]
    ids, need = request.qos.numa_ids, asked(request)
    within = members(scene.floor if ids is None else scene.floor & ids.mask)
    short = {node: any(scene.board.room(name, 1 << node) < need[name] for name in need) for node in within}
    ranked = sorted(within, key=lambda node: (short[node], -scene.board.room(MEMORY, 1 << node), node))
    return [TopologyHint(NodeSet([node]), preferred=True) for node in ranked]
