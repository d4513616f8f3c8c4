"""Values in files of the kernel: one read, one write, and errors that say what was refused.

Files below cgroup, resctrl and sysfs take a value in one write(2) and refuse it by an errno.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import structlog

from qrm.enforcement.isolation.dimension import NotEnforced

log = structlog.get_logger(__name__)

GONE = (errno.ENOENT, errno.ENODEV, errno.ESRCH)
"""The file, its cgroup or its process is not there any more."""


class KernelError(NotEnforced):
    """The kernel refused a value."""

    def __init__(self, path: Path, value: str, number: int, detail: str = "") -> None:
        self.errno = number
        name = errno.errorcode.get(number, str(number))
        said = f": {detail}" if detail else ""
        super().__init__(f"{path}: {value.strip()!r} was refused with {name} ({os.strerror(number)}){said}")


def read(path: Path) -> str | None:
    """The file's text without the end of its last line; None where it is gone."""
    try:
        return path.read_text().rstrip("\n")
    except OSError as error:
        if error.errno in GONE:
            return None
        raise KernelError(path, "reading it", error.errno or 0) from None


def write(path: Path, value: str, *, old: str | None = None) -> None:
    """Write `value` in one go; logged with the `old` value. Raises KernelError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, f"{value}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise KernelError(path, value, error.errno or 0) from None
    log.info("written", path=str(path), value=value.strip(), old=old)
