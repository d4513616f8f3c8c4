"""The sentences for people: why a choice was made, and why a request was refused."""

from __future__ import annotations

from collections.abc import Mapping

from qrm.allocator import DoesNotFit, ResourceRequest
from qrm.cpuset import NodeSet

_UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def quantity(amount: int, *, up: bool = False) -> str:
    """Bytes as a quantity with at most two decimals, rounded down unless told otherwise: "5.5Gi"."""
    power = 0
    while amount >> 10 * (power + 1):
        power += 1
    hundredths = (100 * amount + ((1 << 10 * power) - 1 if up else 0)) >> 10 * power
    return f"{hundredths / 100:.2f}".rstrip("0").rstrip(".") + _UNITS[power]


def nodes(mask: int) -> str:
    """NUMA nodes by name: "NUMA node 0", "NUMA nodes 0-1"."""
    return f"NUMA node{'s' if mask.bit_count() > 1 else ''} {NodeSet.from_mask(mask)}"


def kind(request: ResourceRequest) -> str:
    """What the request wants to be: "dedicated_cores with numa_binding"."""
    qos = request.qos
    wishes = {
        "numa_binding": qos.memory.numa_binding,
        "numa_exclusive": qos.memory.numa_exclusive,
        f"numa_ids {qos.numa_ids}": qos.numa_ids is not None,
        f"numa_number {qos.numa_number}": qos.numa_number is not None and qos.numa_ids is None,
        "memory_only_nodes": qos.memory_only_nodes,
    }
    said = [wish for wish, wanted in wishes.items() if wanted]
    return f"{qos.level} with {', '.join(said)}" if said else str(qos.level)


def sentence(resource: str, asked: str, request: ResourceRequest, free: Mapping[int, int], largest: int) -> str:
    """What is wrong with one resource: what was asked, what is free by NUMA node, the largest that would fit."""
    by_node = ", ".join(f"{node}: {quantity(amount)}" for node, amount in sorted(free.items()))
    return (
        f"{resource}: asked {asked} for {kind(request)}; free by NUMA node: {by_node};"
        f" largest that would fit: {quantity(largest)}"
    )


def refusal(sentences: list[str], because: str = "") -> DoesNotFit:
    """The refusal of these sentences."""
    return DoesNotFit(". ".join(sentences) + (f"; {because}" if because else ""))
