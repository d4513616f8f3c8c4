"""Block devices in a sysfs of a temporary folder, and a cgroup whose two files take lines as the kernel's do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qrm.enforcement.isolation.io_cost.disks import Host

SATA = "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0"
NVME = "pci0000:00/0000:01:00.0/nvme/nvme0"
VIRTIO = "pci0000:00/0000:00:05.0/virtio2"
VIRTIO_SCSI = "pci0000:00/0000:00:06.0/virtio3/host1/target1:0:0/1:0:0:0"
AUTO_MODEL = "ctrl=auto model=linear rbps=1 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6"
AUTO_QOS = "enable=0 ctrl=auto rpct=0.00 rlat=25000 wpct=0.00 wlat=25000 min=1.00 max=10000.00"


def host_in(folder: Path) -> Host:
    """An empty one."""
    host = Host(folder / "sys", folder / "dev", folder / "udev")
    for each in (host.sysfs / "block", host.sysfs / "class/block", host.sysfs / "dev/block", host.dev, host.udev):
        each.mkdir(parents=True)
    return host


def add_disk(
    host: Host,
    name: str,
    number: str,
    *,
    device: str = "",
    subsystem: str = "scsi",
    files: Mapping[str, str] | None = None,
    partitions: Mapping[str, str] | None = None,
    slaves: Sequence[str] = (),
    requests: bool = True,
) -> Path:
    """Add a disk on `device`, or a virtual one; returns its folder."""
    parent = host.sysfs / "devices" / (device or "virtual")
    folder = parent / "block" / name
    texts = {"dev": number, "size": "2048", "removable": "0", "diskseq": "7", **(files or {})}
    for file, text in texts.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(f"{text}\n")
    if device:
        (folder / "device").symlink_to(parent)
        (host.sysfs / "bus" / subsystem).mkdir(parents=True, exist_ok=True)
        (parent / "subsystem").symlink_to(host.sysfs / "bus" / subsystem)
    if requests:
        (folder / "mq").mkdir()
    (host.sysfs / "block" / name).symlink_to(folder)
    _link(host, folder, number)
    for partition, its_number in (partitions or {}).items():
        (folder / partition).mkdir()
        (folder / partition / "partition").write_text("1\n")
        (folder / partition / "dev").write_text(f"{its_number}\n")
        _link(host, folder / partition, its_number)
    for slave in slaves:
        (folder / "slaves").mkdir(exist_ok=True)
        (folder / "slaves" / slave).symlink_to(host.sysfs / "class/block" / slave)
    return folder


def _link(host: Host, folder: Path, number: str) -> None:
    (host.sysfs / "class/block" / folder.name).symlink_to(folder)
    (host.sysfs / "dev/block" / number).symlink_to(folder)


@dataclass
class Kernel:
    """The root cgroup's two files. A line that is written replaces the device's, key by key."""

    folder: Path
    writes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "cgroup.controllers").write_text("cpu io memory\n")
        (self.folder / "io.cost.model").write_text("")
        (self.folder / "io.cost.qos").write_text("")

    def write(self, path: Path, value: str, *, old: str | None = None) -> None:
        """As `qrm.enforcement.isolation.kernel.write`."""
        number, *words = value.split()
        self.writes.append(f"{path.name} {value}")
        base = AUTO_MODEL if path.name == "io.cost.model" else AUTO_QOS
        lines = {line.split()[0]: line for line in path.read_text().splitlines()}
        have = dict(word.split("=") for word in lines.get(number, f"{number} {base}").split()[1:])
        have |= dict(word.split("=") for word in words)
        if any(not word.startswith(("enable=", "ctrl=")) for word in words):
            have["ctrl"] = "user"
        lines[number] = " ".join((number, *(f"{key}={said}" for key, said in have.items())))
        path.write_text("".join(f"{line}\n" for line in lines.values()))
