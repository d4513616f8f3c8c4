"""The sentences for people: why a choice was made, and why a request was refused."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from qrm.allocator import DoesNotFit
from qrm.cpuset import NodeSet
from qrm_nic.links import Link
from qrm_nic.rate import NONE, Rate
from qrm_nic.scene import Ask, Scene

SHOWN = 8
"""NICs that a refusal lists: a node may have hundreds of virtual functions, a gRPC status a few KiB."""


def bandwidth(rate: Rate) -> str:
    """A rate, without directions of which there is nothing: "100 Mbit/s egress and 50 Mbit/s ingress"."""
    named = {"egress": rate.egress, "ingress": rate.ingress}
    return " and ".join(f"{mbit} Mbit/s {name}" for name, mbit in named.items() if mbit) or "nothing"


def on_nodes(nodes: NodeSet) -> str:
    """NUMA nodes by name: "NUMA node 0", "NUMA nodes 0-1"."""
    return f"NUMA node{'s' if len(nodes) > 1 else ''} {nodes}"


def place(link: Link) -> str:
    """A NIC and where it is: "eth0 on NUMA node 0"."""
    where = on_nodes(link.nodes) if link.nodes else "an unknown NUMA node"
    return f"{link.name} on {where}" + ("" if link.in_host else f" in namespace {link.facts.namespace}")


def chosen(scene: Scene, ask: Ask, link: Link, others: int) -> str:
    """Why the container is on the NIC; `others` is how many more would have done."""
    if ask.pod is not None:
        return f"{bandwidth(ask.rate)} on {place(link)}, where its pod is"
    full = f"{float(ask.fullness(scene, link)):.0%} of it promised with this pod"
    reason = f"the emptiest of {others + 1} NICs that fit" if others else "the only NIC that fits"
    return f"{bandwidth(ask.rate)} on {place(link)}, {reason}: {full}"


def whole(link: Link, rate: Rate) -> str:
    """What the pod as a whole holds."""
    return f"its containers were promised {bandwidth(rate)} on {place(link)}"


def refusal(scene: Scene, ask: Ask, possible: Sequence[Link], because: str) -> DoesNotFit:
    """The refusal with its numbers: what was asked, what is free by NIC, the largest that would fit.

    Args:
        scene: The state.
        ask: What was asked.
        possible: The NICs on which a smaller request might be served.
        because: What else stands in the way; may be empty.
    """
    largest = max((ask.largest(scene, link) for link in possible), key=lambda rate: _part_of(rate, ask), default=NONE)
    reason = f"; {because}" if because else ""
    unknown = [link.name for link in scene.links.values() if link.unusable == "speed unknown"]
    remedy = f"the speed of {unknown[0]} is not known: set assume_speed or nics.{unknown[0]}.speed" if unknown else ""
    return DoesNotFit(
        f"net_bandwidth: asked {bandwidth(ask.rate)}; free by NIC: {_listed(scene)};"
        f" largest that would fit: {bandwidth(largest)}{reason}",
        hint=remedy,
    )


def _part_of(rate: Rate, ask: Ask) -> Fraction:
    """How much of what is asked `rate` would be, in the direction where that is less."""
    pairs = ((rate.egress, ask.rate.egress), (rate.ingress, ask.rate.ingress))
    return min((Fraction(have, asked) for have, asked in pairs if asked), default=Fraction())


def _listed(scene: Scene) -> str:
    links = sorted(scene.links.values(), key=lambda link: (bool(link.unusable), -scene.free(link).egress, link.name))
    shown = [f"{place(link)}: {_state(scene, link)}" for link in links[:SHOWN]]
    more = [f"{len(links) - SHOWN} more"] if len(links) > SHOWN else []
    return ", ".join(shown + more) or "there are no NICs"


def _state(scene: Scene, link: Link) -> str:
    free = scene.free(link)
    return link.unusable or f"{free.egress} egress and {free.ingress} ingress"
