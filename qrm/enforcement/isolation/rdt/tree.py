"""The resctrl file system: every touch of it, with last_cmd_status in every error.

The status is read at once, since the next command of anybody replaces it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import structlog

from qrm.enforcement.isolation import kernel
from qrm.enforcement.isolation.kernel import GONE, KernelError
from qrm.topology.attributes import read_text

log = structlog.get_logger(__name__)

MON_GROUPS = "mon_groups"
_NO_GROUPS = ("info", MON_GROUPS, "mon_data")
"""Directories in the root that are not control groups."""


class Tree:
    """One mount. Paths are those of groups: the root, `root/<group>`, `<group>/mon_groups/<name>`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def control_groups(self) -> list[str]:
        """The names of all control groups but the default one, sorted."""
        return [name for name in _directories(self.root) if name not in _NO_GROUPS]

    def monitoring_groups(self, group: Path) -> list[str]:
        """The names of a control group's monitoring groups, sorted."""
        return _directories(group / MON_GROUPS)

    def schemata(self, group: Path) -> str | None:
        """The file's text; None where there is no such group."""
        return kernel.read(group / "schemata")

    def set_schemata(self, group: Path, text: str, old: str) -> None:
        """Write lines. Raises KernelError."""
        try:
            kernel.write(group / "schemata", text, old=old)
        except KernelError as error:
            raise self._refused(group / "schemata", text, error.errno) from None

    def make(self, group: Path) -> None:
        """Make a group; one that is there already is no error. Raises KernelError."""
        try:
            group.mkdir()
        except FileExistsError:
            return
        except OSError as error:
            raise self._refused(group, "mkdir", error.errno or 0) from None
        log.info("group made", path=str(group))

    def remove(self, group: Path) -> bool:
        """Remove a group, whose tasks go to the group above; False where there was none. Raises KernelError."""
        try:
            group.rmdir()
        except OSError as error:
            if error.errno in GONE:
                return False
            raise self._refused(group, "rmdir", error.errno or 0) from None
        log.info("group removed", path=str(group))
        return True

    def tasks(self, group: Path) -> frozenset[int]:
        """The ids of all threads in a group, those in its monitoring groups included; none where it is gone."""
        return frozenset(map(int, (kernel.read(group / "tasks") or "").split()))

    def move(self, group: Path, threads: Iterable[int]) -> int:
        """Move threads into a group, and say how many there still were. Raises KernelError."""
        path, moved = group / "tasks", 0
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._refused(path, "opening it", error.errno or 0) from None
        try:
            for thread in threads:
                moved += self._move(path, descriptor, thread)
        finally:
            os.close(descriptor)
        return moved

    def _move(self, path: Path, descriptor: int, thread: int) -> int:
        try:
            os.write(descriptor, b"%d\n" % thread)
        except OSError as error:
            if error.errno == errno.ESRCH:
                return 0
            raise self._refused(path, str(thread), error.errno or 0) from None
        return 1

    def _refused(self, path: Path, value: str, number: int) -> KernelError:
        status = read_text(self.root / "info/last_cmd_status") or "unreadable"
        return KernelError(path, value, number, f"last_cmd_status: {'; '.join(status.splitlines())}")


def _directories(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
