"""What a Layout should be read as, worked out without files, and what must hold of every Machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qrm.cpuset import CPUSet
from qrm.topology.generate import Layout, write_sysfs
from qrm.topology.machine import CPU, Machine, NumaNode
from qrm.topology.sysfs import read_machine


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty directory in memory, because a tree is thousands of files and a disk may take a millisecond for each."""
    memory = Path("/dev/shm")  # noqa: S108 - the directory made in it has a random name
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


def read_layout(layout: Layout) -> Machine:
    """The machine that is read from the files written for `layout`."""
    with scratch() as root:
        write_sysfs(layout, root)
        return read_machine(root)


def machine_of(layout: Layout) -> Machine:
    """The machine that `layout` describes."""
    online = layout.cpus - layout.offline
    cpus = {cpu: _cpu(layout, cpu) for cpu in online}
    return Machine(
        cpus=cpus,
        nodes=_nodes(layout, cpus),
        offline=layout.cpus & layout.offline,
        isolated=layout.isolated & online,
        nics=layout.nics,
        disks=layout.disks,
    )


def _threads(layout: Layout, cores: range) -> CPUSet:
    """The online threads of `cores`, which are counted through the whole machine."""
    total = layout.sockets * layout.cores_per_socket
    ids = (layout.cpu_stride * (core + thread * total) for core in cores for thread in range(layout.threads))
    return CPUSet(ids) - layout.offline


def _runs(layout: Layout, parts: int) -> list[range]:
    """The cores of each part if every socket is cut into `parts`."""
    size = layout.cores_per_socket
    edges = [socket * size - (-part * size // parts) for socket in range(layout.sockets) for part in range(parts)]
    return [range(first, last) for first, last in zip(edges, [*edges[1:], layout.sockets * size], strict=True)]


def _cpu(layout: Layout, cpu: int) -> CPU:
    core = cpu // layout.cpu_stride % (layout.sockets * layout.cores_per_socket)
    siblings = _threads(layout, range(core, core + 1))

    def run(parts: int) -> tuple[int, range]:
        return next((number, run) for number, run in enumerate(_runs(layout, parts)) if core in run)

    socket, socket_cores = run(1) if layout.ids else (0, range(layout.sockets * layout.cores_per_socket))
    _, die_cores = run(layout.dies_per_socket) if layout.ids else (0, socket_cores)
    l3, l3_cores = run(layout.l3_per_socket) if layout.caches else (None, socket_cores)
    node, _ = run(layout.nodes_per_socket) if layout.numa else (0, socket_cores)
    return CPU(
        id=cpu,
        core=min(siblings),
        siblings=siblings,
        socket=socket,
        die=min(_threads(layout, die_cores)),
        l3=min(_threads(layout, l3_cores)),
        l3_id=l3 if layout.ids else None,
        node=node * layout.node_stride,
    )


def _nodes(layout: Layout, cpus: dict[int, CPU]) -> dict[int, NumaNode]:
    if not layout.numa:
        return {0: NumaNode(0, CPUSet(cpus), 0, dict(layout.hugepages), {0: 10})}
    with_cpus = layout.sockets * layout.nodes_per_socket

    def distance(one: int, other: int) -> int:
        if one == other:
            return 10
        numbers = (one // layout.node_stride, other // layout.node_stride)
        sockets = {number // layout.nodes_per_socket for number in numbers}
        return 12 if max(numbers) < with_cpus and len(sockets) == 1 else 21

    return {
        node: NumaNode(
            id=node,
            cpus=CPUSet(cpu.id for cpu in cpus.values() if cpu.node == node),
            memory=0 if node in layout.cpu_only_nodes else layout.memory,
            hugepages={} if node in layout.cpu_only_nodes else dict(layout.hugepages),
            distances={other: distance(node, other) for other in layout.nodes},
        )
        for node in layout.nodes
    }


def check_invariants(machine: Machine) -> None:
    """Assert what every reader of a Machine may rely on."""
    assert list(machine.cpus) == list(machine.online)
    assert machine.online.isdisjoint(machine.offline)
    assert machine.isolated <= machine.online
    for groups in (machine.sockets, machine.dies, machine.l3_domains, machine.cores, machine.nodes):
        sets = [group.cpus if isinstance(group, NumaNode) else group for group in groups.values()]
        assert sum(map(len, sets)) == len(machine.online)
        assert CPUSet.union(sets) == machine.online
    for groups, name in ((machine.dies, "die"), (machine.l3_domains, "l3"), (machine.cores, "core")):
        for lowest, members in groups.items():
            assert lowest == min(members), name
            assert len({machine.cpus[cpu].socket for cpu in members}) == 1, name
    for domain in machine.l3_domains.values():
        assert len({machine.cpus[cpu].l3_id for cpu in domain}) == 1
    for cpu in machine.cpus.values():
        assert cpu.siblings == machine.cores[cpu.core]
        assert cpu.id in machine.nodes[cpu.node].cpus
    for node in machine.nodes.values():
        assert list(node.distances) == list(machine.nodes)
    for node_of_device in [*(nic.node for nic in machine.nics), *(disk.node for disk in machine.disks)]:
        assert node_of_device is None or node_of_device in machine.nodes
