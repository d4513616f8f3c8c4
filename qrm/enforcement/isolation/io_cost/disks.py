"""Block devices as sysfs tells of them, and what people call them.

Sources: Documentation/ABI/stable/sysfs-block (dev, diskseq, holders, partition, queue, size);
drivers/nvme/host/sysfs.c, drivers/scsi/scsi_sysfs.c and drivers/block/virtio_blk.c (wwid, model, serial);
block/blk-mq-sysfs.c (the folder `mq` of devices that take requests); udev's database (the lines "S:" of
/run/udev/data/bMAJ:MIN).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qrm.errors import ConfigError, QrmError
from qrm.topology.attributes import children, read_number, read_text

Kind = Literal["", "hdd", "sata_ssd", "nvme", "virtio"]
"""How a disk is attached, as in the configuration; "": in another way, such as xen, mmc, or not to hardware at all."""

SECTOR = 512
"""Bytes; the unit of sysfs's sizes, whatever the device's own is."""

_NUMBER = re.compile(r"\d+:\d+", re.ASCII)
_EXAMPLES = 'write "/dev/sda", "sda" or "8:0"'
_VIRTIO = re.compile(r"virtio\d+", re.ASCII)


class DiskAbsent(QrmError):
    """There is no such block device now; it may come."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where block devices are told of."""

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")
    udev: Path = Path("/run/udev/data")
    """qrm's own unit has PrivateDevices=yes and sees no links in /dev; udev's database has them too."""


HOST = Host()


@dataclass(frozen=True, slots=True)
class Disk:
    """A whole block device."""

    name: str
    """The kernel's, such as "sda"."""
    number: str
    """major:minor."""
    kind: Kind
    identity: str
    """The same after a reboot and in another slot: WWID, or model, serial and size; for devices that say neither, the
    slot and the size."""
    instance: str
    """Another one each time that a device comes, until the next reboot (kernel 5.15); "" before."""
    size: int
    """Bytes."""
    takes_requests: bool
    """Only then is it fit for io.cost: device mapper, md, zram and NVMe multipath pass bios on to what is below."""
    physical: bool
    """Stands on a device of its own and is no removable medium."""


def resolve(device: str, host: Host = HOST) -> str:
    """MAJ:MIN of `device`, as io.max wants it; see `find`."""
    return find(device, host).number


def find(device: str, host: Host = HOST) -> Disk:
    """The disk that is called `device`: "/dev/sda", "sda", a link such as "/dev/disk/by-id/...", or "8:0".

    Raises:
        ConfigError: it is a partition, or no name of a device at all.
        DiskAbsent: there is no such device now.
    """
    try:
        folder = _folder(device, host)
    except (OSError, ValueError):  # such as a name that is too long for a file system, or has a NUL in it
        raise ConfigError(f"{device[:80]!r} is not the name of a disk", hint=_EXAMPLES) from None
    if (folder / "partition").exists():
        disk = folder.resolve().parent.name
        raise ConfigError(
            f"{device!r} is a partition of {disk}, and io.cost and io.max are for whole disks",
            hint=f'write "/dev/{disk}"',
        )
    return _disk(folder, host)


def disks(host: Host = HOST) -> tuple[Disk, ...]:
    """All whole block devices, by name. Paths below an NVMe multipath disk have no number and are not among them."""
    folders = [host.sysfs / "block" / name for name in children(host.sysfs / "block")]
    return tuple(_disk(folder, host) for folder in folders if read_text(folder / "dev"))


def disks_below(number: str, host: Host = HOST) -> set[str]:
    """The numbers of the whole disks that hold what is on block device `number`, through partitions, LVM and md."""
    folder = host.sysfs / "dev/block" / number
    if (folder / "partition").exists():
        folder = folder.resolve().parent
    slaves = [read_text(folder / "slaves" / name / "dev") for name in children(folder / "slaves")]
    if not slaves:
        own = read_text(folder / "dev")
        return {own} if own else set()
    return {disk for slave in slaves if slave for disk in disks_below(slave, host)}


def users(disk: Disk, host: Host = HOST) -> list[str]:
    """What stands on the disk: its partitions, and device mapper and md devices."""
    folder = host.sysfs / "block" / disk.name
    partitions = [name for name in children(folder) if (folder / name / "partition").exists()]
    return partitions + children(folder / "holders")


def _folder(device: str, host: Host) -> Path:
    """The device's folder in sysfs."""
    name = device.removeprefix("/dev/")
    if _NUMBER.fullmatch(device):
        folder = host.sysfs / "dev/block" / device
    elif name in ("", ".", "..") or (name == device and "/" in device):
        raise ConfigError(f"{device!r} is not the name of a disk", hint=_EXAMPLES)
    else:
        # drivers/base/core.c: a "/" in a device's name is a "!" in sysfs, as in cciss/c0d0
        folder = host.sysfs / "class/block" / name.replace("/", "!")
        if name != device and not folder.exists():
            folder = _linked(name, host) or folder
    if not folder.exists():
        raise DiskAbsent(f"there is no block device {device!r} now")
    return folder


def _linked(link: str, host: Host) -> Path | None:
    """The folder in sysfs of what a link in /dev stands for."""
    if (host.dev / link).is_symlink():
        return host.sysfs / "class/block" / (host.dev / link).resolve().name
    for entry in children(host.udev):
        if entry.startswith("b") and f"S:{link}" in (read_text(host.udev / entry) or "").splitlines():
            return host.sysfs / "dev/block" / entry[1:]
    return None


def _disk(folder: Path, host: Host) -> Disk:
    name = folder.resolve().name
    device = folder / "device"
    kind = _kind(folder, host)
    sectors = read_number(folder / "size") or 0
    return Disk(
        name=name,
        number=read_text(folder / "dev") or "",
        kind=kind,
        identity=_identity(folder, kind, sectors, host),
        instance=read_text(folder / "diskseq") or "",
        size=sectors * SECTOR,
        takes_requests=(folder / "mq").exists(),
        physical=device.exists() and read_text(folder / "removable") != "1",
    )


def _kind(folder: Path, host: Host) -> Kind:
    """A virtual machine's disk does not know what it is made of, so virtio (also virtio-scsi) is a kind of its own."""
    if not (folder / "device").exists():
        return ""
    if any(_VIRTIO.fullmatch(part) for part in _slot(folder, host).parts):
        return "virtio"
    subsystem = (folder / "device/subsystem").resolve().name
    if subsystem in ("nvme", "nvme-subsystem"):
        return "nvme"
    if subsystem == "scsi":
        return "sata_ssd" if read_text(folder / "queue/rotational") == "0" else "hdd"
    return ""


def _identity(folder: Path, kind: Kind, sectors: int, host: Host) -> str:
    if wwid := read_text(folder / "wwid") or read_text(folder / "device/wwid"):
        return " ".join(f"wwid {wwid}".split())
    if serial := read_text(folder / "serial") or read_text(folder / "device/serial"):
        return " ".join(f"{kind} {read_text(folder / 'device/model') or ''} {serial} {sectors}".split())
    return f"{_slot(folder, host)} {sectors}"


def _slot(folder: Path, host: Host) -> Path:
    """Where the disk is in the tree of devices, without the names that the kernel counts up."""
    parts = folder.resolve().relative_to(host.sysfs.resolve()).parts
    physical = (folder / "device").exists()
    return Path(*parts[: parts.index("block")]) if physical and "block" in parts else Path(*parts)
