"""Reading a Machine from sysfs, in one pass.

Sources: Documentation/admin-guide/cputopology.rst (CPU lists), Documentation/ABI/stable/sysfs-devices-node (NUMA nodes)
and Documentation/admin-guide/mm/hugetlbpage.rst. Every file is optional: one that is missing or malformed makes what it
says unknown.
"""

from __future__ import annotations

import re
from pathlib import Path

from qrm.cpuset import CPUSet, NodeSet
from qrm.errors import QrmError
from qrm.topology.attributes import children, numbered, read_number, read_set, read_text
from qrm.topology.cpus import read_cpus
from qrm.topology.devices import read_addresses, read_disks, read_nics
from qrm.topology.machine import LOCAL_DISTANCE, NO_DISTANCE, Machine, NumaNode

SYSFS = Path("/sys")

_MEM_TOTAL = re.compile(r"MemTotal:\s*(\d+) kB", re.ASCII)
_HUGEPAGES = re.compile(r"hugepages-(\d+)kB", re.ASCII)


class TopologyError(QrmError):
    """Sysfs does not name a single online CPU."""


def read_machine(sysfs: Path = SYSFS, *, meminfo: Path | None = None) -> Machine:
    """The machine as the kernel describes it now; call again after CPUs, memory or devices were plugged.

    Args:
        sysfs: Where sysfs is mounted.
        meminfo: Says how much memory there is (proc_meminfo(5)) where sysfs does not, which is on a kernel without
            NUMA. By default this is /proc/meminfo if `sysfs` is /sys, and nothing otherwise: the memory is then 0.

    Raises:
        TopologyError: there is no online CPU to be found.
    """
    ours = sysfs == SYSFS
    if meminfo is None and ours:
        meminfo = Path("/proc/meminfo")
    root = sysfs / "devices/system/cpu"
    online = read_set(root / "online", CPUSet) or _online_by_directory(root)
    if not online:
        raise TopologyError(f"{root} names no online CPU", hint=f"is sysfs mounted on {sysfs}?")
    present = read_set(root / "present", CPUSet) or CPUSet(numbered(root, "cpu"))
    nodes = _read_nodes(sysfs, online, meminfo)
    return Machine(
        cpus=read_cpus(root, online, {cpu: node.id for node in nodes.values() for cpu in node.cpus}),
        nodes=nodes,
        offline=present - online,
        isolated=(read_set(root / "isolated", CPUSet) or CPUSet()) & online,
        nics=read_nics(sysfs, NodeSet(nodes), read_addresses() if ours else {}),
        disks=read_disks(sysfs, NodeSet(nodes)),
    )


def _online_by_directory(root: Path) -> CPUSet:
    """The CPUs whose own `online` file does not deny it; those that cannot be taken offline have none."""
    return CPUSet(cpu for cpu in numbered(root, "cpu") if read_number(root / f"cpu{cpu}/online") != 0)


def _read_nodes(sysfs: Path, online: CPUSet, meminfo: Path | None) -> dict[int, NumaNode]:
    """The online NUMA nodes, ascending: without CONFIG_NUMA there is no such directory, and all is one node 0."""
    root = sysfs / "devices/system/node"
    ids = read_set(root / "online", NodeSet) or NodeSet(numbered(root, "node"))
    if not ids:
        memory = 0 if meminfo is None else _mem_total(meminfo)
        return {0: NumaNode(0, online, memory, _hugepages(sysfs / "kernel/mm/hugepages"), {0: LOCAL_DISTANCE})}
    cpus = _cpus_by_node(sysfs, ids, online)
    return {
        node: NumaNode(
            id=node,
            cpus=cpus[node],
            memory=_mem_total(root / f"node{node}/meminfo"),
            hugepages=_hugepages(root / f"node{node}/hugepages"),
            distances=_distances(root / f"node{node}/distance", node, ids),
        )
        for node in ids
    }


def _cpus_by_node(sysfs: Path, nodes: NodeSet, online: CPUSet) -> dict[int, CPUSet]:
    """Each node's CPUs; every online CPU is on exactly one node.

    A CPU that several nodes list (`numa=fake=`) is on the first of them. One that none lists is where the link in its
    own directory says, or else, so that no CPU is lost, on the first node.
    """
    cpus: dict[int, CPUSet] = {}
    left = online
    for node in nodes:
        listed = read_set(sysfs / f"devices/system/node/node{node}/cpulist", CPUSet) or CPUSet()
        cpus[node] = listed & left
        left -= listed
    for cpu in left:
        linked = [node for node in numbered(sysfs / f"devices/system/cpu/cpu{cpu}", "node") if node in nodes]
        node = linked[0] if linked else next(iter(nodes))
        cpus[node] |= CPUSet([cpu])
    return cpus


def _mem_total(meminfo: Path) -> int:
    """MemTotal in bytes; 0 where the file does not say."""
    match = _MEM_TOTAL.search(read_text(meminfo) or "")
    return int(match[1]) * 1024 if match else 0


def _hugepages(directory: Path) -> dict[int, int]:
    """Page size in bytes to the number of pages, of all sizes whose number can be read."""
    pages: dict[int, int] = {}
    for name in children(directory):
        match = _HUGEPAGES.fullmatch(name)
        number = read_number(directory / name / "nr_hugepages")
        if match and number is not None:
            pages[int(match[1]) * 1024] = number
    return pages


def _distances(path: Path, node: int, online: NodeSet) -> dict[int, int]:
    """Node id to distance from `node`. The file has one number for each online node in the order of ids, not by id."""
    words = (read_text(path) or "").split()
    if len(words) == len(online) and all(word.isascii() and word.isdecimal() for word in words):
        return dict(zip(online, map(int, words), strict=True))
    return {other: LOCAL_DISTANCE if other == node else NO_DISTANCE for other in online}
