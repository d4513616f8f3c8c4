"""Which NIC: Katalyst's filters in Katalyst's order, and the least loaded one of what they leave.

Bandwidth first, then the network namespace, then the NUMA nodes (Katalyst picks one of the rest at random). A wish of
the pod never makes it fail: where the preferred namespace has nothing on nodes that it must be on, the others count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qrm.cpuset import NodeSet
from qrm_nic import wording
from qrm_nic.links import Link
from qrm_nic.scene import Ask, Scene

_HOST, _OTHER = "host_ns", "anti_host_ns"
_PREFERRED = "_preferred"


def choose(scene: Scene, ask: Ask, within: NodeSet | None) -> Sequence[Link]:
    """The NICs that can serve `ask`, best first: the emptiest one once the pod is on it, then by name.

    A pod that is on a NIC stays there, whatever the NIC has become.

    Args:
        scene: The state.
        ask: The request.
        within: The NUMA nodes that the pod gets; None where that is open.

    Raises:
        DoesNotFit: There is none.
    """
    if ask.pod is not None:
        home = scene.link_of(ask.pod)
        if ask.fits(scene, home):
            return [home]
        raise wording.refusal(scene, ask, [home], f"its pod is on {home.name}")
    usable = [link for link in scene.links.values() if not link.unusable]
    for group in _by_namespace([link for link in usable if ask.fits(scene, link)], ask):
        if found := _near(scene, ask, group, within):
            return sorted(found, key=lambda link: (ask.fullness(scene, link), link.name))
    possible = [link for link in usable if _allowed(link, ask) and _reaches(scene, ask, link, within)]
    raise wording.refusal(scene, ask, possible, _conditions(ask, within))


def _by_namespace(links: Sequence[Link], ask: Ask) -> Iterator[Sequence[Link]]:
    """Those in the network namespace that the pod wants; after these, if it is only a wish, all."""
    allowed = [link for link in links if _allowed(link, ask)]
    if (ask.request.qos.network.namespace_type or "").endswith(_PREFERRED):
        yield [link for link in allowed if _as_wished(link, ask)]
    yield allowed


def _allowed(link: Link, ask: Ask) -> bool:
    """Whether the pod may be on the NIC for its network namespace."""
    wanted = ask.request.qos.network.namespace_type or ""
    return wanted.endswith(_PREFERRED) or _as_wished(link, ask)


def _as_wished(link: Link, ask: Ask) -> bool:
    """Whether the NIC's network namespace is what the pod wants, be it a wish or a condition."""
    wanted = (ask.request.qos.network.namespace_type or "").removesuffix(_PREFERRED)
    return not ((wanted == _HOST and not link.in_host) or (wanted == _OTHER and link.in_host))


def _near(scene: Scene, ask: Ask, links: Sequence[Link], within: NodeSet | None) -> Sequence[Link]:
    """Those on the nodes `within`; if there are none, those that reach these; if there are none, all that are allowed.

    A NIC is on one NUMA node, so that Katalyst's exact match is what is found where `within` is one node, and its
    match by subset where there are more. A NIC whose node is unknown is on all of them.
    """
    if within is None:
        return links
    reaching = [link for link in links if link.reach(scene.machine) & within]
    on = [link for link in reaching if link.reach(scene.machine) <= within]
    return on or reaching or ([] if ask.restricted else links)


def _reaches(scene: Scene, ask: Ask, link: Link, within: NodeSet | None) -> bool:
    return within is None or not ask.restricted or bool(link.reach(scene.machine) & within)


def _conditions(ask: Ask, within: NodeSet | None) -> str:
    """What the pod insists on, for the refusal."""
    said = []
    network = ask.request.qos.network
    if network.namespace_type in (_HOST, _OTHER):
        where = "in" if network.namespace_type == _HOST else "outside"
        said.append(f"namespace_type {network.namespace_type} allows only NICs {where} the host's network namespace")
    if ask.restricted and within is not None:
        said.append(f"topology_affinity_restricted allows only NICs on {wording.on_nodes(within)}")
    return " and ".join(said)
