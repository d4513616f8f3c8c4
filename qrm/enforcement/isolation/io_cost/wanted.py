"""Which disks are to have which parameters, by the configuration, by what was measured, and by the table."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from qrm.config import IoCostDevice, IoCostSection
from qrm.enforcement.isolation.io_cost.disks import Disk, DiskAbsent, Host, disks, find
from qrm.enforcement.isolation.io_cost.measured import load
from qrm.enforcement.isolation.io_cost.model import Params, merge
from qrm.enforcement.isolation.io_cost.table import TABLE, UNJUDGED
from qrm.errors import ConfigError, QrmError


@dataclass(frozen=True, slots=True)
class Plan:
    """What one disk is to have."""

    disk: Disk
    params: Params
    named: bool
    """By the configuration, which then has the last word on what somebody else has set."""


@dataclass(slots=True)
class Plans:
    """What all disks are to have."""

    by_number: dict[str, Plan] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Why a disk cannot have anything, by its number or, where it has none, its name."""
    absent: list[str] = field(default_factory=list)
    """Names of the configuration that nothing answers to now."""


def plans(section: IoCostSection, state: Path, host: Host) -> Plans:
    """What all disks that are there now are to have."""
    found = Plans()
    for name, device in section.devices.items():
        number = name
        try:
            disk = find(name, host)
            number = disk.number
            if number in found.by_number or number in found.failed:
                raise ConfigError(f"this disk, {disk.name}, is named twice", hint="remove one of the two")
            found.by_number[number] = Plan(disk, _named(disk, device, state), named=True)
        except DiskAbsent:
            found.absent.append(name)
        except QrmError as error:
            found.by_number.pop(number, None)
            found.failed[number] = f'io_cost.devices."{name}": {error}'
    if section.others != "leave":
        _add_others(found, section, state, host)
    return found


def _add_others(found: Plans, section: IoCostSection, state: Path, host: Host) -> None:
    for disk in disks(host):
        known = disk.number in found.by_number or disk.number in found.failed
        if known or not disk.physical or not disk.takes_requests:
            continue
        try:
            measured = load(state, disk.identity)
        except QrmError as error:
            found.failed[disk.number] = f"{disk.name}: {error}"
            continue
        params = measured.params() if measured else TABLE.get(disk.kind) if section.others == "table" else None
        if params is not None:
            found.by_number[disk.number] = Plan(disk, params, named=False)


def _named(disk: Disk, device: IoCostDevice, state: Path) -> Params:
    """Raises QrmError."""
    if not disk.takes_requests:
        raise ConfigError(
            f"{disk.name} passes its I/O on to devices below it, where the kernel keeps no costs",
            hint="name those, or switch NVMe multipath off (nvme_core.multipath=N)",
        )
    base = TABLE[device.kind] if device.kind else _known(disk, state)
    return merge(base, device.model, device.qos, UNJUDGED)


def _known(disk: Disk, state: Path) -> Params | None:
    measured = load(state, disk.identity)
    return measured.params() if measured else TABLE.get(disk.kind)
