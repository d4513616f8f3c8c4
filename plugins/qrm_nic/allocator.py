"""The NIC allocator: hints, allocations, and what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qrm.allocator import (
    NET_EGRESS,
    Allocation,
    BadRequest,
    Changes,
    Quantities,
    ResourceRequest,
    State,
    TopologyHint,
)
from qrm.cpuset import NodeSet
from qrm.topology.machine import Machine
from qrm_nic import wording
from qrm_nic.choice import choose
from qrm_nic.links import Link, counted_on
from qrm_nic.rate import NONE, Rate, amounts
from qrm_nic.scene import Scene, ask, look
from qrm_nic.settings import Settings, read_settings

RESULT = "qrm.katalyst.kubewharf.io/"
"""Before the names of Katalyst's result annotations (its api consts/qrm)."""


def create(settings: Mapping[str, object]) -> NicAllocator:
    """The allocator with these settings; what the entry point `qrm.allocators: nic` names.

    Raises:
        ConfigError: A setting is unknown or unusable.
    """
    return NicAllocator(read_settings(settings))


class NicAllocator:
    """Puts each pod that asks for bandwidth on one NIC. See `qrm.allocator.Allocator`.

    What a pod holds is at its own key, what a container holds of that at the container's. A container that asks for
    nothing gets no allocation. Amounts are Mbit/s, counted at the NIC's NUMA node, or where that is unknown at the
    lowest node with CPUs.
    """

    resource = NET_EGRESS

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def hints(self, request: ResourceRequest, state: State) -> Sequence[TopologyHint]:
        """The NUMA nodes of each NIC that fits, and behind them all nodes unless the pod restricts itself.

        A NIC whose node is unknown is as good on all nodes. A container that asks for nothing has no preference.

        Raises:
            DoesNotFit: No NIC fits.
            BadRequest: As the contract says.
        """
        anywhere = state.machine.cpu_nodes
        scene = self._look(state)
        asked = ask(scene, request)
        if asked.rate == NONE:
            return [TopologyHint(anywhere, preferred=True)]
        _check_nodes(request, state.machine)
        links = choose(scene, asked, request.qos.numa_ids if asked.restricted else None)
        near = list(dict.fromkeys(link.reach(state.machine) for link in links))
        hints = [TopologyHint(nodes, preferred=True) for nodes in near]
        if not asked.restricted and anywhere not in near:
            hints.append(TopologyHint(anywhere, preferred=False))
        return hints

    def allocate(self, request: ResourceRequest, hint: TopologyHint, state: State) -> Changes:
        """What the container and its pod hold then; nothing where the container asks for nothing and held nothing.

        Raises:
            DoesNotFit: As `hints`; also where the pod restricts itself and no NIC that fits is near the hint's nodes.
            BadRequest: It asks for less than nothing.
        """
        scene = self._look(state)
        asked = ask(scene, request)
        if asked.is_nothing:
            return Changes({})
        links = choose(scene, asked, hint.nodes)
        link = links[0]
        own = _allocation(link, asked.rate, state.machine, wording.chosen(scene, asked, link, len(links) - 1))
        own = replace(own, envs=_envs(link, asked.rate), annotations=_annotations(link, asked.rate))
        pod = _allocation(link, asked.after, state.machine, wording.whole(link, asked.after))
        return Changes({request.key: own, request.pod_key: pod})

    def settle(self, state: State) -> Changes:
        """What pods hold less after containers of theirs went. No pod moves to another NIC."""
        scene = self._look(state)
        changes = {}
        for key, holding in state.holdings.items():
            pod = None if key.container else scene.pods.get(key.pod_uid)
            if pod is not None and pod.line != pod.held:
                link, node = scene.link_of(pod), counted_on(pod.nodes, state.machine)
                why = wording.whole(link, pod.held)
                changes[key] = replace(holding.allocation, amounts=amounts(pod.held, node), why=why)
        return Changes(changes)

    def allocatable(self, state: State) -> Quantities:
        """Egress in Mbit/s by NUMA node, of the NICs that new pods can have."""
        scene = self._look(state)
        usable = [link for link in scene.links.values() if not link.unusable]
        return Quantities(
            allocatable=_by_node([(link, link.capacity.egress) for link in usable], state.machine),
            free=_by_node([(link, scene.free(link).egress) for link in usable], state.machine),
        )

    def _look(self, state: State) -> Scene:
        return look(state.machine, self.settings, state.holdings)


def _check_nodes(request: ResourceRequest, machine: Machine) -> None:
    ids = request.qos.numa_ids
    if ids is not None and not ids <= NodeSet(machine.nodes):
        raise BadRequest(
            f"katalyst.kubewharf.io/numa_ids asks for NUMA nodes {str(ids)!r}",
            hint=f"this machine has nodes {NodeSet(machine.nodes)}",
        )


def _allocation(link: Link, rate: Rate, machine: Machine, why: str) -> Allocation:
    held = amounts(rate, counted_on(link.nodes, machine))
    return Allocation(link.name, nodes=link.nodes, device=link.name, amounts=held, why=why)


def _annotations(link: Link, rate: Rate) -> dict[str, str]:
    """Katalyst's result annotations; what is not known is not there."""
    found = {
        "nic_name": link.name,
        "net_bandwidth": rate.egress,
        "inet_addr": link.facts.ipv4,
        "inet_addr_ipv6": link.facts.ipv6,
        "netns_path": link.facts.netns_path,
    }
    return {f"{RESULT}{name}": str(value) for name, value in found.items() if value}


def _envs(link: Link, rate: Rate) -> dict[str, str]:
    """The same for programs that do not see annotations, and the ingress, for which Katalyst has none."""
    found = {
        "QRM_NIC_NAME": link.name,
        "QRM_NET_EGRESS_MBIT": rate.egress,
        "QRM_NET_INGRESS_MBIT": rate.ingress,
        "QRM_NIC_IPV4": link.facts.ipv4,
        "QRM_NIC_IPV6": link.facts.ipv6,
    }
    return {name: str(value) for name, value in found.items() if value}


def _by_node(amounts_on: Sequence[tuple[Link, int]], machine: Machine) -> dict[int, int]:
    sums: dict[int, int] = {}
    for link, mbit in amounts_on:
        node = counted_on(link.nodes, machine)
        sums[node] = sums.get(node, 0) + mbit
    return dict(sorted(sums.items()))
