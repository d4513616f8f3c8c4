"""Which NICs and disks there are, and on which NUMA node each is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qrm.topology.generate import Layout, write_sysfs
from qrm.topology.machine import Disk, Nic
from qrm.topology.sysfs import read_machine

TWO_NODES = Layout(
    sockets=2,
    nics=(Nic("eth0", 25_000, 0, True), Nic("eth1", 10_000, 1, False), Nic("eth2", 25_000, 0, True)),
    disks=(Disk("nvme0n1", "259:0", False, 1), Disk("sda", "8:0", True, None)),
)


def put(directory: Path, **files: str) -> Path:
    """Make `directory` with these files, and return it."""
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_text(f"{content}\n")
    return directory


def link(path: Path, target: Path) -> None:
    """Make the relative symbolic link `path` to `target`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def virtual_link(root: Path, name: str, *below: str, **files: str) -> Path:
    """Add a virtual network interface that stands on the interfaces `below`."""
    directory = put(root / "devices/virtual/net" / name, **files)
    link(root / "class/net" / name, directory)
    for lower in below:
        link(directory / f"lower_{lower}", (root / "class/net" / lower).resolve())
    return directory


def bond(root: Path, name: str, *ports: str) -> None:
    """Add a bond of the interfaces `ports`."""
    directory = virtual_link(root, name, *ports, speed="50000", operstate="up")
    (directory / "bonding").mkdir()
    for port in ports:
        link((root / "class/net" / port).resolve() / "master", directory)


def nics(root: Path) -> dict[str, Nic]:
    """The NICs by name."""
    return {nic.name: nic for nic in read_machine(root).nics}


def disks(root: Path) -> dict[str, Disk]:
    """The disks by name."""
    return {disk.name: disk for disk in read_machine(root).disks}


def test_hardware_only(root: Path) -> None:
    """Devices are listed by name as they are; a loopback link, a loop disk and a stray file are not among them."""
    write_sysfs(TWO_NODES, root)
    (root / "class/net/bonding_masters").write_text("\n")
    machine = read_machine(root)
    assert (machine.nics, machine.disks) == (TWO_NODES.nics, TWO_NODES.disks)
    assert (root / "class/net/lo/operstate").exists()
    assert (root / "block/loop0/dev").exists()


def test_virtio(root: Path) -> None:
    """A virtio device has no numa_node; the PCI function that it is on has."""
    nic, disk = Nic("eth0", None, 1, True), Disk("vda", "254:0", True, 0)
    write_sysfs(Layout(sockets=2, virtio=True, nics=(nic,), disks=(disk,)), root)
    assert (root / "class/net/eth0/device").resolve().name == "virtio0"
    assert not (root / "class/net/eth0/device/numa_node").exists()
    machine = read_machine(root)
    assert (machine.nics, machine.disks) == ((nic,), (disk,))


def test_node_of_a_bridge_above(root: Path) -> None:
    """A function that says -1 is where the PCI bridge above it is."""
    write_sysfs(TWO_NODES, root)
    (root / "class/net/eth0/device/numa_node").write_text("-1\n")
    (root / "devices/pci0000:00/numa_node").write_text("1\n")
    assert nics(root)["eth0"].node == 1


def test_node_that_does_not_exist(root: Path) -> None:
    """A device on a NUMA node that is not online is on an unknown one, so that nobody looks for it."""
    write_sysfs(TWO_NODES, root)
    (root / "class/net/eth0/device/numa_node").write_text("7\n")
    assert nics(root)["eth0"].node is None


@pytest.mark.parametrize("content", ["-1", "0", "fast", "4294967295", None])
def test_speed_unknown(root: Path, content: str | None) -> None:
    """The speed of a link is unknown if the driver gives none or the file cannot be read."""
    write_sysfs(TWO_NODES, root)
    speed = root / "class/net/eth0/speed"
    speed.unlink()
    if content is None:
        # Reading a directory fails just as reading the speed of a link that is down does.
        speed.mkdir()
    else:
        speed.write_text(f"{content}\n")
    assert nics(root)["eth0"].speed is None


@pytest.mark.parametrize(
    ("state", "up"), [("up", True), ("unknown", True), ("down", False), ("dormant", False), ("lowerlayerdown", False)]
)
def test_up(root: Path, state: str, up: bool) -> None:
    """A link is up if it carries data, which "unknown" does not deny."""
    write_sysfs(TWO_NODES, root)
    (root / "class/net/eth0/operstate").write_text(f"{state}\n")
    assert nics(root)["eth0"].up is up


