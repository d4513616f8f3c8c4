"""Bandwidth in both directions, and where requests and allocations carry it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qrm.allocator import NET_EGRESS, NET_INGRESS, Allocation, BadRequest, ResourceRequest


@dataclass(frozen=True, slots=True)
class Rate:
    """Mbit/s out of the node and into it. The order is partial: less in both directions."""

    egress: int = 0
    ingress: int = 0

    def __add__(self, other: Rate) -> Rate:
        return Rate(self.egress + other.egress, self.ingress + other.ingress)

    def __sub__(self, other: Rate) -> Rate:
        return Rate(self.egress - other.egress, self.ingress - other.ingress)

    def __le__(self, other: Rate) -> bool:
        return self.egress <= other.egress and self.ingress <= other.ingress

    def at_least(self, other: Rate) -> Rate:
        """The larger one of each direction."""
        return Rate(max(self.egress, other.egress), max(self.ingress, other.ingress))

    def at_most(self, other: Rate) -> Rate:
        """The smaller one of each direction."""
        return Rate(min(self.egress, other.egress), min(self.ingress, other.ingress))


NONE = Rate()


def total(rates: Iterable[Rate]) -> Rate:
    """The sum."""
    return sum(rates, NONE)


def asked_by(request: ResourceRequest) -> Rate:
    """What a container asks for. NET_EGRESS counts for both directions where NET_INGRESS is not said, as in Katalyst.

    Raises:
        BadRequest: It asks for less than nothing.
    """
    for name in (NET_EGRESS, NET_INGRESS):
        if request.quantities.get(name, 0) < 0:
            raise BadRequest(f"{name} is {request.quantities[name]}", hint="0 or more Mbit/s are allowed")
    egress = request.quantities.get(NET_EGRESS, 0)
    return Rate(egress, request.quantities.get(NET_INGRESS, egress))


def held_in(allocation: Allocation) -> Rate:
    """What an allocation counts for, over all NUMA nodes."""
    return Rate(*(sum(allocation.amounts.get(name, {}).values()) for name in (NET_EGRESS, NET_INGRESS)))


def amounts(rate: Rate, node: int) -> dict[str, dict[int, int]]:
    """`rate` on a NUMA node as an allocation has it; a direction of which nothing is held is not there."""
    named = {NET_EGRESS: rate.egress, NET_INGRESS: rate.ingress}
    return {name: {node: mbit} for name, mbit in named.items() if mbit}
