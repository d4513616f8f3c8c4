"""Which sets of NUMA nodes a bound pod can live on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from qrm.allocator import MEMORY, Holding, QosLevel, ResourceRequest, TopologyHint
from qrm.cpuset import NodeSet
from qrm.units import MILLIS_PER_CPU
from qrm_memory.ground import Ground, members
from qrm_memory.requested import Amounts, is_exclusive
from qrm_memory.scene import Scene
from qrm_memory.survey import Members
from qrm_memory.zones import Ask, Fit

FEW_NODES = 8
"""From this number of NUMA nodes on, only sets of the smallest possible size and one more are looked at.

Source: Katalyst's LargeNUMAsPoint.
"""
MAX_SETS = 128
"""Sets of one size beyond which not all are looked at; 16 nodes have 120 pairs."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a bound pod needs so that one more of its containers can run, or one can change."""

    request: ResourceRequest
    line: Holding | None
    siblings: Members
    """The pod's other bound containers."""
    home: int
    """The nodes on which the pod is; 0 for a new one, and for one that has lost all of its nodes."""
    held: Amounts
    """What is reserved for it now."""
    ask: Ask

    @property
    def need(self) -> Amounts:
        """What is to be reserved for it."""
        return self.ask.amounts


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set of NUMA nodes on which the pod could live."""

    nodes: int
    """Those that a hint names."""
    zone: int
    """Those with the memory-only nodes that go with them."""
    fit: Fit
    rank: tuple[bool, bool, int, int, int, int]
    """Best is: nobody is moved who was promised his place, as wished, few nodes, close together, most free memory."""

    @property
    def as_wished(self) -> bool:
        """Whether numa_ids or numa_number are met, which without numa_binding are wishes."""
        return not self.rank[1]


def candidates(scene: Scene, wish: Wish, within: int) -> list[Candidate]:
    """The sets of nodes `within` on which the pod fits, best first."""
    found: list[Candidate] = []
    enough = 0
    for nodes in node_sets(scene, wish.request, within):
        size = nodes.bit_count()
        if enough and size > enough + 1 and scene.ground.base.bit_count() >= FEW_NODES:
            break
        candidate = judge(scene, wish, nodes)
        if not candidate.fit.short:
            enough = enough or size
            found.append(candidate)
    return sorted(found, key=lambda candidate: candidate.rank)


def judge(scene: Scene, wish: Wish, nodes: int) -> Candidate:
    """What it would mean to have the pod on these nodes."""
    zone = zone_on(scene, wish.request, nodes)
    if is_exclusive(wish.request):
        alone = scene.without(zone)
        fit = alone.board.fit(wish.ask, zone, () if wish.home else alone.floating)
    else:
        fit = scene.board.fit(wish.ask, zone)
    free = scene.board.room(MEMORY, zone)
    wished = _as_wished(wish.request, nodes)
    return Candidate(
        nodes, zone, fit, (fit.shaken, not wished, nodes.bit_count(), scene.ground.spread(nodes), -free, nodes)
    )


def hints_for(scene: Scene, wish: Wish, found: Sequence[Candidate]) -> list[TopologyHint]:
    """The hints for these candidates.

    Preferred are the sets with as few nodes as an empty machine would need, so that a policy can refuse a pod that is
    only spread because the machine is full, and on which nobody is moved who was promised his place.
    """
    least = max(_least_nodes(scene.ground, wish), wish.request.qos.numa_number or 0)
    named = _named(wish.request) is not None
    return [
        TopologyHint(
            NodeSet.from_mask(each.nodes),
            preferred=not each.fit.shaken and (named or (each.as_wished and each.nodes.bit_count() <= least)),
        )
        for each in found
    ]


def zone_on(scene: Scene, request: ResourceRequest, nodes: int) -> int:
    """The zone of a pod that is to live on `nodes`.

    Memory-only nodes are never without others: the kernel's own memory cannot be there.
    """
    if not request.qos.memory_only_nodes or nodes & scene.ground.remote:
        return nodes
    return scene.ground.with_remote(nodes, usable_nodes(scene, request))


def usable_nodes(scene: Scene, request: ResourceRequest) -> int:
    """The nodes, memory-only ones among them, on which a new pod may be."""
    usable = scene.ground.present & ~scene.exclusive
    if is_exclusive(request):
        for unit in scene.survey.units.values():
            usable &= ~unit.zone
    return usable


def node_sets(scene: Scene, request: ResourceRequest, within: int) -> Iterator[int]:
    """The sets of nodes that the pod may have, small ones first."""
    usable = _open(scene, request, within)
    named = _named(request)
    if named is not None:
        if may_have(scene, request, named & within):
            yield named
        return
    for size in _sizes(request, usable.bit_count()):
        for nodes in _some(scene, usable, size):
            if _leaves_some(scene, request, nodes):
                yield nodes


def may_have(scene: Scene, request: ResourceRequest, nodes: int) -> bool:
    """Whether the pod may be on just these nodes."""
    named = _named(request)
    usable = _open(scene, request, nodes)
    if not nodes or usable != nodes or not _leaves_some(scene, request, nodes):
        return False
    return nodes == named if named is not None else nodes.bit_count() in _sizes(request, nodes.bit_count())


def _open(scene: Scene, request: ResourceRequest, within: int) -> int:
    """The nodes of `within` that the pod may have."""
    usable = usable_nodes(scene, request) & within
    if _named(request) is None:
        usable &= scene.ground.base
    if request.qos.level is QosLevel.SHARED and request.qos.numa_ids is not None:
        usable &= request.qos.numa_ids.mask
    return usable


def _named(request: ResourceRequest) -> int | None:
    """The nodes that a pod names and must have, all of them."""
    qos = request.qos
    if qos.level is QosLevel.DEDICATED and qos.memory.numa_binding and qos.numa_ids is not None:
        return qos.numa_ids.mask
    return None


def _leaves_some(scene: Scene, request: ResourceRequest, nodes: int) -> bool:
    """Whether a node is left for containers that float."""
    return not is_exclusive(request) or bool(scene.ground.base & ~(scene.exclusive | nodes))


def _as_wished(request: ResourceRequest, nodes: int) -> bool:
    ids, number = request.qos.numa_ids, request.qos.numa_number
    if ids is not None:
        return not nodes & ~ids.mask
    return number is None or number == nodes.bit_count()


def _sizes(request: ResourceRequest, available: int) -> range:
    """How many nodes the pod may have: without binding any number, with it one or as many as it names.

    A pod that wants nodes for itself has as many as it needs, as in Katalyst.
    """
    qos = request.qos
    if qos.level is QosLevel.SHARED:
        return range(1, 2)
    if not qos.memory.numa_binding or (qos.numa_number is None and qos.memory.numa_exclusive):
        return range(1, available + 1)
    wanted = qos.numa_number or 1
    return range(wanted, wanted + 1)


def _some(scene: Scene, usable: int, size: int) -> Iterator[int]:
    """All sets of that size, or if there are too many those of neighbours and the one with the most free memory."""
    nodes = members(usable)
    if comb(len(nodes), size) <= MAX_SETS:
        for chosen in combinations(nodes, size):
            yield NodeSet(chosen).mask
        return
    roomy = sorted(nodes, key=lambda node: (-scene.board.room(MEMORY, 1 << node), node))
    windows = [nodes[start : start + size] for start in range(len(nodes) - size + 1)]
    yield from {NodeSet(chosen).mask for chosen in (*windows, tuple(roomy[:size]))}


def _least_nodes(ground: Ground, wish: Wish) -> int:
    """The NUMA nodes that the pod would need if nobody else were there, for its CPUs as well.

    A pod that is spread because of its CPUs is best off with its memory on the same nodes.
    """
    request = wish.request
    millis = max(request.cpu_millis, request.pod_cpu_millis)
    cpus = (MILLIS_PER_CPU * len(ground.machine.nodes[node].cpus) for node in members(ground.base))
    least = _number(millis, cpus)
    remote = ground.remote if wish.request.qos.memory_only_nodes else 0
    for name, amount in wish.need.items():
        rest = amount - ground.total(name, remote)
        least = max(least, _number(rest, (ground.total(name, 1 << node) for node in members(ground.base))))
    return least


def _number(wanted: int, sizes: Iterable[int]) -> int:
    """How many of `sizes`, and one at least, have to come together for `wanted`; all where they do not suffice."""
    number = 0
    for number, size in enumerate(sorted(sizes, reverse=True), 1):  # noqa: B007 - the last one counts
        wanted -= size
        if wanted <= 0:
            break
    return number
