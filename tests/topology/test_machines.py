"""Machines as they are sold, and a few that nobody sells, read from generated trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qrm.cpuset import CPUSet, NodeSet
from qrm.topology.generate import GIB, Layout, write_sysfs
from qrm.topology.machine import Machine, NumaNode
from qrm.topology.sysfs import TopologyError, read_machine
from tests.topology.machines import check_invariants, read_layout


def text(groups: object) -> dict[int, str]:
    """A mapping of CPU sets or NUMA nodes, with their CPUs written out."""
    assert isinstance(groups, dict)
    return {key: str(group.cpus if isinstance(group, NumaNode) else group) for key, group in groups.items()}


def test_one_node_without_numa(root: Path) -> None:
    """Without CONFIG_NUMA everything is node 0, and its memory is in the meminfo file if one is given."""
    write_sysfs(Layout(cores_per_socket=2, threads=2, numa=False, hugepages={2 << 20: 7}), root)
    meminfo = root / "meminfo"
    meminfo.write_text("MemTotal:       16384 kB\nMemFree:        4096 kB\n")
    node = read_machine(root, meminfo=meminfo).nodes[0]
    assert node == NumaNode(0, CPUSet.parse("0-3"), 16384 * 1024, {2 << 20: 7}, {0: 10})
    assert read_machine(root).nodes[0].memory == 0


def test_two_sockets_with_smt_and_two_nodes_each() -> None:
    """With sub-NUMA clustering one L3 lies over two nodes; second threads are numbered after all first ones."""
    machine = read_layout(Layout(sockets=2, nodes_per_socket=2, cores_per_socket=4, threads=2, memory=64 * GIB))
    assert text(machine.sockets) == {0: "0-3,8-11", 1: "4-7,12-15"}
    assert text(machine.nodes) == {0: "0-1,8-9", 1: "2-3,10-11", 2: "4-5,12-13", 3: "6-7,14-15"}
    assert text(machine.l3_domains) == {0: "0-3,8-11", 4: "4-7,12-15"}
    assert text(machine.dies) == {0: "0-3,8-11", 4: "4-7,12-15"}
    assert text(machine.cores)[5] == "5,13"
    assert len(machine.cores) == 8
    assert machine.nodes_of(machine.l3_domains[0]) == NodeSet([0, 1])
    assert {cpu.id: cpu.l3_id for cpu in machine.cpus.values() if cpu.id in (0, 12)} == {0: 0, 12: 1}
    assert machine.nodes[2].distances == {0: 21, 1: 21, 2: 10, 3: 12}
    assert {node.memory for node in machine.nodes.values()} == {64 * GIB}


def test_four_l3_domains_in_each_node() -> None:
    """A socket of chiplets has several L3 domains to a NUMA node, each inside it."""
    machine = read_layout(Layout(nodes_per_socket=2, l3_per_socket=8, cores_per_socket=16, threads=2))
    assert text(machine.l3_domains) == {n: f"{n}-{n + 1},{n + 16}-{n + 17}" for n in range(0, 16, 2)}
    for node in machine.nodes.values():
        assert len([domain for domain in machine.l3_domains.values() if domain <= node.cpus]) == 4
    assert [machine.cpus[cpu].l3_id for cpu in range(0, 16, 2)] == list(range(8))


def test_dies(root: Path) -> None:
    """A socket of two dies has the same die ids as the other socket, and still four dies in all are told apart."""
    write_sysfs(Layout(sockets=2, dies_per_socket=2), root)
    ids = [(root / f"devices/system/cpu/cpu{cpu}/topology/die_id").read_text().strip() for cpu in range(0, 8, 2)]
    assert ids == ["0", "1", "0", "1"]
    machine = read_machine(root)
    assert text(machine.dies) == {0: "0-1", 2: "2-3", 4: "4-5", 6: "6-7"}


def test_nodes_of_unequal_size() -> None:
    """NUMA nodes need not have equally many CPUs."""
    machine = read_layout(Layout(nodes_per_socket=3, cores_per_socket=7))
    assert text(machine.nodes) == {0: "0-2", 1: "3-4", 2: "5-6"}


def test_memory_only_node_and_cpu_only_node() -> None:
    """A node may have no CPUs (CXL memory) or no memory; the first is on no socket, the second has 0 bytes."""
    machine = read_layout(
        Layout(nodes_per_socket=2, memory_only_nodes=1, cpu_only_nodes=NodeSet([1]), hugepages={1 << 30: 3})
    )
    assert text(machine.nodes) == {0: "0-1", 1: "2-3", 2: ""}
    assert [machine.nodes[node].memory for node in (0, 1, 2)] == [8 * GIB, 0, 8 * GIB]
    assert [machine.nodes[node].hugepages for node in (0, 1, 2)] == [{1 << 30: 3}, {}, {1 << 30: 3}]
    assert [machine.socket_of(node) for node in (0, 1, 2)] == [0, 0, None]
    assert machine.cpu_nodes == NodeSet([0, 1])


def test_offline_and_isolated_cpus_and_gaps_in_ids() -> None:
    """Offline CPUs are nowhere but in `offline`; a group whose first CPU is offline is named by the next."""
    layout = Layout(
        sockets=2,
        threads=2,
        cpu_stride=3,
        node_stride=4,
        offline=CPUSet.parse("0,9,12"),
        isolated=CPUSet.parse("9,15,39"),
    )
    machine = read_layout(layout)
    assert machine.offline == CPUSet.parse("0,9,12")
    assert machine.online == CPUSet(range(0, 48, 3)) - machine.offline
    assert machine.isolated == CPUSet.parse("15,39")
    assert text(machine.nodes) == {0: "3,6,24,27,30,33", 4: "15,18,21,36,39,42,45"}
    assert (machine.cpus[24].core, machine.cpus[24].siblings) == (24, CPUSet([24]))
    assert (machine.cpus[27].core, machine.cpus[27].siblings) == (3, CPUSet([3, 27]))
    assert set(machine.l3_domains) == {3, 15}
    assert machine.nodes[4].distances == {0: 21, 4: 10}


def test_boot_cpu_offline(root: Path) -> None:
    """CPU 0 is no exception: it can be offline, and is found to be even if only its own file says so."""
    write_sysfs(Layout(offline=CPUSet([0])), root)
    (root / "devices/system/cpu/online").unlink()
    assert read_machine(root).offline == CPUSet([0])


def test_4096_sparse_ids() -> None:
    """Ids far beyond the number of CPUs cost nothing and lose nothing."""
    machine = read_layout(Layout(sockets=2, cores_per_socket=16, threads=2, cpu_stride=67, node_stride=500))
    assert max(machine.online) == 63 * 67 > 4096
    assert machine.cores[67] == CPUSet([67, 33 * 67])
    assert text(machine.nodes).keys() == {0, 500}


def test_nothing_known_but_the_cpus(root: Path) -> None:
    """A sandbox that shows nothing but CPU numbers yields one socket, node, die and L3 of single-threaded cores."""
    (root / "devices/system/cpu").mkdir(parents=True)
    (root / "devices/system/cpu/online").write_text("0-2\n")
    machine = read_machine(root)
    check_invariants(machine)
    for groups in (machine.sockets, machine.nodes, machine.dies, machine.l3_domains):
        assert text(groups) == {0: "0-2"}
    assert text(machine.cores) == {0: "0", 1: "1", 2: "2"}
    assert (machine.offline, machine.nics, machine.disks) == (CPUSet(), (), ())


@pytest.mark.parametrize("content", [None, "", "garbage"])
def test_no_cpu_at_all(root: Path, content: str | None) -> None:
    """Where no CPU is to be found the error says where it was looked for."""
    if content is not None:
        (root / "devices/system/cpu").mkdir(parents=True)
        (root / "devices/system/cpu/online").write_text(content)
    with pytest.raises(TopologyError, match=f"{root}/devices/system/cpu names no online CPU"):
        read_machine(root)


def test_distances_around_a_node_that_is_offline(root: Path) -> None:
    """The distance file counts online nodes only: with node 1 offline, its second number is about node 2."""
    write_sysfs(Layout(sockets=3), root)
    nodes = root / "devices/system/node"
    (nodes / "node1").rename(root / "gone")
    (nodes / "online").write_text("0,2\n")
    (nodes / "node0/distance").write_text("10 31\n")
    (nodes / "node2/distance").write_text("31 10\n")
    machine = read_machine(root)
    assert machine.nodes[0].distances == {0: 10, 2: 31}
    assert machine.nodes[2].distances == {0: 31, 2: 10}


@pytest.mark.parametrize("content", ["10", "10 21 21", "10 x", "-1 10"])
def test_distances_that_do_not_match_the_nodes(root: Path, content: str) -> None:
    """A distance line of another length, or of something else than numbers, is not read at all."""
    write_sysfs(Layout(sockets=2), root)
    (root / "devices/system/node/node0/distance").write_text(content)
    assert read_machine(root).nodes[0].distances == {0: 10, 1: 255}


def test_cpus_listed_by_several_nodes(root: Path) -> None:
    """With numa=fake= the kernel lists a CPU on every fake node of its real one; each is taken once, on the first."""
    write_sysfs(Layout(nodes_per_socket=2), root)
    for node in (0, 1):
        (root / f"devices/system/node/node{node}/cpulist").write_text("0-3\n")
    machine = read_machine(root)
    check_invariants(machine)
    assert text(machine.nodes) == {0: "0-3", 1: ""}


def test_index_is_not_the_level(root: Path) -> None:
    """The L3 cache is found by level and type, wherever it is in the list and whatever comes after it."""
    write_sysfs(Layout(sockets=2, cores_per_socket=2), root)
    for cpu in range(4):
        cache = root / f"devices/system/cpu/cpu{cpu}/cache"
        (cache / "index3").rename(cache / "index10")
        (cache / "index0").rename(cache / "index11")
        (cache / "index11/level").write_text("4\n")
        (cache / "index1").rename(cache / "index12")
        (cache / "index12/level").write_text("3\n")
    machine = read_machine(root)
    assert text(machine.l3_domains) == {0: "0-1", 2: "2-3"}
    assert machine.cpus[2].l3_id == 1


def test_groups_that_cross_a_socket_are_cut(root: Path) -> None:
    """A hypervisor that shares one L3 between sockets, or says so, does not make one domain of them."""
    write_sysfs(Layout(sockets=2, cores_per_socket=2), root)
    for cpu in range(4):
        (root / f"devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list").write_text("0-3\n")
    machine = read_machine(root)
    check_invariants(machine)
    assert text(machine.l3_domains) == {0: "0-1", 2: "2-3"}


def test_few_files_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large machine is read by asking one CPU of each group: far less than one file for each CPU and fact."""
    write_sysfs(Layout(sockets=2, nodes_per_socket=2, l3_per_socket=8, cores_per_socket=64, threads=2), root)
    read: list[str] = []
    opened = os.open

    def counting(path: Path, flags: int) -> int:
        read.append(str(path))
        return opened(path, flags)

    monkeypatch.setattr(os, "open", counting)
    machine: Machine = read_machine(root)
    assert len(machine.cpus) == 256
    assert len(machine.l3_domains) == 16
    assert 128 < len(read) < 256
    assert len(set(read)) == len(read)