def test_bond_on_one_node(root: Path) -> None:
    """A bond takes the place of its ports, with its own speed, on the node where all of them are."""
    write_sysfs(TWO_NODES, root)
    bond(root, "bond0", "eth0", "eth2")
    assert nics(root).keys() == {"bond0", "eth1"}
    assert nics(root)["bond0"] == Nic("bond0", 50_000, 0, True)


def test_bond_across_nodes(root: Path) -> None:
    """A bond whose ports are on different nodes is on none of them, and one with a port on no known node either."""
    write_sysfs(TWO_NODES, root)
    bond(root, "bond0", "eth0", "eth1")
    assert nics(root)["bond0"].node is None
    (root / "class/net/eth1/device/numa_node").write_text("-1\n")
    assert nics(root)["bond0"].node is None


def test_bond_without_hardware(root: Path) -> None:
    """A bond without ports, as loading the module makes one, or of virtual links is no NIC."""
    write_sysfs(TWO_NODES, root)
    virtual_link(root, "dummy0")
    bond(root, "bond0")
    bond(root, "bond1", "dummy0")
    assert nics(root).keys() == {"eth0", "eth1", "eth2"}


def test_virtual_links_above_hardware(root: Path) -> None:
    """VLANs and bridges are no NICs, and what they stand on still is one: a NIC, or a bond."""
    write_sysfs(TWO_NODES, root)
    bond(root, "bond0", "eth1", "eth2")
    virtual_link(root, "eth0.7", "eth0", speed="25000", operstate="up")
    bridge = virtual_link(root, "br0", "eth0", "bond0", speed="10000", operstate="up")
    (bridge / "bridge").mkdir()
    for port in ("eth0", "bond0"):
        link((root / "class/net" / port).resolve() / "master", bridge)
    assert nics(root).keys() == {"eth0", "bond0"}


def test_hardware_taken_over_by_hardware(root: Path) -> None:
    """A virtual function that a Hyper-V NIC has taken over is one way out together with it, and listed once."""
    write_sysfs(TWO_NODES, root)
    link((root / "class/net/eth1").resolve() / "master", (root / "class/net/eth0").resolve())
    assert nics(root).keys() == {"eth0", "eth2"}


def multipath(root: Path, *controllers: str) -> None:
    """Add an NVMe multipath disk nvme9n1 with a hidden path below each of `controllers`."""
    subsystem = put(root / "devices/virtual/nvme-subsystem/nvme-subsys9")
    disk = put(subsystem / "nvme9n1", dev="259:9")
    put(disk / "queue", rotational="0")
    link(disk / "device", subsystem)
    link(root / "block/nvme9n1", disk)
    for controller in controllers:
        real = next(root.glob(f"devices/pci*/*/nvme/{controller}"))
        link(subsystem / controller, real)
        path = put(real / f"nvme9c{controller.removeprefix('nvme')}n1", hidden="1")
        link(path / "device", real)
        link(root / "block" / path.name, path)


NVME = Layout(
    sockets=2,
    disks=(
        Disk("nvme0n1", "259:0", False, 1),
        Disk("nvme1n1", "259:1", False, 1),
        Disk("nvme2n1", "259:2", False, 0),
        Disk("nvme3n1", "259:3", False, None),
    ),
)


@pytest.mark.parametrize(
    ("controllers", "node"),
    [
        (("nvme0",), 1),
        (("nvme0", "nvme1"), 1),
        (("nvme0", "nvme2"), None),
        (("nvme0", "nvme3"), None),
        ((), None),
    ],
)
def test_nvme_multipath(root: Path, controllers: tuple[str, ...], node: int | None) -> None:
    """A multipath disk is on the node on which all its controllers are; the hidden paths to it are no disks."""
    write_sysfs(NVME, root)
    multipath(root, *controllers)
    assert disks(root)["nvme9n1"] == Disk("nvme9n1", "259:9", False, node)
    assert len(disks(root)) == 5


def test_stacked_disks(root: Path) -> None:
    """Device mapper, RAID and memory disks are not disks, whatever they stand on."""
    write_sysfs(TWO_NODES, root)
    for name in ("dm-0", "md0", "zram0", "ram0"):
        disk = put(root / "devices/virtual/block" / name, dev="253:0")
        link(disk / "slaves/sda", (root / "block/sda").resolve())
        link(root / "block" / name, disk)
    assert disks(root).keys() == {"nvme0n1", "sda"}
