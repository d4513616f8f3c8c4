"""What `qrm doctor` and `qrm explain` say of RDT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qrm.enforcement.isolation.dimension import Fact, Sandbox
from qrm.enforcement.isolation.rdt.groups import Groups
from qrm.enforcement.isolation.rdt.info import RdtInfo
from qrm.enforcement.isolation.rdt.masks import PREFIX
from qrm.enforcement.isolation.rdt.members import Processes
from qrm.enforcement.isolation.rdt.monitor import Monitoring
from qrm.enforcement.isolation.rdt.placing import Placing, Tenant
from qrm.enforcement.isolation.rdt.schemata import parse_schemata, show, show_wanted
from qrm.enforcement.isolation.rdt.tree import Tree

DEFAULT = "default"
"""What the group of resctrl's root is called."""


@dataclass(frozen=True, slots=True)
class Node:
    """The parts for the mount that there is now."""

    info: RdtInfo
    tree: Tree
    groups: Groups
    monitoring: Monitoring
    placing: Placing


def found(node: Node) -> str:
    """One line: what the hardware has, and what is used of it."""
    info = node.info
    caches = [f"{name} of {cache.ways} ways" for name, cache in info.caches.items()]
    caches += [f"bandwidth in {info.bandwidth.unit}"] if info.bandwidth else []
    others = [name for name in node.tree.control_groups() if not name.startswith(PREFIX)]
    alien = f", {len(others)} by other groups ({', '.join(others)})" if others else ""
    used = f"{len(node.groups.wanted)} of {info.closids - 1} CLOSIDs used by classes{alien}"
    monitored = f"{info.rmids} RMIDs" if info.rmids else "no monitoring"
    return f"{info.root}: {', '.join(caches)}; {used}; {monitored}"


def facts(node: Node, processes: Processes, tenant: Tenant | None, sandbox: Sandbox, group: str) -> Sequence[Fact]:
    """For a pod that belongs to `group`; `tenant` is None where none of its processes is found."""
    control, monitored = (processes.groups_of(sandbox.pid) if tenant else None) or ("", "")
    now = parse_schemata(node.tree.schemata(node.groups.path(group)) or "")
    wanted = show_wanted(node.groups.wanted[group], now) if group else "not ours to set"
    told = [
        Fact("rdt group", group or DEFAULT, (control or DEFAULT) if tenant else ""),
        Fact("rdt schemata", wanted, show(now)),
    ]
    if tenant is not None:
        threads = node.placing.threads(tenant)
        inside = len(threads - node.placing.outside(tenant))
        how = f"moved: {tenant.why_moved}" if tenant.why_moved else f"inherited from shim {tenant.members.parent}"
        told.append(Fact("rdt membership", how, f"{inside} of {len(threads)} threads"))
    name = node.monitoring.name(sandbox.pod.uid)
    told.append(Fact("rdt monitoring", name or "none", monitored or "none"))
    return told
