"""Sysfs trees of machines that are not at hand: for the demo, benchmarks and tests.

What is written is what a kernel shows of such a machine, as far as `qrm.topology` looks: lists of CPUs, but not the
hexadecimal masks beside them. It is some thirty files for each CPU, so `root` is best in memory (tmpfs).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qrm.cpuset import CPUSet, NodeSet
from qrm.topology.machine import LOCAL_DISTANCE, Disk, Nic

GIB = 1 << 30

SAME_SOCKET_DISTANCE = 12
OTHER_SOCKET_DISTANCE = 21
"""Distances as sub-NUMA clustering and two-socket machines have them."""

_CACHES = ((1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K"), (3, "Unified", "32768K"))
"""Level, type and size of index0 to index3."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a machine is made of.

    The cores of a socket are dealt to its dies, NUMA nodes and L3 domains in runs of equal length, or of nearly equal
    length where the numbers do not divide. More NUMA nodes than L3 domains make sub-NUMA clustering, fewer make a
    server of many chiplets. CPUs are numbered as on a real machine: core by core through all sockets, then again
    through the second threads.
    """

    sockets: int = 1
    dies_per_socket: int = 1
    nodes_per_socket: int = 1
    l3_per_socket: int = 1
    cores_per_socket: int = 4
    threads: int = 1
    cpu_stride: int = 1
    """The step from one CPU id to the next."""
    node_stride: int = 1
    """The step from one NUMA node id to the next."""
    offline: CPUSet = field(default_factory=CPUSet)
    """Ids of CPUs that are present but not online."""
    isolated: CPUSet = field(default_factory=CPUSet)
    """Ids of CPUs on isolcpus=."""
    memory: int = 8 * GIB
    """Bytes in each NUMA node, a multiple of 1024."""
    hugepages: Mapping[int, int] = field(default_factory=dict)
    """Page size in bytes to the number of pages, in each NUMA node with memory."""
    memory_only_nodes: int = 0
    """How many NUMA nodes without CPUs follow those with CPUs."""
    cpu_only_nodes: NodeSet = field(default_factory=NodeSet)
    """Ids of NUMA nodes without memory."""
    numa: bool = True
    """False: a kernel without CONFIG_NUMA, which has no node directory at all."""
    caches: bool = True
    """False: a virtual machine that is told nothing about caches."""
    ids: bool = True
    """False: firmware that names no packages, dies and caches; the kernel then shows -1, or no file."""
    virtio: bool = False
    """True: NICs and disks are virtio devices, one level below their PCI function."""
    nics: tuple[Nic, ...] = ()
    disks: tuple[Disk, ...] = ()
    """Those named like nvme0n1 hang under an NVMe controller."""

    @property
    def cpus(self) -> CPUSet:
        """All CPU ids, offline ones among them."""
        return CPUSet(range(0, self.sockets * self.cores_per_socket * self.threads * self.cpu_stride, self.cpu_stride))

    @property
    def nodes(self) -> NodeSet:
        """All NUMA node ids."""
        count = self.sockets * self.nodes_per_socket + self.memory_only_nodes
        return NodeSet(range(0, count * self.node_stride, self.node_stride))


def write_sysfs(layout: Layout, root: Path) -> None:
    """Write the machine of `layout` as a sysfs whose mount point is `root`, an empty or missing directory."""
    places = list(_places(layout))
    _write_cpus(layout, places, root / "devices/system/cpu")
    if layout.numa:
        _write_nodes(layout, places, root / "devices/system/node")
    memory_nodes = len(layout.nodes - layout.cpu_only_nodes) if layout.numa else 1
    _write_hugepages(root / "kernel/mm/hugepages", layout.hugepages, memory_nodes)
    _write_devices(layout, root)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a CPU is: its own and its NUMA node's id, and numbers that count through the whole machine."""

    cpu: int
    core: int
    socket: int
    die: int
    node: int
    l3: int


def _places(layout: Layout) -> Iterator[_Place]:
    cores = layout.sockets * layout.cores_per_socket
    for number in range(cores * layout.threads):
        core = number % cores
        socket = core // layout.cores_per_socket
        yield _Place(
            cpu=number * layout.cpu_stride,
            core=core,
            socket=socket,
            die=_part(layout, core, layout.dies_per_socket),
            node=_part(layout, core, layout.nodes_per_socket) * layout.node_stride,
            l3=_part(layout, core, layout.l3_per_socket),
        )


def _part(layout: Layout, core: int, parts: int) -> int:
    """Which part of the machine `core` is in if every socket is cut into `parts`."""
    socket, within = divmod(core, layout.cores_per_socket)
    return socket * parts + within * parts // layout.cores_per_socket


def _write_cpus(layout: Layout, places: list[_Place], root: Path) -> None:
    present = layout.cpus
    online = present - layout.offline
    _write(
        root,
        {
            "online": online,
            "offline": present & layout.offline,
            "present": present,
            "possible": present,
            "isolated": layout.isolated,
            "nohz_full": "(null)",
        },
    )
    groups = _Groups(layout, [place for place in places if place.cpu in online])
    for place in places:
        directory = root / f"cpu{place.cpu}"
        up = place.cpu in online
        # The boot CPU cannot be taken offline on most machines, and then has no such file.
        _write(directory, {} if up and place.cpu == 0 else {"online": int(up)})
        if up:
            _write(directory / "topology", groups.topology(place))
            for index, files in enumerate(groups.caches(place)):
                _write(directory / f"cache/index{index}", files)
            if layout.numa:
                (directory / f"node{place.node}").symlink_to(f"../../node/node{place.node}")


