"""Who may be where: zones, which are sets of NUMA nodes, and room made in them by widening the zones of others.

A set of nodes is over-subscribed when what is asked by those whose zones lie within it exceeds its capacity. As in
NRI plugins' libmem, the least important of these get more nodes, one at a time, until nothing is over-subscribed. Other
than there, unions of zones that overlap are looked at as well, so that a promise always has memory behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from qrm.allocator import ContainerKey
from qrm_memory.ground import Ground, members
from qrm_memory.requested import Amounts
from qrm_memory.survey import NEVER

Touched = Sequence[tuple[int, frozenset[str]]]
"""Zones in which something was added, and the resources that it was."""


@dataclass(frozen=True, slots=True)
class Load:
    """A pod or container in a zone that may be widened."""

    key: ContainerKey
    zone: int
    amounts: Amounts
    importance: int
    """The lowest are widened first."""
    limit: int
    """The nodes to which it may be widened."""
    yields: bool = False
    """Nothing is promised to it: it counts only as long as there are nodes to which it can go."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be in some zone."""

    amounts: Amounts
    more: Sequence[str]
    """The resources of which it is more than before; the others fit."""
    importance: int
    """Those that are less important make room."""


NOTHING = Ask({}, (), NEVER)
"""To see whether what is there fits still."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether something fits, and what has to move for it."""

    moves: Mapping[ContainerKey, int] = field(default_factory=dict)
    """The new zones of others."""
    shaken: bool = False
    """One of these others was promised its zone."""
    short: int = 0
    """The bytes that are missing; 0 if it fits."""


class Board:
    """What counts in which zone, by resource."""

    def __init__(self, ground: Ground, fixed: Iterable[tuple[int, Amounts]], loads: Iterable[Load]) -> None:
        self.ground = ground
        self.loads = {load.key: load for load in loads}
        self._zones: dict[str, dict[int, int]] = {}
        self._rooms: dict[tuple[str, int], int] = {}
        for zone, amounts in fixed:
            self._add(zone, amounts)
        for load in self.loads.values():
            self._add(load.zone, load.amounts)

    def room(self, resource: str, zone: int) -> int:
        """The bytes that could be promised to one more in `zone` without moving anybody; 0 where it is too full."""
        found = self._rooms.get((resource, zone))
        if found is None:
            free = min(-self._excess(resource, union) for union in self._unions(resource, zone))
            found = self._rooms[resource, zone] = max(free, 0)
        return found

    def fit(self, ask: Ask, zone: int, also: Touched = ()) -> Fit:
        """Whether `ask` fits in `zone`, and for whom there must be other zones then.

        Args:
            ask: What is to be there.
            zone: Where.
            also: Zones that have become smaller, with the resources that are counted in them.
        """
        if not also and all(ask.amounts[name] <= self.room(name, zone) for name in ask.more):
            return Fit()
        return self.filled(zone, ask.amounts)._resolve(ask.importance, [(zone, frozenset(ask.more)), *also])

    def filled(self, zone: int, amounts: Amounts) -> Board:
        """The board with one more."""
        made = self._copy()
        made._add(zone, amounts)
        return made

    def largest(self, ask: Ask, resource: str, zone: int) -> int:
        """The most of one resource that fits in `zone` if all is moved that can be; at most what is asked."""
        amount = ask.amounts[resource]
        while amount > 0:
            short = self.fit(Ask({resource: amount}, (resource,), ask.importance), zone).short
            if not short:
                return amount
            amount -= short
        return 0

    def _resolve(self, importance: int, grown: Touched) -> Fit:
        touched = list(grown)
        moves: dict[ContainerKey, int] = {}
        shaken = False
        while (found := self._worst(touched)) is not None:
            resource, union, excess = found
            victim = self._victim(importance, resource, union)
            if victim is None:
                return Fit(short=excess)
            wider = self._wider(victim, resource, union)
            self._move(victim, wider)
            moves[victim.key] = wider
            shaken = shaken or not victim.yields
            if victim.key in self.loads:
                touched.append((wider, frozenset(victim.amounts)))
        return Fit(moves, shaken)

    def _worst(self, touched: Touched) -> tuple[str, int, int] | None:
        """The smallest over-subscribed set of nodes around a touched zone, with the bytes that are too many."""
        worst: tuple[int, int, str] | None = None
        excess = 0
        for zone, resources in touched:
            for resource in resources:
                for union in self._unions(resource, zone):
                    over = self._excess(resource, union)
                    rank = (union.bit_count(), union, resource)
                    if over > 0 and (worst is None or rank < worst):
                        worst, excess = rank, over
        return None if worst is None else (worst[2], worst[1], excess)

    def _victim(self, importance: int, resource: str, union: int) -> Load | None:
        """The least important one in `union` that can leave it; of equals, the one that asks for most.

        Nobody has to make room for one who is not more important.
        """
        candidates = (
            load
            for load in self.loads.values()
            if not load.zone & ~union
            and load.amounts.get(resource)
            and (load.yields or (load.importance < importance and load.limit & ~union))
        )
        return min(
            candidates,
            key=lambda load: (load.importance, -load.amounts[resource], load.key.pod_uid, load.key.container),
            default=None,
        )

    def _wider(self, load: Load, resource: str, union: int) -> int:
        """The zone of `load` with the nearest node outside `union`, and of these the one with the most room."""
        outside = members(load.limit & ~union)
        if not outside:
            return load.limit
        ground = self.ground
        best = min(outside, key=lambda node: (ground.distance(load.zone, node), -self.room(resource, 1 << node), node))
        return load.zone | 1 << best

    def _move(self, load: Load, zone: int) -> None:
        self._add(load.zone, {name: -amount for name, amount in load.amounts.items()})
        if load.yields and zone == load.limit:
            del self.loads[load.key]
        else:
            self.loads[load.key] = Load(load.key, zone, load.amounts, load.importance, load.limit, load.yields)
            self._add(zone, load.amounts)

    def _add(self, zone: int, amounts: Amounts) -> None:
        self._rooms.clear()
        for name, amount in amounts.items():
            zones = self._zones.setdefault(name, {})
            zones[zone] = zones.get(zone, 0) + amount
            if not zones[zone]:
                del zones[zone]

    def _copy(self) -> Board:
        made = Board(self.ground, (), ())
        made.loads = dict(self.loads)
        made._zones = {name: dict(zones) for name, zones in self._zones.items()}
        return made

    def _excess(self, resource: str, union: int) -> int:
        """What is promised within `union` beyond its capacity; negative where there is room."""
        promised = sum([amount for zone, amount in self._zones.get(resource, {}).items() if not zone & ~union])
        return promised - self.ground.total(resource, union)

    def _unions(self, resource: str, zone: int) -> Iterable[int]:
        """`zone` and its unions with zones that overlap with it, directly or over others.

        A zone that overlaps with none of these cannot make them fuller than they are.
        """
        zones = self._zones.get(resource, {})
        found, todo = {zone}, [zone]
        while todo:
            union = todo.pop()
            for other in zones:
                if other & union and other & ~union and other | union not in found:
                    found.add(other | union)
                    todo.append(other | union)
        return found
