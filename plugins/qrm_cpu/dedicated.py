"""Dedicated pods: finding CPUs for one that comes or grows, and keeping all of them in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from qrm.allocator import Allocation, ContainerKey, DoesNotFit, Holding, ResourceRequest, TopologyHint
from qrm.cpuset import CPUSet, NodeSet
from qrm.units import whole_cpus
from qrm_cpu import wording
from qrm_cpu.ground import union
from qrm_cpu.layout import Layout
from qrm_cpu.picking import grow, whole_cores
from qrm_cpu.pod import (
    Pod,
    allocation,
    allocations,
    divide,
    evenly,
    loose_millis,
    own_cpus,
    pod_total,
    read_pod,
    rounded,
    step_of,
    trimmed,
)
from qrm_cpu.requested import check_nodes
from qrm_cpu.scene import Scene
from qrm_cpu.search import Ask, Candidate, candidates, hints_for, lots_for, take
from qrm_cpu.survey import DEDICATED, SHARE


@dataclass(frozen=True, slots=True)
class Outcome:
    """What changes for dedicated pods, and what that leaves to the others."""

    changes: dict[ContainerKey, Allocation]
    exclusive: int
    """All CPUs that are held exclusively then."""
    layout: Layout
    """The pools as they are then."""


def hints(scene: Scene, request: ResourceRequest) -> Sequence[TopologyHint]:
    """The sets of NUMA nodes on which the pod of `request` can live with it, best first: where it is, if it can.

    Raises:
        DoesNotFit: There are none.
        BadRequest: The pod is new and names NUMA nodes that do not exist.
    """
    _check_new(scene, request)
    ask = _ask(scene, _pod(scene, request), request)
    named = (request.qos.numa_ids if request.qos.memory.numa_binding else None) or NodeSet()
    here = [TopologyHint(scene.ground.nodes_of(ask.held) | named, preferred=True)]
    if ask.held and not ask.lacking:
        return here
    found = candidates(scene, ask, scene.ground.machine.cpu_nodes)
    offered = hints_for(scene, ask, found)
    if offered:
        return offered
    if ask.can_squeeze:
        return here
    raise _refusal(scene, ask, request, found)


def place(scene: Scene, request: ResourceRequest, hint: TopologyHint) -> Outcome:
    """What the pod of `request` and its containers hold with it.

    The container's and the pod's own allocations are always among the changes.

    Raises:
        DoesNotFit: Not on the nodes of `hint`.
        BadRequest: As `hints`.
    """
    _check_new(scene, request)
    pod = _pod(scene, request)
    ask = _ask(scene, pod, request)
    foreign = scene.survey.exclusive & ~pod.held
    pod = replace(pod, request=request, held=ask.held | _growth(scene, ask, request, hint))
    mine = divide(scene.ground, pod, request.key, ask.own)
    if mine.bit_count() < ask.own:
        raise _refusal(scene, ask, request, [])
    pod = replace(pod, own={**pod.own, request.key: mine})
    pod = replace(pod, held=trimmed(scene.ground, pod))
    changes = allocations(scene.ground, pod, pod.held, foreign)
    changes.setdefault(request.key, pod.containers[request.key].allocation)
    line = scene.holdings.get(request.pod_key)
    same = line is not None and line.allocation.exclusive.mask == pod.held
    changes[request.pod_key] = line.allocation if line and same else _line(scene, pod)
    exclusive = foreign | pod.held
    layout = scene.laid(exclusive)
    for uid in scene.survey.stranded - {request.pod.uid}:
        stranded = read_pod(scene.survey.pods[uid])
        changes |= allocations(scene.ground, stranded, layout.pools[SHARE], exclusive)
    return Outcome(changes, exclusive, layout)


def settle(scene: Scene) -> Outcome:
    """What changes for dedicated pods whose containers came, went, or lost CPUs."""
    pods: dict[str, Pod] = {}
    taken = 0
    for uid in sorted(scene.survey.pods):
        pod, more = _mended(scene, read_pod(scene.survey.pods[uid]), taken)
        taken |= more
        pods[uid] = replace(pod, held=trimmed(scene.ground, pod))
    exclusive = union(pod.held for pod in pods.values())
    layout = scene.laid(exclusive)
    changes: dict[ContainerKey, Allocation] = {}
    for uid, pod in pods.items():
        changes |= allocations(scene.ground, pod, layout.pools[SHARE], exclusive & ~pod.held)
        key = ContainerKey(uid, "")
        line = scene.holdings.get(key)
        if line is not None and line.allocation.exclusive.mask != pod.held:
            changes[key] = _line(scene, pod)
    return Outcome(changes, exclusive, layout)


def _check_new(scene: Scene, request: ResourceRequest) -> None:
    if request.pod.uid not in scene.survey.pods:
        check_nodes(request, scene.ground.machine)


def _pod(scene: Scene, request: ResourceRequest) -> Pod:
    """The pod of `request` with its container in it, which has what it had before."""
    members = scene.survey.pods.get(request.pod.uid)
    pod = read_pod(members) if members else Pod(request, True, False, NodeSet(), 0, {}, {})
    before = pod.containers.get(request.key)
    allocation = before.allocation if before else Allocation(DEDICATED, CPUSet())
    containers = {**pod.containers, request.key: Holding(request, allocation)}
    return replace(pod, containers=containers, own={request.key: 0, **pod.own})


def _ask(scene: Scene, pod: Pod, request: ResourceRequest) -> Ask:
    """What `pod` needs for the container of `request` beside its other running ones."""
    step = step_of(scene.ground, request)
    own = own_cpus(request, step)
    running = pod.in_use(besides=request.key)
    loose = pod.loose(besides=request.key) + loose_millis(request)
    size = rounded(max(pod_total(request), running.bit_count() + own + whole_cpus(loose), 1), step)
    held = pod.held & scene.ground.online
    has = pod.own[request.key] & held & ~running
    can_squeeze = bool(held) and has.bit_count() >= own
    return Ask(held, size, step, own, evenly(request), can_squeeze, request.qos)


def _growth(scene: Scene, ask: Ask, request: ResourceRequest, hint: TopologyHint) -> int:
    """The CPUs that the pod gets in addition."""
    if ask.held and not ask.lacking:
        return 0
    nodes = scene.ground.machine.cpu_nodes
    within = hint.nodes & nodes or nodes
    found = candidates(scene, ask, within)
    fitting = [candidate for candidate in found if candidate.fits]
    if fitting:
        # A pod that has nodes for itself gets all of the hint's: another resource may need them.
        exact = [each for each in fitting if ask.qos.memory.numa_exclusive and each.nodes == within]
        return take(scene, ask, (exact or fitting)[0])
    if ask.can_squeeze:
        return 0
    raise _refusal(scene, ask, request, found)


def _mended(scene: Scene, pod: Pod, taken: int) -> tuple[Pod, int]:
    """`pod` without CPUs that went offline, with others in their place as far as there are any; and what it gains.

    A pod that has NUMA nodes for itself also gains what came online there.
    """
    ground = scene.ground
    mended = replace(
        pod, held=pod.held & ground.online, own={key: cpus & ground.online for key, cpus in pod.own.items()}
    )
    if pod.request.qos.memory.numa_exclusive and pod.has_line and not pod.fixed:
        others = scene.survey.exclusive & ~pod.held | taken
        mended = replace(mended, held=mended.held | ground.zone(pod.nodes) & ground.assignable & ~others)
    wanted = {key: _entitled(scene, pod, key) for key, holding in pod.containers.items() if holding.running}
    short = {key: number for key, number in wanted.items() if number > mended.own[key].bit_count()}
    lacking = sum(number - mended.own[key].bit_count() for key, number in short.items())
    lacking = max(lacking - (mended.held & ~mended.in_use()).bit_count(), int(pod.has_line and not mended.held))
    if lacking:
        mended = replace(mended, held=mended.held | _spare(scene, pod, lacking, taken))
    for key in sorted(short, key=attrgetter("container")):
        mended = replace(mended, own={**mended.own, key: divide(ground, mended, key, short[key])})
    return mended, mended.held & ~pod.held


def _entitled(scene: Scene, pod: Pod, key: ContainerKey) -> int:
    """How many CPUs a running container should have for itself: what it asked for, or what it was adopted with."""
    holding = pod.containers[key]
    if holding.adopted:
        return pod.own[key].bit_count()
    return own_cpus(holding.request, step_of(scene.ground, holding.request))


def _spare(scene: Scene, pod: Pod, number: int, taken: int) -> int:
    """Up to `number` CPUs near those that the pod had, that no pool needs.

    A bound pod gets them on its own NUMA nodes, unless it has none left there and would not run otherwise. One that has
    nodes for itself gets none: they would be on nodes with others. It finds new nodes when a container starts again.
    """
    if pod.request.qos.memory.numa_exclusive:
        return 0
    ground, step = scene.ground, step_of(scene.ground, pod.request)
    free = scene.layout.pooled & ~scene.layout.bound & ~taken
    if step > 1:
        free = whole_cores(ground, free)
    near = free & ground.zone(pod.nodes)
    if pod.request.qos.memory.numa_binding and (near or pod.held & ground.online):
        free = near
    most = (scene.room.total - taken.bit_count()) // step * step
    return grow(ground, pod.held, free, min(rounded(number, step), most))


def _line(scene: Scene, pod: Pod) -> Allocation:
    where = wording.place(scene.ground, pod.held) if pod.held else "all its CPUs are offline"
    return allocation(scene.ground, pod.held, pod.held, f"{where}, for the whole pod")


def _refusal(scene: Scene, ask: Ask, request: ResourceRequest, found: Sequence[Candidate]) -> DoesNotFit:
    room, held = scene.room.total, ask.held.bit_count()
    free = {lot.node.id: min(lot.free, room) for lot in lots_for(scene, ask)}
    asked = wording.count(ask.size, "CPU")
    if held:
        asked += f" (the whole pod, which has {held})"
    elif ask.size != ask.own:
        asked += " (the whole pod)"
    largest = max((candidate.largest for candidate in found), default=held)
    because = ""
    if found and not any(candidate.largest for candidate in found) and ask.lacking <= sum(free.values()):
        because = f"{wording.count(ask.own, 'CPU')} cannot be divided evenly"
    return wording.refusal(request, asked, free, str(largest), because=because)
