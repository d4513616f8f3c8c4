"""A dedicated pod's CPUs and how its containers divide them, without regard to where they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from qrm.allocator import Allocation, ContainerKey, Holding, ResourceRequest
from qrm.cpuset import CPUSet, NodeSet
from qrm.units import MILLIS_PER_CPU, whole_cpus
from qrm_cpu import wording
from qrm_cpu.ground import Ground, union
from qrm_cpu.picking import grow, shrink, whole_cores
from qrm_cpu.survey import DEDICATED, Members


@dataclass(frozen=True, slots=True)
class Pod:
    """A dedicated pod: what it holds as a whole, and its containers with what each has for itself."""

    request: ResourceRequest
    """The one that was planned last."""
    has_line: bool
    """The ledger has a line for the pod as a whole; without, an adopted pod has no more than its containers have."""
    fixed: bool
    """It was adopted as it is."""
    nodes: NodeSet
    """Where it lives, which it remembers even if all of its CPUs there went offline."""
    held: int
    """All its CPUs, as a mask."""
    containers: Mapping[ContainerKey, Holding]
    own: Mapping[ContainerKey, int]
    """The CPUs of each container that are its own; 0 for those that run on what the others leave."""

    @property
    def claimed(self) -> int:
        """The CPUs that some container has for itself, exited ones among them."""
        return union(self.own.values())

    def in_use(self, *, besides: ContainerKey | None = None) -> int:
        """The CPUs that running containers have for themselves."""
        return union(cpus for key, cpus in self.own.items() if key != besides and self.containers[key].running)

    def loose(self, *, besides: ContainerKey | None = None) -> int:
        """The requests of the containers without CPUs of their own, exited ones among them, in millicores."""
        return sum(
            loose_millis(holding.request)
            for key, holding in self.containers.items()
            if key != besides and not self.own[key]
        )


def read_pod(members: Members) -> Pod:
    """The pod of these holdings, of which there is one at least.

    Its CPUs are those of the pod as a whole, and where it was adopted without, those of its containers.
    """
    line, containers, cpus = None, {}, 0
    for key, holding in members:
        cpus |= holding.allocation.exclusive.mask
        if key.container:
            containers[key] = holding
        else:
            line = holding
    own = {key: holding.allocation.exclusive.mask for key, holding in containers.items()}
    if line is not None:
        request, nodes = line.request, line.allocation.nodes
    else:
        request = min((each.request for each in containers.values()), key=attrgetter("container"))
        nodes = NodeSet.union(each.allocation.nodes for each in containers.values())
    return Pod(request, line is not None, bool(line and line.adopted), nodes, cpus, containers, own)


def step_of(ground: Ground, request: ResourceRequest) -> int:
    """The threads of one core where the pod asks for whole ones, else 1."""
    paired = request.qos.cpu.full_pcpus_pairing and not request.qos.memory.numa_exclusive
    return ground.threads if paired else 1


def evenly(request: ResourceRequest) -> bool:
    """Whether the pod wants the same number of CPUs from each of its NUMA nodes."""
    return request.qos.cpu.distribute_evenly_across_numa and not request.qos.memory.numa_exclusive


def rounded(count: int, step: int, nodes: int = 1) -> int:
    """`count`, rounded up so that each of `nodes` can give the same number of whole cores."""
    return -(-count // (step * nodes)) * step * nodes


def own_cpus(request: ResourceRequest, step: int) -> int:
    """How many CPUs a container gets for itself: none unless it asks for whole ones."""
    whole, rest = divmod(request.cpu_millis, MILLIS_PER_CPU)
    return 0 if rest else rounded(whole, step)


def loose_millis(request: ResourceRequest) -> int:
    """The request of a container that gets no CPUs for itself, in millicores."""
    return request.cpu_millis if request.cpu_millis % MILLIS_PER_CPU else 0


def pod_total(request: ResourceRequest) -> int:
    """The CPUs that the pod as a whole asks for; 0 where that does not count.

    A pod that is dedicated by the node's default may have other containers, which are planned as shared.
    """
    return 0 if request.qos.by_default else whole_cpus(request.pod_cpu_millis)


def divide(ground: Ground, pod: Pod, key: ContainerKey, number: int) -> int:
    """`number` CPUs of the pod for one container: those that it has, then unclaimed ones, then those of exited ones."""
    request = pod.containers[key].request
    step = step_of(ground, request)
    others = union(cpus for other, cpus in pod.own.items() if other != key)
    running = pod.in_use(besides=key)
    keep = pod.own[key] & pod.held & ~running
    zones = (pod.held & ~others, pod.held & others & ~running)
    nodes = [node.mask for node in ground.nodes if node.mask & pod.held]
    if evenly(request) and number == rounded(number, step, len(nodes)):
        parts = [
            _cut(ground, step, keep & node, [zone & node for zone in zones], number // len(nodes)) for node in nodes
        ]
        if union(parts).bit_count() >= number:
            return union(parts)
    return _cut(ground, step, keep, zones, number)


def _cut(ground: Ground, step: int, keep: int, zones: Iterable[int], number: int) -> int:
    keep = shrink(ground, keep, number)
    for zone in zones:
        free = whole_cores(ground, zone & ~keep) if step > 1 else zone & ~keep
        keep |= grow(ground, keep, free, rounded(number - keep.bit_count(), step))
    return keep


def trimmed(ground: Ground, pod: Pod) -> int:
    """The CPUs that the pod keeps: as many as it asks for or its containers need, what they have among them.

    Nodes that a pod has for itself, and the CPUs of one that was adopted, stay.
    """
    request = pod.request
    if pod.fixed or request.qos.memory.numa_exclusive:
        return pod.held
    step, claimed = step_of(ground, request), pod.claimed
    size = rounded(max(pod_total(request), claimed.bit_count() + whole_cpus(pod.loose()), 1), step)
    if not evenly(request):
        return shrink(ground, pod.held, size, keep=claimed)
    nodes = [node.mask for node in ground.nodes if node.mask & pod.held]
    if not nodes:
        return 0
    most_claimed = max(rounded((claimed & node).bit_count(), step) for node in nodes)
    each = max(rounded(size, step, len(nodes)) // len(nodes), most_claimed)
    return union(shrink(ground, pod.held & node, each, keep=claimed & node) for node in nodes)


def allocations(ground: Ground, pod: Pod, fallback: int, foreign: int) -> dict[ContainerKey, Allocation]:
    """What the pod and its containers hold, where that is not what they hold already.

    Args:
        ground: The machine.
        pod: The pod as it shall be.
        fallback: Where containers run that have lost all their CPUs to hotplug, as a mask.
        foreign: The CPUs that other pods hold exclusively.
    """
    rest = pod.held & ~pod.in_use()
    spread = pod.request.qos.memory.numa_exclusive
    forbidden = foreign | ~ground.online
    found = {}
    for key, holding in pod.containers.items():
        own, old = pod.own[key], holding.allocation
        cpus = (own | rest if spread else own) if own else rest or pod.held or fallback
        stays = holding.adopted and not own and old.cpus and not old.cpus.mask & forbidden
        if not stays and (old.pool, old.cpus.mask, old.exclusive.mask) != (DEDICATED, cpus, own):
            found[key] = allocation(ground, cpus, own, _why(ground, pod, key, cpus))
    return found


def allocation(ground: Ground, cpus: int, own: int, why: str) -> Allocation:
    """The allocation of these masks in the pool of dedicated CPUs."""
    return Allocation(
        DEDICATED, CPUSet.from_mask(cpus), exclusive=CPUSet.from_mask(own), nodes=ground.nodes_of(cpus), why=why
    )


def _why(ground: Ground, pod: Pod, key: ContainerKey, cpus: int) -> str:
    request, own = pod.containers[key].request, pod.own[key]
    number = wording.count(cpus.bit_count(), "CPU")
    if not own:
        return f"{number} of its pod" + ("" if pod.in_use() & cpus else " that no other container has for itself")
    asked = request.cpu_millis // MILLIS_PER_CPU
    why = wording.place(ground, own) + ", best fit"
    if own.bit_count() > asked:
        why += f"; {wording.count(asked, 'CPU')} asked, rounded up to whole cores"
    if cpus != own:
        why += f"; and the {wording.count((cpus & ~own).bit_count(), 'CPU')} that no other container has for itself"
    return why
