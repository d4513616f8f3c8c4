"""Which CPUs each pool has, derived from what is held exclusively and what was promised to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qrm.units import whole_cpus
from qrm_cpu.ground import Ground, union
from qrm_cpu.picking import far_end, grow, shrink
from qrm_cpu.settings import Settings
from qrm_cpu.survey import RECLAIM, SHARE, SYSTEM, Demand


@dataclass(frozen=True, slots=True)
class Layout:
    """The pools as masks; none is empty."""

    pools: Mapping[str, int]
    pooled: int
    """Every CPU that is neither reserved nor held exclusively."""
    bound: int
    """The CPUs of the NUMA-bound pools."""

    @property
    def idle(self) -> int:
        """The CPUs that a dedicated pod can take without another pool having to move."""
        return self.pooled & (self.pools[SHARE] | self.pools[RECLAIM]) & ~self.bound


@dataclass(frozen=True, slots=True)
class Room:
    """How many CPUs can still be promised: to dedicated pods or to NUMA-bound pools."""

    by_node: Mapping[int, int]
    """On each NUMA node, as far as its own pools are concerned."""
    total: int
    """On the whole machine, so that every pool keeps what it needs and `share` one core."""

    def on(self, node: int) -> int:
        """How many on that NUMA node alone."""
        return min(self.by_node.get(node, 0), self.total)


def room(ground: Ground, exclusive: int, share: Demand, carved: Mapping[str, Demand]) -> Room:
    """What is left of the pooled CPUs when every pool has got what it needs."""
    pooled = ground.assignable & ~exclusive
    by_node = dict(ground.count_by_node(pooled))
    total = pooled.bit_count() - share.size(ground.threads)
    for demand in carved.values():
        size = demand.size(ground.threads)
        total -= size
        if demand.node in by_node:
            by_node[demand.node] -= size
    return Room({node: max(count, 0) for node, count in by_node.items()}, max(total, 0))


def lay(ground: Ground, settings: Settings, exclusive: int, share: Demand, carved: Mapping[str, Demand]) -> Layout:
    """The pools' CPUs: first those bound to a NUMA node, then the named ones, then `share` and `reclaim`.

    A pool keeps the CPUs that it has. Where there are too few for all, pools shrink in proportion; where there is not
    even one for each, they share all of them.
    """
    pooled = ground.assignable & ~exclusive
    common = pooled or ground.usable & ~exclusive or ground.reserve or ground.usable
    named = [demand for demand in carved.values() if demand.node is None]
    avoid = union(demand.sticky for demand in named)
    pools: dict[str, int] = {}
    for node in ground.nodes:
        mine = [demand for demand in carved.values() if demand.node == node.id]
        if mine:
            pools |= _carve(ground, pooled & node.mask, mine, avoid=avoid)
    bound = union(pools.values())
    floating = pooled & ~bound or common
    pools |= _carve(ground, floating, named, leave=share.size(ground.threads))
    rest = floating & ~union(pools[demand.pool] for demand in named) or floating
    pools[SHARE], pools[RECLAIM] = _lend(ground, settings, rest, share)
    pools[SYSTEM] = ground.usable & ~exclusive or common
    for demand in carved.values():
        pools[demand.pool] = pools.get(demand.pool) or rest
    return Layout(pools, pooled, bound)


def _carve(ground: Ground, free: int, wanted: Sequence[Demand], *, leave: int = 0, avoid: int = 0) -> dict[str, int]:
    """Disjoint parts of `free` for each of `wanted`, leaving `leave` CPUs and rather not using those of `avoid`."""
    needs = [demand.size(ground.threads) for demand in wanted]
    sizes = _fitted([*needs, leave] if leave else needs, free.bit_count())
    if sizes is None:
        return {demand.pool: free for demand in wanted}
    parts = {}
    for demand, size in zip(wanted, sizes, strict=False):
        parts[demand.pool] = shrink(ground, demand.sticky & free, size)
        free &= ~parts[demand.pool]
    for demand, size in zip(wanted, sizes, strict=False):
        for zone in (free & ~avoid, free & avoid):
            part = parts[demand.pool]
            more = grow(ground, part, zone, size - part.bit_count())
            parts[demand.pool] |= more
            free &= ~more
    return parts


def _fitted(needs: Sequence[int], available: int) -> list[int] | None:
    """`needs`, or proportional parts of `available`, one CPU at least; None where there are too few for that."""
    wanted = sum(needs)
    if wanted <= available:
        return list(needs)
    if available < len(needs):
        return None
    sizes = [max(1, need * available // wanted) for need in needs]
    while sum(sizes) > available:
        sizes[sizes.index(max(sizes))] -= 1
    while sum(sizes) < available:
        shortfall = [need - size for need, size in zip(needs, sizes, strict=True)]
        sizes[shortfall.index(max(shortfall))] += 1
    return sizes


def _lend(ground: Ground, settings: Settings, rest: int, share: Demand) -> tuple[int, int]:
    """`share` and `reclaim`, out of the CPUs that no other pool has."""
    size = rest.bit_count()
    least = min(max(settings.reclaim_min, len(ground.nodes)), size)
    asked = whole_cpus(share.millis)
    if settings.reclaim_overlap:
        return rest, far_end(ground, rest, max(least, size - asked))
    cores = -(-asked // ground.threads) * ground.threads
    needed = max(asked, ground.threads)
    own = min(max(cores, ground.threads), max(size - least, needed), size)
    reclaim = far_end(ground, rest, size - own)
    return rest & ~reclaim, reclaim or far_end(ground, rest, least)
