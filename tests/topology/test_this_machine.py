"""The machine on which the tests run, whatever it is: what must hold of any Linux."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest

from qrm.cpuset import CPUSet, NodeSet
from qrm.topology.devices import read_addresses
from qrm.topology.machine import Machine
from qrm.topology.sysfs import read_machine
from tests.topology.machines import check_invariants

SYSTEM = Path("/sys/devices/system")


@pytest.fixture(scope="module")
def machine() -> Machine:
    """This machine."""
    return read_machine()


def test_cpus(machine: Machine) -> None:
    """The online CPUs are those that the kernel lists, and the rest of the present ones is offline."""
    assert machine.online == CPUSet.parse((SYSTEM / "cpu/online").read_text())
    assert machine.online | machine.offline == CPUSet.parse((SYSTEM / "cpu/present").read_text())
    check_invariants(machine)


def test_siblings(machine: Machine) -> None:
    """Every CPU has the siblings that its own file lists, not only the one that was asked for its core."""
    for path in SYSTEM.glob("cpu/cpu[0-9]*/topology/thread_siblings_list"):
        cpu = machine.cpus[int(path.parts[-3].removeprefix("cpu"))]
        assert cpu.siblings == CPUSet.parse(path.read_text())


def test_nodes(machine: Machine) -> None:
    """The NUMA nodes are those that the kernel lists, or one node 0, each with the memory that its own file says."""
    online = SYSTEM / "node/online"
    assert NodeSet(machine.nodes) == (NodeSet.parse(online.read_text()) if online.exists() else NodeSet([0]))
    assert any(node.memory for node in machine.nodes.values())
    for path in SYSTEM.glob("node/node[0-9]*/meminfo"):
        node = machine.nodes[int(path.parent.name.removeprefix("node"))]
        assert f"Node {node.id} MemTotal: {node.memory // 1024} kB" in " ".join(path.read_text().split())


def test_devices(machine: Machine) -> None:
    """No NIC is the loopback link, no disk is virtual, and every disk has the number that its `dev` file says."""
    assert "lo" not in {nic.name for nic in machine.nics}
    for disk in machine.disks:
        assert not disk.name.startswith(("loop", "ram", "zram", "dm-", "md"))
        assert disk.device == (Path("/sys/block") / disk.name / "dev").read_text().strip()


def test_addresses_are_this_machines() -> None:
    """Loopback has its well-known address, and nothing that ends at the link is listed."""
    found = read_addresses()
    assert "127.0.0.1" in found["lo"]
    assert not any(ip_address(each).is_link_local for addresses in found.values() for each in addresses)
