"""The sentences for people: why a choice was made, and why a request was refused."""

from __future__ import annotations

from collections.abc import Mapping

from qrm.allocator import DoesNotFit, ResourceRequest
from qrm.cpuset import CPUSet, NodeSet
from qrm.units import MILLIS_PER_CPU
from qrm_cpu.ground import Ground


def count(number: int, noun: str) -> str:
    """A number and its noun: "1 CPU", "2 CPUs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def cpus(millis: int) -> str:
    """Millicores as CPUs: "1 CPU", "2.5 CPUs"."""
    return f"{millis / MILLIS_PER_CPU:g} {'CPU' if millis == MILLIS_PER_CPU else 'CPUs'}"


def place(ground: Ground, mask: int) -> str:
    """Where `mask` lies: "4 CPUs on NUMA node 0: 2 whole cores of L3 domain 0"."""
    domains = [domain for node in ground.nodes for domain in node.domains if domain.mask & mask]
    parts = [(core, core & mask) for domain in domains for core in domain.cores if core & mask]
    whole = sum(part == core for core, part in parts)
    single = sum(part.bit_count() for core, part in parts if part != core)
    made_of = [count(number, noun) for number, noun in ((whole, "whole core"), (single, "single thread")) if number]
    where = f"{'L3 domain' if len(domains) == 1 else 'L3 domains'} {CPUSet(domain.id for domain in domains)}"
    return f"{count(mask.bit_count(), 'CPU')} on {nodes(ground.nodes_of(mask))}: {' and '.join(made_of)} of {where}"


def kind(request: ResourceRequest) -> str:
    """What the request wants to be: "dedicated_cores with numa_binding"."""
    qos = request.qos
    wishes = {
        "numa_binding": qos.memory.numa_binding,
        "numa_exclusive": qos.memory.numa_exclusive,
        "full_pcpus_pairing": qos.cpu.full_pcpus_pairing,
        "distribute_evenly_across_numa": qos.cpu.distribute_evenly_across_numa,
        "align_by_socket": qos.cpu.align_by_socket,
        'numa_share "false"': not qos.cpu.numa_share,
        f"numa_ids {qos.numa_ids}": qos.numa_ids is not None,
        f"numa_number {qos.numa_number}": qos.numa_number is not None and qos.numa_ids is None,
    }
    said = [wish for wish, wanted in wishes.items() if wanted]
    return f"{qos.level} with {', '.join(said)}" if said else str(qos.level)


def refusal(
    request: ResourceRequest, asked: str, free: Mapping[int, int], largest: str, *, because: str = ""
) -> DoesNotFit:
    """The refusal with its numbers: what was asked, what is free by NUMA node, the largest that would fit."""
    by_node = ", ".join(f"{node}: {number}" for node, number in sorted(free.items()))
    reason = f"; {because}" if because else ""
    return DoesNotFit(
        f"cpu: asked {asked} for {kind(request)}; free by NUMA node: {by_node};"
        f" largest that would fit: {largest}{reason}"
    )


def nodes(present: NodeSet) -> str:
    """NUMA nodes by name: "NUMA node 0", "NUMA nodes 0-1"."""
    return f"NUMA node{'s' if len(present) > 1 else ''} {present}"
