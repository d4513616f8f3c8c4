"""Disks by all their names, and what sysfs tells of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from qrm.enforcement.isolation.io_cost.disks import DiskAbsent, Host, disks, disks_below, find, resolve, users
from qrm.errors import ConfigError
from tests.enforcement.isolation.io_cost.trees import NVME, SATA, VIRTIO, VIRTIO_SCSI, add_disk, host_in


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A SATA disk with a partition, and a logical volume on it."""
    host = host_in(tmp_path)
    add_disk(host, "sda", "8:0", device=SATA, partitions={"sda1": "8:1"})
    add_disk(host, "dm-0", "253:0", slaves=("sda1",), requests=False)
    return host


@pytest.mark.parametrize("name", ["sda", "/dev/sda", "8:0", "/dev/disk/by-id/ata-DISK", "/dev/disk/by-path/x"])
def test_all_names(host: Host, name: str) -> None:
    """The kernel's name, the path, the number, and links, by /dev itself or where that is hidden by udev's database."""
    (host.dev / "disk/by-path").mkdir(parents=True)
    (host.dev / "disk/by-path/x").symlink_to("../../sda")
    (host.udev / "b8:0").write_text("S:disk/by-id/ata-DISK-2\nS:disk/by-id/ata-DISK\nE:ID_FS_TYPE=\n")
    assert resolve(name, host) == "8:0"


@pytest.mark.parametrize("name", ["sda1", "/dev/sda1", "8:1"])
def test_partition(host: Host, name: str) -> None:
    """A partition is refused, and its disk is named."""
    with pytest.raises(ConfigError, match=f"'{name}' is a partition of sda") as caught:
        resolve(name, host)
    assert '"/dev/sda"' in caught.value.hint


@pytest.mark.parametrize("name", ["sdb", "/dev/sdb", "8:16", "/dev/disk/by-id/other", "/dev/../sda"])
def test_absent(host: Host, name: str) -> None:
    """What is not there is told apart from what is wrong: it may come."""
    with pytest.raises(DiskAbsent, match="there is no block device"):
        resolve(name, host)


@pytest.mark.parametrize("name", ["", ".", "..", "/dev/", "/dev/..", "disk/sda", "/sys/block/sda"])
def test_nonsense(host: Host, name: str) -> None:
    """What no disk can be called is an error, and leads nowhere else in sysfs."""
    with pytest.raises(ConfigError, match="is not the name of a disk"):
        resolve(name, host)


def test_slash_in_a_name(host: Host) -> None:
    """A device in a folder of /dev has a "!" in sysfs."""
    add_disk(host, "cciss!c0d0", "104:0")
    assert find("/dev/cciss/c0d0", host).name == "cciss!c0d0"


@pytest.mark.parametrize(
    ("device", "subsystem", "rotational", "kind"),
    [
        (SATA, "scsi", "1", "hdd"),
        (SATA, "scsi", "0", "sata_ssd"),
        (NVME, "nvme", "0", "nvme"),
        ("virtual/nvme-subsystem/nvme-subsys0", "nvme-subsystem", "0", "nvme"),
        (VIRTIO, "virtio", "1", "virtio"),
        (VIRTIO_SCSI, "scsi", "1", "virtio"),
        ("vbd-768", "xen", "0", ""),
        ("", "", "0", ""),
    ],
)
def test_kind(tmp_path: Path, device: str, subsystem: str, rotational: str, kind: str) -> None:
    """The kind is how the disk is attached; what a virtual disk says of its plates is not believed."""
    host = host_in(tmp_path)
    add_disk(host, "disk", "9:9", device=device, subsystem=subsystem, files={"queue/rotational": rotational})
    (found,) = disks(host)
    assert found.kind == kind
    assert found.physical == bool(device)
    assert found.size == 2048 * 512


def test_identity(tmp_path: Path) -> None:
    """A disk is known again under another name: by its WWID, its serial number, or else its slot and size."""

    def found(folder: str, name: str, files: dict[str, str], device: str = NVME) -> str:
        host = host_in(tmp_path / folder)
        add_disk(host, name, "259:0", device=device, subsystem="nvme", files=files)
        return find(name, host).identity

    assert found("a", "nvme0n1", {"wwid": "eui.01"}) == found("b", "nvme7n1", {"wwid": "eui.01"}, SATA) == "wwid eui.01"
    assert found("c", "nvme0n1", {"serial": "S1"}) == "nvme S1 2048"
    assert found("d", "vda", {"serial": "S1"}, VIRTIO) == "virtio S1 2048"
    assert found("e", "vda", {}, VIRTIO) == found("f", "vdb", {}, VIRTIO) != found("g", "vda", {"size": "1"}, VIRTIO)


def test_what_stands_on_it(host: Host) -> None:
    """Partitions and holders use a disk, and a file system on a logical volume is on the disk below."""
    assert users(find("sda", host), host) == ["sda1"]
    assert users(find("dm-0", host), host) == []
    assert disks_below("8:1", host) == disks_below("253:0", host) == disks_below("8:0", host) == {"8:0"}
    assert disks_below("0:44", host) == set()
    assert not find("dm-0", host).takes_requests
