"""What is missing or malformed is unknown: it never stops the reading, and never turns into something wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qrm.cpuset import CPUSet
from qrm.topology.generate import Layout, write_sysfs
from qrm.topology.machine import CPU, Disk, Machine, Nic, NumaNode
from qrm.topology.sysfs import read_machine
from tests.topology.machines import check_invariants, machine_of

LAYOUT = Layout(
    sockets=2,
    dies_per_socket=2,
    nodes_per_socket=2,
    l3_per_socket=4,
    threads=2,
    offline=CPUSet([5]),
    isolated=CPUSet([2, 10]),
    hugepages={2 << 20: 5},
    nics=(Nic("eth0", 25_000, 1, True),),
    disks=(Disk("nvme0n1", "259:0", False, 3),),
)
MACHINE = machine_of(LAYOUT)

CPU_DIRECTORIES = "devices/system/cpu/cpu[0-9]*"
NODE_DIRECTORIES = "devices/system/node/node[0-9]*"

Expected = Callable[[Machine], Machine]


def cpus(**facts: Callable[[CPU], Any]) -> Expected:
    """The machine with these facts about every CPU."""

    def change(machine: Machine) -> Machine:
        changed = {
            cpu.id: replace(cpu, **{fact: value(cpu) for fact, value in facts.items()}) for cpu in machine.cpus.values()
        }
        return replace(machine, cpus=changed)

    return change


def nodes(**facts: Callable[[NumaNode], Any]) -> Expected:
    """The machine with these facts about every NUMA node."""

    def change(machine: Machine) -> Machine:
        changed = {
            node.id: replace(node, **{fact: value(node) for fact, value in facts.items()})
            for node in machine.nodes.values()
        }
        return replace(machine, nodes=changed)

    return change


def same(machine: Machine) -> Machine:
    """Nothing is lost, because another file says the same."""
    return machine


def nic(**facts: Any) -> Expected:
    """The machine with these facts about its NIC."""
    return lambda machine: replace(machine, nics=(replace(machine.nics[0], **facts),))


def disk(**facts: Any) -> Expected:
    """The machine with these facts about its disk."""
    return lambda machine: replace(machine, disks=(replace(machine.disks[0], **facts),))


def on_first_node(machine: Machine) -> Machine:
    """Every CPU on node 0, because nothing says otherwise and none may be lost."""
    found = {node: replace(of, cpus=CPUSet() if node else machine.online) for node, of in machine.nodes.items()}
    return replace(cpus(node=lambda _: 0)(machine), nodes=found)


def without_numa(machine: Machine) -> Machine:
    """One node 0, no memory known, huge pages of the machine as a whole, devices on no known node."""
    machine = nic(node=None)(disk(node=None)(cpus(node=lambda _: 0)(machine)))
    return replace(machine, nodes={0: NumaNode(0, machine.online, 0, {2 << 20: 20}, {0: 10})})


def socket_start(cpu: CPU) -> int:
    """The lowest CPU of the socket."""
    return cpu.socket * LAYOUT.cores_per_socket


LOST: dict[tuple[str, ...], Expected] = {
    ("devices/system/cpu/online",): same,
    ("devices/system/cpu/present",): same,
    ("devices/system/cpu/isolated",): lambda machine: replace(machine, isolated=CPUSet()),
    (f"{CPU_DIRECTORIES}/topology/core_cpus_list",): same,
    (f"{CPU_DIRECTORIES}/topology/thread_siblings_list",): same,
    (f"{CPU_DIRECTORIES}/topology/core_cpus_list", f"{CPU_DIRECTORIES}/topology/thread_siblings_list"): cpus(
        core=lambda cpu: cpu.id, siblings=lambda cpu: CPUSet([cpu.id])
    ),
    (f"{CPU_DIRECTORIES}/topology/core_id",): same,
    (f"{CPU_DIRECTORIES}/topology/package_cpus_list",): same,
    (f"{CPU_DIRECTORIES}/topology/p*_cpus_list", f"{CPU_DIRECTORIES}/topology/core_siblings_list"): same,
    (f"{CPU_DIRECTORIES}/topology/physical_package_id",): cpus(socket=lambda _: 0),
    (f"{CPU_DIRECTORIES}/topology/die_id",): cpus(die=socket_start),
    (f"{CPU_DIRECTORIES}/topology/die_cpus_list",): cpus(die=socket_start),
    (f"{CPU_DIRECTORIES}/topology",): cpus(
        core=lambda cpu: cpu.id, siblings=lambda cpu: CPUSet([cpu.id]), socket=lambda _: 0, die=lambda _: 0
    ),
    (f"{CPU_DIRECTORIES}/cache/index3/id",): cpus(l3_id=lambda _: None),
    (f"{CPU_DIRECTORIES}/cache/index3/type",): same,
    (f"{CPU_DIRECTORIES}/cache/index3/level",): cpus(l3=socket_start, l3_id=lambda _: None),
    (f"{CPU_DIRECTORIES}/cache/index3/shared_cpu_list",): cpus(l3=socket_start, l3_id=lambda _: None),
    (f"{CPU_DIRECTORIES}/cache",): cpus(l3=socket_start, l3_id=lambda _: None),
    (f"{CPU_DIRECTORIES}/node*",): same,
    ("devices/system/node/online",): same,
    (f"{NODE_DIRECTORIES}/cpulist",): same,
    (f"{NODE_DIRECTORIES}/cpulist", f"{CPU_DIRECTORIES}/node*"): on_first_node,
    (f"{NODE_DIRECTORIES}/distance",): nodes(
        distances=lambda node: {other: 10 if other == node.id else 255 for other in range(4)}
    ),
    (f"{NODE_DIRECTORIES}/meminfo",): nodes(memory=lambda _: 0),
    (f"{NODE_DIRECTORIES}/hugepages",): nodes(hugepages=lambda _: {}),
    (f"{NODE_DIRECTORIES}/hugepages/*/nr_hugepages",): nodes(hugepages=lambda _: {}),
    ("devices/system/node", f"{CPU_DIRECTORIES}/node*"): without_numa,
    ("devices/pci*/*/numa_node",): lambda machine: nic(node=None)(disk(node=None)(machine)),
    ("devices/pci*/*/net/eth0/speed",): nic(speed=None),
    ("devices/pci*/*/net/eth0/operstate",): nic(up=False),
    ("devices/pci*/*/nvme/nvme0/nvme0n1/queue/rotational",): disk(rotational=None),
    ("devices/pci*/*/nvme/nvme0/nvme0n1/dev",): lambda machine: replace(machine, disks=()),
    ("class/net",): lambda machine: replace(machine, nics=()),
    ("class/net/*",): lambda machine: replace(machine, nics=()),
    ("block",): lambda machine: replace(machine, disks=()),
}


@pytest.mark.parametrize(("globs", "expected"), LOST.items(), ids=[" and ".join(globs) for globs in LOST])
def test_without_a_kind_of_file(root: Path, globs: tuple[str, ...], expected: Expected) -> None:
    """Without a kind of file on the whole machine, exactly what only it says is unknown."""
    write_sysfs(LAYOUT, root)
    gone = [path for glob in globs for path in root.glob(glob)]
    assert gone
    for path in gone:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    machine = read_machine(root)
    assert machine == expected(MACHINE)
    check_invariants(machine)


def files(root: Path) -> list[Path]:
    """Every regular file below `root`."""
    return [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]


def read_without(root: Path, path: Path) -> Machine:
    """The machine without the one file `path`, which is there again afterwards."""
    content = path.read_bytes()
    path.unlink()
    try:
        return read_machine(root)
    finally:
        path.write_bytes(content)


def test_without_one_file_of_one_cpu(root: Path) -> None:
    """A list or id that is missing for one CPU changes nothing, because those that it shares something with say it."""
    layout = replace(LAYOUT, offline=CPUSet())
    write_sysfs(layout, root)
    # Only one member of each L3 domain is asked for the cache's id: where it does not know, the id is unknown.
    candidates = [path for path in files(root / "devices/system/cpu") if path.name not in ("isolated", "id")]
    assert len(candidates) > 300
    for path in candidates:
        assert read_without(root, path) == machine_of(layout), path


@pytest.mark.parametrize("garbage", [b"(null)\n", b"-1\n", b"0-3:1/2\n", b"\xff\x00", b"9" * 30, b"\n"])
def test_garbage_is_as_good_as_nothing(root: Path, garbage: bytes) -> None:
    """Whatever a file contains instead of what it should, the machine is read as if the file were not there."""
    write_sysfs(replace(LAYOUT, cores_per_socket=2, l3_per_socket=2), root)
    for path in files(root):
        missing, before = read_without(root, path), path.read_bytes()
        path.write_bytes(garbage)
        assert read_machine(root) == missing, path
        path.write_bytes(before)


@pytest.mark.parametrize("unknown", ["-1", "65535", "4294967295"])
def test_ids_that_mean_unknown(root: Path, unknown: str) -> None:
    """What firmware or drivers write for "unknown" is not taken for an id, a NUMA node or a speed."""
    write_sysfs(LAYOUT, root)
    names = ("physical_package_id", "die_id", "id", "numa_node", "speed")
    for path in files(root):
        if path.name in names:
            path.write_text(f"{unknown}\n")
    unnamed = cpus(socket=lambda _: 0, die=lambda _: 0, l3_id=lambda _: None)
    assert read_machine(root) == nic(node=None, speed=None)(disk(node=None)(unnamed(MACHINE)))


def test_some_cpus_know_and_others_do_not(root: Path) -> None:
    """CPUs of which nothing is known are a socket and an L3 domain of their own, not part of a known one."""
    write_sysfs(Layout(sockets=2, cores_per_socket=2), root)
    for cpu in (2, 3):
        shutil.rmtree(root / f"devices/system/cpu/cpu{cpu}/topology")
    for cpu in (0, 1):
        shutil.rmtree(root / f"devices/system/cpu/cpu{cpu}/cache")
    machine = read_machine(root)
    check_invariants(machine)
    assert machine.sockets == {0: CPUSet([0, 1]), 1: CPUSet([2, 3])}
    assert machine.l3_domains == {0: CPUSet([0, 1]), 2: CPUSet([2, 3])}
    assert [machine.cpus[cpu].l3_id for cpu in range(4)] == [None, None, 1, 1]
