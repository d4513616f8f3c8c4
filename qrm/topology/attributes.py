"""Reading sysfs attributes: small text files, any of which may be missing, unreadable or say that they do not know.

Whatever cannot be understood reads as None, so that one odd file costs one fact and not the machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from qrm.cpuset import IdSet
from qrm.errors import ParseError

Ids = TypeVar("Ids", bound=IdSet)

_CHUNK = 1 << 16
"""Bytes; the kernel gives what fits into a page or a few, however much there is."""
_NO_ID = frozenset({0xFFFF, 0xFFFF_FFFF})
"""-1 as it looks after it was kept in 16 or 32 unsigned bits, which firmware tables and older drivers do."""


def read_text(path: Path | str) -> str | None:
    """The content without white space around it; None where it cannot be read (`speed` of a down link is EINVAL).

    With as few system calls as it takes: some are read by the thousand.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = list(iter(lambda: os.read(descriptor, _CHUNK), b""))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return b"".join(parts).decode(errors="replace").strip()


def read_number(path: Path) -> int | None:
    """A non-negative decimal number."""
    text = read_text(path)
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 20 else None


def read_id(path: Path) -> int | None:
    """A number for which the kernel has a value that means "unknown": ids, NUMA nodes of devices, link speeds."""
    number = read_number(path)
    return None if number in _NO_ID else number


def read_set(path: Path, kind: type[Ids]) -> Ids | None:
    """A list of ids such as `0-3,8`; an empty one is a fact, "(null)" is not."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return kind.parse(text)
    except ParseError:
        return None


def children(directory: Path) -> list[str]:
    """The names in `directory`, sorted; none where there is no such directory."""
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names are wanted, not a Path for each
    except OSError:
        return []


def numbered(directory: Path, prefix: str) -> list[int]:
    """The n of all children that are called `prefix`n, ascending: of `cpu0`, `cpu10`, `cpufreq` it is 0 and 10."""
    rests = (name.removeprefix(prefix) for name in children(directory) if name.startswith(prefix))
    return sorted(int(rest) for rest in rests if rest.isascii() and rest.isdecimal())
