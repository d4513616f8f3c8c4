"""Which sets of NUMA nodes a dedicated pod can live on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from qrm.allocator import Qos, TopologyHint
from qrm.cpuset import NodeSet
from qrm_cpu.ground import Node, union
from qrm_cpu.picking import grow, pick, whole_cores
from qrm_cpu.pod import rounded
from qrm_cpu.scene import Scene

FEW_NODES = 8
"""From this number of NUMA nodes on, only sets of the smallest possible size and one more are looked at.

Source: Katalyst's LargeNUMAsPoint.
"""
MAX_SETS = 128
"""Sets of one size beyond which not all are looked at; 16 nodes have 120 pairs."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a dedicated pod needs so that one more of its containers can run, or one can change."""

    held: int
    """The CPUs that the pod has, as a mask."""
    size: int
    """How many it needs."""
    step: int
    """The threads of one core where only whole cores will do, else 1."""
    own: int
    """Of these, how many the container gets for itself."""
    even: bool
    """Whether each NUMA node gives the same number."""
    can_squeeze: bool
    """Whether the container can do with the CPUs that the pod has: it gets none for itself, or has had enough."""
    qos: Qos

    @property
    def lacking(self) -> int:
        """How many it needs beyond those that it has."""
        return max(self.size - self.held.bit_count(), 0)

    def divides(self, nodes: int) -> bool:
        """Whether the container's own CPUs can come in equal parts from that many NUMA nodes."""
        return self.own % (self.step * nodes) == 0


@dataclass(frozen=True, slots=True)
class Lot:
    """What one NUMA node has for the pod."""

    node: Node
    open: int
    """The CPUs that it could take there, as a mask; none if it wants the node for itself and it is not empty."""
    held: int
    """How many it has there."""
    free: int
    """How many it could take there."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set of NUMA nodes, and how many CPUs the pod could have on it."""

    lots: tuple[Lot, ...]
    sockets: int
    """On how many sockets the nodes are."""
    free: int
    """The CPUs that are free there."""
    largest: int
    fits: bool

    @property
    def nodes(self) -> NodeSet:
        """Its NUMA nodes."""
        return NodeSet(lot.node.id for lot in self.lots)


def lots_for(scene: Scene, ask: Ask) -> Sequence[Lot]:
    """What each NUMA node has for the pod beyond what the pools need."""
    others = scene.survey.exclusive & ~ask.held
    inhabited = {demand.node for demand in scene.carved.values() if demand.node is not None}
    lots = []
    for node in scene.ground.nodes:
        held = (node.mask & ask.held).bit_count()
        if ask.qos.memory.numa_exclusive:
            empty = not node.mask & others and node.id not in inhabited
            free = node.mask & scene.ground.assignable & ~ask.held if empty else 0
        else:
            free = _usable(scene, ask, scene.layout.pooled & node.mask & ~scene.layout.bound)
            if free.bit_count() > scene.room.by_node[node.id]:
                free = _usable(scene, ask, pick(scene.ground, free, scene.room.by_node[node.id]))
        lots.append(Lot(node, free, held, free.bit_count()))
    return lots


def _usable(scene: Scene, ask: Ask, free: int) -> int:
    """The part of `free` that the pod can use."""
    return whole_cores(scene.ground, free) if ask.step > 1 else free


def candidates(scene: Scene, ask: Ask, within: NodeSet) -> list[Candidate]:
    """The sets of nodes `within` on which the pod could live, those that fit first, best first.

    The pod's nodes are part of every set. Best is: as wished, few nodes, few sockets, and of those the set with the
    fewest free CPUs.
    """
    lots = [lot for lot in lots_for(scene, ask) if lot.held or lot.node.id in within]
    found: list[Candidate] = []
    enough = 0
    for size in _sizes(ask, lots):
        if enough and size > enough + 1 and len(lots) >= FEW_NODES and size != ask.qos.numa_number:
            continue
        offered = [_candidate(scene, ask, chosen) for chosen in _sets(scene, ask, lots, size)]
        found += offered
        if not enough and any(candidate.fits for candidate in offered):
            enough = size
    return sorted(found, key=lambda candidate: _rank(ask, candidate))


def hints_for(scene: Scene, ask: Ask, found: Sequence[Candidate]) -> list[TopologyHint]:
    """The hints for those candidates that fit.

    Preferred are the sets with as few nodes and sockets as an empty machine would need, so that a policy can refuse a
    pod that is only spread because the machine is full.
    """
    named = ask.qos.numa_ids if ask.qos.memory.numa_binding else None
    least = max(_least_nodes(scene, ask), ask.qos.numa_number or 0)
    hints = []
    for candidate in found:
        if candidate.fits:
            few = len(candidate.lots) <= max(least, sum(lot.held > 0 for lot in candidate.lots))
            near = candidate.sockets <= _least_sockets(scene, len(candidate.lots))
            preferred = named is not None or (few and near and _as_wished(ask, candidate))
            hints.append(TopologyHint(named or candidate.nodes, preferred))
    return hints


def _rank(ask: Ask, candidate: Candidate) -> tuple[bool, bool, int, int, int]:
    wished = _as_wished(ask, candidate)
    return (not candidate.fits, not wished, len(candidate.lots), candidate.sockets, candidate.free)


