"""Everything that a decision is based on, derived once from a state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qrm.allocator import ContainerKey, Holding
from qrm_cpu.ground import Ground
from qrm_cpu.layout import Layout, Room, lay, room
from qrm_cpu.settings import Settings
from qrm_cpu.survey import SYSTEM, Demand, Survey, demands, survey


@dataclass(frozen=True, slots=True)
class Scene:
    """A state, sorted, with what its pools have promised and where they lie."""

    ground: Ground
    settings: Settings
    holdings: Mapping[ContainerKey, Holding]
    survey: Survey
    share: Demand
    carved: Mapping[str, Demand]
    layout: Layout
    room: Room

    @property
    def floating_millis(self) -> int:
        """The requests of all shared containers that are not bound to a NUMA node."""
        return self.share.millis + sum(
            demand.millis
            for demand in self.carved.values()
            if demand.node is None and not demand.pool.startswith(SYSTEM)
        )

    @property
    def floating_cpus(self) -> int:
        """The CPUs on which those can run."""
        bound = sum(demand.size(self.ground.threads) for demand in self.carved.values() if demand.node is not None)
        return max(self.layout.pooled.bit_count() - bound, 0)

    def laid(self, exclusive: int) -> Layout:
        """The pools as they will be when `exclusive` is what is held exclusively."""
        return lay(self.ground, self.settings, exclusive, self.share, self.carved)


def look(ground: Ground, settings: Settings, holdings: Mapping[ContainerKey, Holding]) -> Scene:
    """Sorts `holdings` out."""
    found = survey(holdings)
    share, carved = demands(found)
    layout = lay(ground, settings, found.exclusive, share, carved)
    return Scene(ground, settings, holdings, found, share, carved, layout, room(ground, found.exclusive, share, carved))
