"""What disks had before qrm, which `qrm reset` gives back to them, possibly long after the process that set them.

One JSON file in the state directory. The kernel keeps io.cost for as long as a device is there, so the file speaks of
this boot and of this coming of each device only.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.io_cost.disks import Disk, DiskAbsent, Host, find
from qrm.enforcement.isolation.io_cost.measured import replace_file
from qrm.errors import ConfigError

FILE = "io-cost-before.json"
FORMAT = 1


class Before(msgspec.Struct, frozen=True):
    """One disk's lines as they are written, without its number."""

    disk: str
    instance: str
    model: str
    qos: str


class _Saved(msgspec.Struct, frozen=True):
    format: int
    boot: str
    disks: dict[str, Before]


class Record:
    """The file's content by the disks' numbers. What is added is durable before `add` returns."""

    def __init__(self, state: Path, host: Host, boot: str) -> None:
        """Read the file. `boot` is the kernel's boot_id. Raises NotEnforced where it cannot be read."""
        self._path = state / FILE
        self._host = host
        self._boot = boot
        try:
            saved = msgspec.json.decode(self._path.read_bytes(), type=_Saved)
        except FileNotFoundError:
            saved = _Saved(FORMAT, boot, {})
        except (OSError, msgspec.MsgspecError) as error:
            raise NotEnforced(
                f"cannot read {self._path}, which says what disks had before qrm: {error}",
                hint="remove it; what `qrm reset` makes of these disks is then what the kernel starts with",
            ) from error
        self._disks = saved.disks if saved.boot == boot and saved.format == FORMAT else {}

    def of(self, disk: Disk) -> Before | None:
        """What `disk` had; None where qrm has not set it since it came."""
        before = self._disks.get(disk.number)
        return before if before is not None and before.instance == disk.instance else None

    def add(self, disk: Disk, *, model: str, qos: str) -> None:
        """`disk` is going to be set. Raises NotEnforced."""
        self._save({**self._disks, disk.number: Before(disk.name, disk.instance, model, qos)})

    def drop(self, number: str) -> None:
        """The disk with this number has back what it had, or is gone. Raises NotEnforced."""
        self._save({key: before for key, before in self._disks.items() if key != number})

    def still_there(self) -> tuple[dict[str, Before], list[str]]:
        """What there is to give back, and the numbers of those that are gone."""
        there = {number: before for number, before in self._disks.items() if self._is_there(number)}
        return there, [number for number in self._disks if number not in there]

    def _is_there(self, number: str) -> bool:
        try:
            return self.of(find(number, self._host)) is not None
        except (DiskAbsent, ConfigError):  # numbers are given to others again, also to partitions
            return False

    def _save(self, disks: dict[str, Before]) -> None:
        try:
            if disks:
                replace_file(self._path, msgspec.json.encode(_Saved(FORMAT, self._boot, disks)))
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            raise NotEnforced(f"cannot write {self._path}: {error}", hint="is its disk full or read-only?") from error
        self._disks = disks