def _as_wished(ask: Ask, candidate: Candidate) -> bool:
    """Whether numa_ids or numa_number are met, which without numa_binding are wishes."""
    if ask.qos.numa_ids is not None:
        return candidate.nodes <= ask.qos.numa_ids
    return ask.qos.numa_number is None or ask.qos.numa_number == len(candidate.lots)


def _sizes(ask: Ask, lots: Sequence[Lot]) -> range:
    """How many NUMA nodes the pod may have: without binding any number, with it one or as many as it names.

    A pod that wants nodes for itself has as many as it needs, as in Katalyst.
    """
    at_least = max(sum(lot.held > 0 for lot in lots), 1)
    memory, number = ask.qos.memory, ask.qos.numa_number
    if ask.even and ask.held:
        return range(at_least, at_least + 1)
    if not memory.numa_binding or (number is None and memory.numa_exclusive):
        return range(at_least, len(lots) + 1)
    wanted = max(number or 1, at_least)
    return range(wanted, wanted + 1)


def _sets(scene: Scene, ask: Ask, lots: Sequence[Lot], size: int) -> Iterator[tuple[Lot, ...]]:
    """The sets of `size` nodes that the pod may have, without nodes that have nothing for it."""
    ids = ask.qos.numa_ids
    if ids is not None and ask.qos.memory.numa_binding:
        chosen = tuple(lot for lot in lots if lot.held or lot.node.id in ids)
        if len(chosen) == len(ids & scene.ground.machine.cpu_nodes):
            yield chosen
        return
    base = tuple(lot for lot in lots if lot.held)
    others = tuple(lot for lot in lots if lot.free and not lot.held)
    one_socket = ask.qos.cpu.align_by_socket and _least_sockets(scene, size) == 1
    for more in _some(others, size - len(base)):
        chosen = (*base, *more)
        if base or not one_socket or len({lot.node.socket for lot in chosen}) == 1:
            yield chosen


def _some(lots: Sequence[Lot], size: int) -> Iterator[tuple[Lot, ...]]:
    """All sets of that size, or if there are too many those of neighbours and those with the most free CPUs."""
    if comb(len(lots), size) <= MAX_SETS:
        yield from combinations(lots, size)
        return
    ordered = sorted(lots, key=lambda lot: (lot.node.socket, lot.node.id))
    sets = [tuple(ordered[start : start + size]) for start in range(len(ordered) - size + 1)]
    for socket in (None, *sorted({lot.node.socket for lot in lots})):
        roomy = sorted((lot for lot in ordered if socket in (None, lot.node.socket)), key=lambda lot: -lot.free)
        if len(roomy) >= size:
            sets.append(tuple(sorted(roomy[:size], key=lambda lot: lot.node.id)))
    yield from {frozenset(lot.node.id for lot in chosen): chosen for chosen in sets}.values()


def _candidate(scene: Scene, ask: Ask, lots: tuple[Lot, ...]) -> Candidate:
    held, total, wanted = ask.held.bit_count(), scene.room.total, ask.size
    sockets, free = len({lot.node.socket for lot in lots}), sum([lot.free for lot in lots])
    if ask.qos.memory.numa_exclusive:
        whole = all(lot.free or lot.held for lot in lots) and free <= total
        largest = held + free if whole else 0
    elif ask.even:
        unit = len(lots) * ask.step
        each = min(lot.held + lot.free for lot in lots)
        largest = min(each * len(lots), held + total) // unit * unit if ask.divides(len(lots)) else 0
        wanted = rounded(ask.size, ask.step, len(lots))
    else:
        largest = held + min(free, total) // ask.step * ask.step
    return Candidate(lots, sockets, free, largest, 0 < wanted <= largest)


def _least_nodes(scene: Scene, ask: Ask) -> int:
    """The NUMA nodes that the pod would need if nobody else were there."""
    sizes = sorted(scene.ground.count_by_node(scene.ground.assignable).values(), reverse=True)
    for number in range(1, len(sizes) + 1):
        room = number * (sizes[number - 1] // ask.step * ask.step) if ask.even else sum(sizes[:number])
        if rounded(ask.size, ask.step, number if ask.even else 1) <= room and (not ask.even or ask.divides(number)):
            return number
    return len(sizes)


def _least_sockets(scene: Scene, number: int) -> int:
    """The sockets that so many NUMA nodes need at least."""
    return next(sockets for sockets, nodes in enumerate(scene.ground.nodes_in_sockets, 1) if nodes >= number)


def take(scene: Scene, ask: Ask, chosen: Candidate) -> int:
    """The CPUs that the pod gets in addition on the nodes of `chosen`, as a mask."""
    if ask.qos.memory.numa_exclusive:
        return union(lot.open for lot in chosen.lots)
    if not ask.even:
        return _take(scene, ask, ask.held, union(lot.open for lot in chosen.lots), ask.lacking)
    each = rounded(ask.size, ask.step, len(chosen.lots)) // len(chosen.lots)
    return union(
        _take(scene, ask, ask.held & lot.node.mask, lot.open, each - lot.held) for lot in chosen.lots if each > lot.held
    )


def _take(scene: Scene, ask: Ask, held: int, free: int, number: int) -> int:
    """CPUs that are idle if there are enough of them, so that no named pool has to move."""
    number = rounded(number, ask.step)
    idle = _usable(scene, ask, free & scene.layout.idle)
    return grow(scene.ground, held, idle if idle.bit_count() >= number else free, number)
