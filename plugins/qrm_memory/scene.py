"""Everything that a decision is based on, derived once from a state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from qrm.allocator import Holding, ResourceRequest
from qrm_memory.ground import Ground
from qrm_memory.requested import Amounts, asked
from qrm_memory.survey import NEVER, RECLAIMED, Survey, Unit
from qrm_memory.zones import Board, Load, Touched


@dataclass(frozen=True)
class Scene:
    """A state, sorted, and who may be where in it."""

    ground: Ground
    survey: Survey
    exclusive: int
    """The nodes that are some pod's alone."""

    @cached_property
    def board(self) -> Board:
        """What counts in which zone."""
        fixed = list(self.floating_amounts)
        units = self.survey.units.values()
        fixed += [(unit.zone or self.floor, unit.need) for unit in units if unit.importance == NEVER]
        return Board(self.ground, fixed, _loads(self))

    @property
    def floor(self) -> int:
        """The nodes on which containers float; never empty."""
        return floor_of(self.ground, self.exclusive)

    @property
    def floating_amounts(self) -> Sequence[tuple[int, Amounts]]:
        """The zones of what floats, with what is promised in them; those of adopted containers come last."""
        adopted = [(zone & ~self.exclusive or self.floor, amounts) for zone, amounts in self.survey.adopted]
        return [*zip(self._floating_zones(), self.survey.promised, strict=True), *adopted]

    @property
    def floating(self) -> Touched:
        """The zones of what floats, and the resources that are counted in them."""
        return [(zone, frozenset(amounts)) for zone, amounts in self.floating_amounts if amounts]

    def zone_for(self, request: ResourceRequest) -> int:
        """Where the request floats."""
        return self._floating_zones()[request.qos.memory_only_nodes]

    def without(self, nodes: int) -> Scene:
        """The scene in which `nodes` are some pod's alone."""
        return replace(self, exclusive=self.exclusive | nodes)

    def home_of(self, holding: Holding) -> int:
        """The zone of a reclaimed container that wants to be on one node: where it is, as far as it may be there."""
        nodes = holding.allocation.nodes.mask & self.ground.present & ~self.exclusive
        return nodes or self.zone_for(holding.request)

    def with_unit(self, unit: Unit) -> Scene:
        """The scene with a pod that was not in it."""
        units = {**self.survey.units, unit.uid: unit}
        return look(self.ground, replace(self.survey, units=dict(sorted(units.items()))))

    def _floating_zones(self) -> tuple[int, int]:
        return self.floor, self.floor | self.ground.remote & ~self.exclusive


def floor_of(ground: Ground, exclusive: int) -> int:
    """The nodes that are left for all others; where none are, which only adoption can bring about, all."""
    return ground.base & ~exclusive or ground.base


def look(ground: Ground, found: Survey) -> Scene:
    """The scene of these holdings.

    A pod has its nodes for itself only if no other bound pod is there, and some node is left for all others. Adoption
    and pods that change their annotations can bring about other cases.
    """
    exclusive = 0
    wanting = [unit for unit in found.units.values() if unit.exclusive]
    for unit in sorted(wanting, key=lambda unit: (unit.adopted, unit.uid)):
        alone = not any(other.zone & unit.zone for other in found.units.values() if other is not unit)
        if alone and ground.base & ~(exclusive | unit.zone):
            exclusive |= unit.zone
    return Scene(ground, found, exclusive)


def _loads(scene: Scene) -> Iterable[Load]:
    """The pods and containers whose zones may be widened."""
    for unit in scene.survey.units.values():
        importance = unit.importance
        if importance != NEVER:
            limit = scene.zone_for(unit.containers[0][1].request) | unit.zone
            yield Load(unit.key, unit.zone or scene.floor, unit.need, importance, limit)
    for key, held in scene.survey.narrow:
        zone, limit = scene.home_of(held), scene.zone_for(held.request)
        if limit & ~zone and not held.adopted:
            yield Load(key, zone, asked(held.request), RECLAIMED, limit, yields=True)
