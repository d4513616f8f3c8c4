"""The CPU allocator: which part of it answers which request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qrm.allocator import (
    Changes,
    ContainerKey,
    Holding,
    QosLevel,
    Quantities,
    ResourceRequest,
    State,
    TopologyHint,
)
from qrm.cpuset import CPUSet, NodeSet
from qrm.topology.machine import Machine
from qrm.units import MILLIS_PER_CPU, whole_cpus
from qrm_cpu import bound, dedicated
from qrm_cpu.ground import Ground, survey_ground
from qrm_cpu.picking import far_end
from qrm_cpu.requested import pool_name
from qrm_cpu.scene import Scene, look
from qrm_cpu.settings import Settings, read_settings
from qrm_cpu.shared import check_floating, pool_changes, with_member
from qrm_cpu.survey import DEDICATED, RESERVE, pool_of_node

Holdings = Mapping[ContainerKey, Holding]


def create(settings: Mapping[str, object]) -> CpuAllocator:
    """The allocator with these settings; what the entry point `qrm.allocators: cpu` names.

    Raises:
        ConfigError: A setting is unknown or unusable.
    """
    return CpuAllocator(read_settings(settings))


class CpuAllocator:
    """Gives exclusive CPUs to dedicated pods and pools to the others. See `qrm.allocator.Allocator`."""

    resource = "cpu"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._ground: Ground | None = None

    def hints(self, request: ResourceRequest, state: State) -> Sequence[TopologyHint]:
        """The NUMA node sets for `request`, best first. Floating containers get one: all nodes with CPUs.

        Raises:
            DoesNotFit: As the contract says.
            BadRequest: As the contract says.
        """
        level = request.qos.level
        if level is QosLevel.DEDICATED:
            return dedicated.hints(self._look(state, _without_pooled(state.holdings, request)), request)
        pool = pool_name(request)
        if bound.is_bound(request, state.holdings):
            return bound.shared_hints(self._look(state, state.holdings), request)
        if level is QosLevel.RECLAIMED and request.qos.memory.numa_binding:
            return bound.reclaimed_hints(self._look(state, state.holdings), request)
        if level is QosLevel.SHARED:
            self._with_member(state, request, pool, NodeSet())
        return [TopologyHint(state.machine.cpu_nodes, preferred=True)]

    def allocate(self, request: ResourceRequest, hint: TopologyHint, state: State) -> Changes:
        """What the container of `request` holds on the nodes of `hint`, and whatever else changes.

        Its own allocation and that of its pod as a whole, where there is one, are always among the changes.

        Raises:
            DoesNotFit: As the contract says.
            BadRequest: As the contract says.
        """
        if request.qos.level is QosLevel.DEDICATED:
            scene = self._look(state, _without_pooled(state.holdings, request))
            return _with_pools(scene, dedicated.place(scene, request, hint))
        pool, keys = pool_name(request), [request.key]
        nodes = hint.nodes
        if bound.is_bound(request, state.holdings):
            nodes = self._node_for(request, hint, state)
            pool = pool_of_node(pool, next(iter(nodes)))
            keys.append(request.pod_key)
        scene = self._with_member(state, request, pool, nodes)
        changes = pool_changes(scene, scene.layout, scene.survey.exclusive)
        for key in keys:
            changes.setdefault(key, scene.holdings[key].allocation)
        return Changes(changes)

    def settle(self, state: State) -> Changes:
        """What is due after holdings went, exited or were resized, or CPUs came or went."""
        scene = self._look(state, state.holdings)
        return _with_pools(scene, dedicated.settle(scene))

    def allocatable(self, state: State) -> Quantities:
        """Millicores by NUMA node, and the pools. Free is the part of share that its members were not promised."""
        scene = self._look(state, state.holdings)
        ground, layout = scene.ground, scene.layout
        idle = far_end(ground, layout.idle, layout.idle.bit_count() - whole_cpus(scene.share.millis))
        pools = {**layout.pools, RESERVE: ground.reserve, DEDICATED: scene.survey.exclusive}
        return Quantities(
            allocatable=_millis(ground.count_by_node(ground.assignable)),
            free=_millis(ground.count_by_node(idle)),
            pools={pool: CPUSet.from_mask(mask) for pool, mask in sorted(pools.items()) if mask},
        )

    def _node_for(self, request: ResourceRequest, hint: TopologyHint, state: State) -> NodeSet:
        """The best of the NUMA nodes of `hint` for a bound shared pod; the best of all where it names none of them."""
        offered = bound.shared_hints(self._look(state, state.holdings), request)
        return next((each.nodes for each in offered if each.nodes <= hint.nodes), offered[0].nodes)

    def _with_member(self, state: State, request: ResourceRequest, pool: str, nodes: NodeSet) -> Scene:
        """The state with the container in its pool.

        Raises:
            DoesNotFit: It is shared, floats, and the CPUs for such containers do not cover it.
        """
        holdings = with_member(state.holdings, request.key, request, pool, nodes)
        floats = request.qos.level is QosLevel.SHARED
        if floats and bound.is_bound(request, state.holdings):
            holdings = with_member(holdings, request.pod_key, request, pool, nodes)
            floats = False
        scene = self._look(state, holdings)
        if floats:
            old = state.holdings.get(request.key)
            check_floating(scene, request, old.request.cpu_millis if old else 0)
        return scene

    def _look(self, state: State, holdings: Holdings) -> Scene:
        return look(self._ground_of(state.machine), self.settings, holdings)

    def _ground_of(self, machine: Machine) -> Ground:
        """The masks of `machine`, which is the same object until CPUs come or go."""
        if self._ground is None or self._ground.machine is not machine:
            self._ground = survey_ground(machine, self.settings)
        return self._ground


def _with_pools(scene: Scene, outcome: dedicated.Outcome) -> Changes:
    """What changes for dedicated pods, and for the members of pools because of it."""
    return Changes(pool_changes(scene, outcome.layout, outcome.exclusive) | outcome.changes)


def _without_pooled(holdings: Holdings, request: ResourceRequest) -> Holdings:
    """`holdings` without what the container or its pod has in a pool, which it leaves for CPUs of its own."""
    leaving = [
        key
        for key in (request.key, request.pod_key)
        if (old := holdings.get(key)) is not None and not old.allocation.exclusive and old.allocation.pool != DEDICATED
    ]
    return {key: held for key, held in holdings.items() if key not in leaving} if leaving else holdings


def _millis(counts: Mapping[int, int]) -> dict[int, int]:
    return {node: number * MILLIS_PER_CPU for node, number in counts.items()}
