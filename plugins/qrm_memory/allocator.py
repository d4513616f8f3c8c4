"""The memory allocator: which part of it answers which request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qrm.allocator import (
    MEMORY,
    Changes,
    Quantities,
    ResourceRequest,
    State,
    TopologyHint,
)
from qrm.topology.machine import Machine
from qrm_memory import bound, floating
from qrm_memory.arrange import arrange
from qrm_memory.ground import Ground, survey_ground
from qrm_memory.requested import check, is_bound
from qrm_memory.scene import look
from qrm_memory.settings import Settings, read_settings
from qrm_memory.survey import survey


def create(settings: Mapping[str, object]) -> MemoryAllocator:
    """The allocator with these settings; what the entry point `qrm.allocators: memory` names.

    Raises:
        ConfigError: A setting is unknown or unusable.
    """
    return MemoryAllocator(read_settings(settings))


class MemoryAllocator:
    """Chooses the NUMA nodes of a container's memory. See `qrm.allocator.Allocator`."""

    resource = MEMORY

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._ground: Ground | None = None

    def hints(self, request: ResourceRequest, state: State) -> Sequence[TopologyHint]:
        """The NUMA node sets for `request`, best first. Floating containers get one that restricts no other resource.

        Raises:
            DoesNotFit: As the contract says.
            BadRequest: As the contract says.
        """
        ground = self._ground_of(state.machine)
        check(request, ground)
        answer = bound.hints if is_bound(request) else floating.hints
        return answer(ground, request, state.holdings)

    def allocate(self, request: ResourceRequest, hint: TopologyHint, state: State) -> Changes:
        """What the container of `request` holds on the nodes of `hint`, and whatever else changes.

        Memory-only nodes, for those who want them, are added to those of `hint`. Its own allocation and that of its
        pod as a whole, where it is bound, are always among the changes.

        Raises:
            DoesNotFit: As the contract says.
            BadRequest: As the contract says.
        """
        ground = self._ground_of(state.machine)
        check(request, ground)
        answer = bound.place if is_bound(request) else floating.place
        return Changes(answer(ground, request, hint, state.holdings))

    def settle(self, state: State) -> Changes:
        """What is due after holdings went, exited or were resized, or NUMA nodes came or went."""
        ground = self._ground_of(state.machine)
        return Changes(arrange(look(ground, survey(ground, state.holdings))))

    def allocatable(self, state: State) -> Quantities:
        """Bytes of memory by NUMA node. Free is what no container was promised; there are no pools of CPUs."""
        ground = self._ground_of(state.machine)
        if not ground.known:
            return Quantities(allocatable={}, free={})
        scene = look(ground, survey(ground, state.holdings))
        return Quantities(allocatable=dict(ground.capacity[MEMORY]), free=floating.free(scene))

    def _ground_of(self, machine: Machine) -> Ground:
        """The nodes of `machine`, which is the same object until CPUs or memory come or go."""
        if self._ground is None or self._ground.machine is not machine:
            self._ground = survey_ground(machine, self.settings)
        return self._ground
