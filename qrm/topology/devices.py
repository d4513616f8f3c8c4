"""NICs and disks, and the NUMA node that each is attached to.

Sources: Documentation/ABI/testing/{sysfs-class-net,sysfs-bus-pci}, Documentation/ABI/stable/sysfs-block,
Documentation/networking/{operstates,bonding}.rst, drivers/nvme/host/multipath.c.

What counts is what data physically leaves through, each way out once: virtual links and block devices (VLAN, bridge,
veth, tun, loop, ram, zram, dm, md) have no `device` and are not listed. A bond of hardware links is listed in place of
its ports, because the address and the summed speed are the bond's; so is whatever else has taken over a hardware link
and is hardware itself (netvsc over a virtual function on Hyper-V, net_failover).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import psutil

from qrm.cpuset import NodeSet
from qrm.topology.attributes import children, numbered, read_id, read_text
from qrm.topology.machine import Disk, Nic

_DEVICE_NUMBER = re.compile(r"\d+:\d+", re.ASCII)
_ROTATIONAL = {"0": False, "1": True}
_USABLE = {"up", "unknown"}
"""Operational states of links that carry data: "unknown" is what drivers say that do not track it (operstates.rst)."""


def read_nics(sysfs: Path, nodes: NodeSet, addresses: Mapping[str, Sequence[str]]) -> tuple[Nic, ...]:
    """The NICs by name, with their `addresses`. One that says it is on a node outside `nodes` is on an unknown one."""
    links = [sysfs / "class/net" / name for name in children(sysfs / "class/net")]
    found = [_nic(link, nodes) for link in links if _is_nic(link) and not _is_nic(link / "master")]
    return tuple(replace(nic, addresses=tuple(addresses.get(nic.name, ()))) for nic in found)


def read_addresses() -> dict[str, list[str]]:
    """The addresses of this network namespace's interfaces by name, without those that end at the link."""
    families = (socket.AF_INET, socket.AF_INET6)
    found = {
        name: [ip_address(each.address.partition("%")[0]) for each in addresses if each.family in families]
        for name, addresses in psutil.net_if_addrs().items()
    }
    return {name: [str(each) for each in ips if not each.is_link_local] for name, ips in found.items()}


def read_disks(sysfs: Path, nodes: NodeSet) -> tuple[Disk, ...]:
    """The whole disks by name. One that says it is on a node outside `nodes` is on an unknown one."""
    disks: list[Disk] = []
    for name in children(sysfs / "block"):
        disk = sysfs / "block" / name
        number = read_text(disk / "dev") or ""
        # The paths below an NVMe multipath disk are listed too, but hidden: they have no device number.
        if (disk / "device").exists() and _DEVICE_NUMBER.fullmatch(number):
            rotational = _ROTATIONAL.get(read_text(disk / "queue/rotational") or "")
            disks.append(Disk(name=name, device=number, rotational=rotational, node=_disk_node(disk, nodes)))
    return tuple(disks)


def _is_nic(link: Path) -> bool:
    """Whether the network interface is hardware or a bond of hardware."""
    if (link / "device").exists():
        return True
    return (link / "bonding").exists() and any((port / "device").exists() for port in _ports(link))


def _nic(link: Path, nodes: NodeSet) -> Nic:
    below = [link] if (link / "device").exists() else _ports(link)
    return Nic(
        name=link.name,
        speed=read_id(link / "speed") or None,
        node=_unanimous(_device_node(each / "device", nodes) for each in below),
        up=read_text(link / "operstate") in _USABLE,
    )


def _ports(link: Path) -> list[Path]:
    return [link / name for name in children(link) if name.startswith("lower_")]


def _disk_node(disk: Path, nodes: NodeSet) -> int | None:
    """The disk's node; of an NVMe multipath disk, which hangs under its subsystem, that of all its controllers."""
    device = (disk / "device").resolve()
    if device.parent.name != "nvme-subsystem":
        return _device_node(device, nodes)
    return _unanimous(_device_node(device / f"nvme{number}", nodes) for number in numbered(device, "nvme"))


def _device_node(device: Path, nodes: NodeSet) -> int | None:
    """The first of `nodes` that the device or one above it names.

    Only devices on some buses have a `numa_node`: a virtio device has none, the PCI function above it does.
    """
    real = device.resolve()
    for place in (real, *real.parents):
        node = read_id(place / "numa_node")
        if node is not None and node in nodes:
            return node
    return None


def _unanimous(nodes: Iterable[int | None]) -> int | None:
    """The one node that all of `nodes` are; None where they differ or one is unknown."""
    distinct = set(nodes)
    return distinct.pop() if len(distinct) == 1 else None