class _Groups:
    """Who shares what among the online CPUs, and the files that say so."""

    def __init__(self, layout: Layout, online: Iterable[_Place]) -> None:
        self._layout = layout
        members: dict[tuple[str, int], list[int]] = {}
        for place in online:
            for kind, number in self._numbers(place).items():
                members.setdefault((kind, number), []).append(place.cpu)
        self._lists = {group: str(CPUSet(cpus)) for group, cpus in members.items()}

    def topology(self, place: _Place) -> dict[str, object]:
        """The files of `cpuN/topology`, the old names of lists among them."""
        core, die, package = (self._list(place, kind) for kind in ("core", "die", "package"))
        layout = self._layout
        return {
            "physical_package_id": place.socket if layout.ids else -1,
            "die_id": place.die % layout.dies_per_socket if layout.ids else -1,
            "core_id": place.core % layout.cores_per_socket,
            "core_cpus_list": core,
            "thread_siblings_list": core,
            # Where there are no dies, older kernels show the default of this list, which is no die either.
            "die_cpus_list": die if layout.ids else place.cpu,
            "package_cpus_list": package,
            "core_siblings_list": package,
        }

    def caches(self, place: _Place) -> Iterator[dict[str, object]]:
        """The files of each `cpuN/cache/indexM`, in the order of M."""
        for level, kind, size in _CACHES if self._layout.caches else ():
            owner, number = ("l3", place.l3) if level == 3 else ("core", place.core)
            shared = self._list(place, owner)
            named = {"id": number} if self._layout.ids else {}
            yield {"level": level, "type": kind, "size": size, "shared_cpu_list": shared, **named}

    def _numbers(self, place: _Place) -> dict[str, int]:
        # Packages that are all called -1 are one to the kernel.
        package = place.socket if self._layout.ids else -1
        return {"core": place.core, "die": place.die, "l3": place.l3, "package": package}

    def _list(self, place: _Place, kind: str) -> str:
        return self._lists[kind, self._numbers(place)[kind]]


def _write_nodes(layout: Layout, places: list[_Place], root: Path) -> None:
    online = layout.nodes
    cpus = {node: CPUSet(place.cpu for place in places if place.node == node) - layout.offline for node in online}
    with_memory = online - layout.cpu_only_nodes
    _write(
        root,
        {
            "online": online,
            "possible": NodeSet(range(max(online) + 1)),
            "has_cpu": NodeSet(node for node in online if cpus[node]),
            "has_memory": with_memory,
            "has_normal_memory": with_memory,
        },
    )
    for node in online:
        kib = layout.memory // 1024 if node in with_memory else 0
        distances = (_distance(layout, node, other) for other in online)
        _write(
            root / f"node{node}",
            {
                "cpulist": cpus[node],
                "distance": " ".join(map(str, distances)),
                "meminfo": f"Node {node} MemTotal: {kib:>15} kB\nNode {node} MemFree: {kib:>16} kB",
            },
        )
        if node in with_memory:
            _write_hugepages(root / f"node{node}/hugepages", layout.hugepages, 1)


def _distance(layout: Layout, one: int, other: int) -> int:
    if one == other:
        return LOCAL_DISTANCE
    sockets = {node // layout.node_stride // layout.nodes_per_socket for node in (one, other)}
    # Nodes of memory alone count on behind the last socket, and are on none.
    return SAME_SOCKET_DISTANCE if len(sockets) == 1 and max(sockets) < layout.sockets else OTHER_SOCKET_DISTANCE


def _write_hugepages(directory: Path, pages: Mapping[int, int], times: int) -> None:
    for size, number in pages.items():
        files = {"nr_hugepages": number * times, "free_hugepages": number * times, "surplus_hugepages": 0}
        _write(directory / f"hugepages-{size // 1024}kB", files)


def _write_devices(layout: Layout, root: Path) -> None:
    """The NICs and disks, each on a PCI function of its own, and a loopback link and a loop disk that are on none."""
    devices: list[Nic | Disk] = [*layout.nics, *layout.disks]
    for number, device in enumerate(devices):
        function = root / f"devices/pci0000:00/0000:{number // 32:02x}:{number % 32:02x}.0"
        node = -1 if device.node is None else device.node
        _write(function, {"numa_node": node} if layout.numa else {})
        parent = function / f"virtio{number}" if layout.virtio else function
        if isinstance(device, Nic):
            _write_nic(device, parent, root)
        else:
            _write_disk(device, parent, root)
    _write(root / "devices/virtual/net/lo", {"operstate": "unknown"})
    _link(root / "class/net/lo", root / "devices/virtual/net/lo")
    _write(root / "devices/virtual/block/loop0", {"dev": "7:0"})
    _link(root / "block/loop0", root / "devices/virtual/block/loop0")


def _write_nic(nic: Nic, parent: Path, root: Path) -> None:
    directory = parent / "net" / nic.name
    speed = -1 if nic.speed is None else nic.speed
    _write(directory, {"speed": speed, "operstate": "up" if nic.up else "down"})
    _link(directory / "device", parent)
    _link(root / "class/net" / nic.name, directory)


def _write_disk(disk: Disk, parent: Path, root: Path) -> None:
    if disk.name.startswith("nvme"):
        parent = parent / "nvme" / disk.name.rpartition("n")[0]
        directory = parent / disk.name
    else:
        directory = parent / "block" / disk.name
    _write(directory, {"dev": disk.device})
    if disk.rotational is not None:
        _write(directory / "queue", {"rotational": int(disk.rotational)})
    _link(directory / "device", parent)
    _link(root / "block" / disk.name, directory)


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))


def _write(directory: Path, files: Mapping[str, object]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (directory / name).write_text(f"{value}\n")
