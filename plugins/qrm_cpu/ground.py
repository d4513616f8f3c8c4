"""The machine as bit masks, arranged so that CPUs can be picked without looking at each one. Built once per machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, zip_longest
from operator import or_

from qrm.cpuset import CPUSet, NodeSet
from qrm.topology.machine import Machine
from qrm_cpu.settings import Settings


@dataclass(frozen=True, slots=True)
class Domain:
    """The CPUs of one NUMA node that share one L3 cache."""

    id: int
    """The machine's name for the L3 domain."""
    mask: int
    cores: tuple[int, ...]
    """The masks of its cores, those with the most threads first, then by lowest id."""


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node that has CPUs."""

    id: int
    mask: int
    socket: int
    domains: tuple[Domain, ...]


@dataclass(frozen=True, slots=True)
class Ground:
    """What containers can be placed on. Every mask has bit n set for CPU n."""

    machine: Machine
    online: int
    usable: int
    """Online CPUs that are not isolated by the kernel's command line."""
    reserve: int
    """The part of `usable` that only system containers use."""
    assignable: int
    """The rest of `usable`; never empty."""
    threads: int
    """Of the machine's widest core: the size of "one core" as far as pools are concerned."""
    nodes: tuple[Node, ...]
    sockets: tuple[int, ...]
    """The sockets' masks, the largest first."""
    nodes_in_sockets: tuple[int, ...]
    """How many of `nodes` lie in the largest socket, in the two largest ones, and so on."""

    def nodes_of(self, mask: int) -> NodeSet:
        """The NUMA nodes on which `mask` lies."""
        return NodeSet(node.id for node in self.nodes if node.mask & mask)

    def zone(self, nodes: NodeSet) -> int:
        """The CPUs of `nodes`."""
        return union(node.mask for node in self.nodes if node.id in nodes)

    def count_by_node(self, mask: int) -> Mapping[int, int]:
        """How many CPUs of `mask` lie on each NUMA node."""
        return {node.id: (node.mask & mask).bit_count() for node in self.nodes}


def union(masks: Iterable[int]) -> int:
    """Every bit that is set in at least one of `masks`."""
    return reduce(or_, masks, 0)


def survey_ground(machine: Machine, settings: Settings) -> Ground:
    """The masks of `machine` with the reserve of `settings` taken out.

    At least one core is always left to containers, whatever the reserve asks for.
    """
    usable = (machine.online - machine.isolated).mask or machine.online.mask
    nodes = tuple(_node(machine, number) for number in sorted(machine.nodes))
    nodes = tuple(node for node in nodes if node.mask)
    reserve = _reserve(nodes, usable, settings)
    return Ground(
        machine=machine,
        online=machine.online.mask,
        usable=usable,
        reserve=reserve,
        assignable=usable & ~reserve,
        threads=machine.threads_per_core,
        nodes=nodes,
        sockets=_largest_first(cpus.mask for cpus in machine.sockets.values()),
        nodes_in_sockets=tuple(accumulate(sorted(Counter(node.socket for node in nodes).values(), reverse=True))),
    )


def _node(machine: Machine, number: int) -> Node:
    # A CPU that several nodes list, as numa=fake= makes them, belongs to the one that it names itself.
    cpus = CPUSet(cpu for cpu in machine.nodes[number].cpus & machine.online if machine.cpus[cpu].node == number)
    pieces = ((name, domain & cpus) for name, domain in machine.l3_domains.items())
    domains = tuple(Domain(name, piece.mask, _cores(machine, piece)) for name, piece in pieces if piece)
    return Node(number, cpus.mask, machine.socket_of(number) or 0, domains)


def _cores(machine: Machine, cpus: CPUSet) -> tuple[int, ...]:
    return _largest_first(dict.fromkeys(machine.cpus[cpu].siblings.mask for cpu in cpus))


def _largest_first(masks: Iterable[int]) -> tuple[int, ...]:
    """The masks by size, descending, then by lowest id."""
    return tuple(sorted(masks, key=lambda mask: (-mask.bit_count(), mask & -mask)))


def _reserve(nodes: tuple[Node, ...], usable: int, settings: Settings) -> int:
    listed = settings.reserved_list
    if listed is not None:
        reserve = listed.mask & usable
        return reserve & ~_last_core(nodes, usable) if reserve == usable else reserve
    reserve, missing = 0, int(settings.reserved)
    spare = _last_core(nodes, usable)
    for core in _round_robin(nodes):
        threads = CPUSet.from_mask(core & usable & ~spare & ~reserve).lowest(missing)
        reserve |= threads.mask
        missing -= len(threads)
    return reserve


def _round_robin(nodes: tuple[Node, ...]) -> Iterator[int]:
    """Every core, taking one of each NUMA node in turn, lowest ids first."""
    by_node = (sorted((core for domain in node.domains for core in domain.cores), key=_lowest) for node in nodes)
    for turn in zip_longest(*by_node, fillvalue=0):
        yield from turn


def _lowest(mask: int) -> int:
    return mask & -mask


def _last_core(nodes: tuple[Node, ...], usable: int) -> int:
    """The usable threads of the core with the highest ids."""
    return max((core & usable for node in nodes for domain in node.domains for core in domain.cores), key=_lowest)
