"""The NICs as this allocator sees them: the machine's with the operator's word on each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import msgspec

from qrm.cpuset import NodeSet
from qrm.topology.machine import Machine, Nic
from qrm_nic.rate import NONE, Rate
from qrm_nic.settings import NicSettings, Settings


@dataclass(frozen=True, slots=True)
class Link:
    """One NIC."""

    name: str
    nodes: NodeSet
    """The NUMA node that it is attached to; empty where that is unknown or has no CPUs: then it is near to no node
    and far from none."""
    capacity: Rate
    """What containers can be promised on it."""
    facts: NicSettings
    """What the operator says about it; the addresses that the kernel knows where he says none."""
    unusable: str = ""
    """Why no new pod may have it; empty where one may."""

    @property
    def in_host(self) -> bool:
        """Whether it is in the host's network namespace."""
        return not self.facts.namespace

    def reach(self, machine: Machine) -> NodeSet:
        """The NUMA nodes that it serves as well as it can serve any."""
        return self.nodes or machine.cpu_nodes


def read_links(machine: Machine, settings: Settings) -> Mapping[str, Link]:
    """The NICs by name, in the order of names, the reserved bandwidth taken off.

    Those that are in `settings` only are there if they are in a network namespace that the machine cannot look into.
    """
    nics = {name: Nic(name, None, None, up=True) for name, nic in settings.nics.items() if nic.namespace}
    nics |= {nic.name: nic for nic in machine.nics}
    links = {name: _link(nics[name], machine, settings) for name in sorted(nics)}
    if settings.reserved and (first := _first(links.values())):
        left = first.capacity - Rate(settings.reserved, settings.reserved)
        links[first.name] = replace(first, capacity=left.at_least(NONE))
    return links


def gone(name: str, nodes: NodeSet) -> Link:
    """A NIC on which somebody is and that the machine does not have any more."""
    return Link(name, nodes, NONE, NicSettings(), "not there")


def counted_on(nodes: NodeSet, machine: Machine) -> int:
    """The NUMA node at which the bandwidth of a NIC on `nodes` is counted: its own, else the lowest with CPUs."""
    return next(iter(nodes or machine.cpu_nodes))


def _link(nic: Nic, machine: Machine, settings: Settings) -> Link:
    facts = settings.nics.get(nic.name, NicSettings())
    speed = facts.speed or nic.speed or settings.assume_speed
    node = nic.node if facts.node is None else facts.node
    return Link(
        name=nic.name,
        nodes=NodeSet([] if node is None else [node]) & machine.cpu_nodes,
        capacity=Rate(_part(speed, settings.egress_ratio), _part(speed, settings.ingress_ratio)),
        facts=msgspec.structs.replace(
            facts,
            ipv4=facts.ipv4 or next((each for each in nic.addresses if ":" not in each), ""),
            ipv6=facts.ipv6 or next((each for each in nic.addresses if ":" in each), ""),
        ),
        unusable=_unusable(nic, facts, speed),
    )


def _unusable(nic: Nic, facts: NicSettings, speed: int) -> str:
    if facts.ignore:
        return "ignored"
    if not nic.up:
        return "down"
    return "" if speed else "speed unknown"


def _part(speed: int, ratio: float) -> int:
    """Rounded down, and of the ratio as it was written: 0.57 of 100 is 57, although the float is a little less."""
    return int(speed * Fraction(str(ratio)))


def _first(links: Iterable[Link]) -> Link | None:
    """The NIC through which the system talks: the first one in use, in the host's network namespace if one is there."""
    usable = [link for link in links if not link.unusable]
    return next((link for link in usable if link.in_host), next(iter(usable), None))
