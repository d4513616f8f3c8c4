"""Everything that a decision is based on, derived once from a state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from qrm.allocator import ContainerKey, Holding, ResourceRequest
from qrm.topology.machine import Machine
from qrm_nic.links import Link, gone, read_links
from qrm_nic.pods import Pod, read_pods
from qrm_nic.rate import NONE, Rate, asked_by
from qrm_nic.settings import Settings


@dataclass(frozen=True, slots=True)
class Scene:
    """The NICs and who is on them."""

    machine: Machine
    links: Mapping[str, Link]
    pods: Mapping[str, Pod]
    loads: Mapping[str, Rate]
    """By NIC, what all pods on it hold."""

    def load(self, link: Link) -> Rate:
        """What is held on a NIC."""
        return self.loads.get(link.name, NONE)

    def free(self, link: Link) -> Rate:
        """What nobody holds of a NIC."""
        return (link.capacity - self.load(link)).at_least(NONE)

    def link_of(self, pod: Pod) -> Link:
        """The NIC that a pod is on."""
        return self.links.get(pod.device) or gone(pod.device, pod.nodes & self.machine.cpu_nodes)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, and what it makes of its pod."""

    request: ResourceRequest
    rate: Rate
    """What the container asks for."""
    pod: Pod | None
    """The pod as it is; None while it is on no NIC."""

    @property
    def is_nothing(self) -> bool:
        """Whether it neither asks nor gives back."""
        return self.rate == NONE and (self.pod is None or self.request.container not in self.pod.shares)

    @property
    def restricted(self) -> bool:
        """Whether the NIC must be on the NUMA nodes that the pod gets."""
        return self.request.qos.network.topology_affinity_restricted

    @property
    def before(self) -> Rate:
        """What the pod holds without it."""
        return self.pod.held if self.pod else NONE

    @property
    def after(self) -> Rate:
        """What the pod will hold with it."""
        return self.pod.with_share(self.request.container, self.rate).held if self.pod else self.rate

    def limit(self, scene: Scene, link: Link) -> Rate:
        """The most that the pod may hold on a NIC: what the others leave, and never less than it has there."""
        if self.pod is None:
            return scene.free(link)
        return (link.capacity - scene.load(link) + self.before).at_least(self.before)

    def fits(self, scene: Scene, link: Link) -> bool:
        """Whether the NIC can carry it."""
        return self.after <= self.limit(scene, link)

    def largest(self, scene: Scene, link: Link) -> Rate:
        """The most that the container could have on a NIC, in the directions that it asks for."""
        taken = self.pod.taken_beside(self.request.container) if self.pod else NONE
        most = (self.limit(scene, link) - taken).at_least(NONE)
        if self.rate.egress == self.rate.ingress:
            return Rate(min(most.egress, most.ingress), min(most.egress, most.ingress))
        return Rate(most.egress if self.rate.egress else 0, most.ingress if self.rate.ingress else 0)

    def fullness(self, scene: Scene, link: Link) -> Fraction:
        """The part of the NIC that is held once the pod is on it, of the direction that is fuller."""
        held = scene.load(link) - self.before + self.after
        return max(_part(held.egress, link.capacity.egress), _part(held.ingress, link.capacity.ingress))


def look(machine: Machine, settings: Settings, holdings: Mapping[ContainerKey, Holding]) -> Scene:
    """Sorts `holdings` out."""
    pods = read_pods(holdings)
    loads: dict[str, Rate] = {}
    for pod in pods.values():
        loads[pod.device] = loads.get(pod.device, NONE) + pod.held
    return Scene(machine, read_links(machine, settings), pods, loads)


def ask(scene: Scene, request: ResourceRequest) -> Ask:
    """What `request` comes to. Raises BadRequest as `asked_by`."""
    return Ask(request, asked_by(request), scene.pods.get(request.pod.uid))


def _part(held: int, capacity: int) -> Fraction:
    return Fraction(held, capacity) if capacity else Fraction(bool(held))
