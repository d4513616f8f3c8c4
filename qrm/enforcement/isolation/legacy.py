"""cgroup v1: which of its files stand for those of v2, and what they hold. Pure.

There is nothing like memory.high, memory.low and memory.min: memory.soft_limit_in_bytes acts only when the whole node
is short of memory, and protects nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from qrm.enforcement.isolation.knobs import BURST, IDLE, IO_MAX, IO_WEIGHT, WEIGHT
from qrm.units import MIN_SHARES, SHARES_PER_CPU

PLACES: Mapping[str, tuple[str, str]] = {
    WEIGHT: ("cpu", "cpu.shares"),
    IDLE: ("cpu", "cpu.idle"),
    BURST: ("cpu", "cpu.cfs_burst_us"),
    IO_WEIGHT: ("blkio", "blkio.bfq.weight"),
    IO_MAX: ("blkio", "blkio.throttle.write_bps_device"),
}
"""Controller and file for each of v2's files that has a counterpart. io.max has four; where one is, all are."""

_THROTTLES = {
    "rbps": "blkio.throttle.read_bps_device",
    "wbps": "blkio.throttle.write_bps_device",
    "riops": "blkio.throttle.read_iops_device",
    "wiops": "blkio.throttle.write_iops_device",
}
_MIDDLE = 100
"""The weight of v2 that is as 1024 shares (kernel sched/core.c, cpu_weight_write_u64)."""


def shares(weight: str) -> int:
    """The cpu.shares behind a cpu.weight."""
    return max(MIN_SHARES, int(weight) * SHARES_PER_CPU // _MIDDLE)


def translated(files: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """The values of v1's files, by controller and file, for `files` of v2.

    The scale of io.weight, 1 to 10000, becomes that of blkio.bfq.weight, 1 to 1000.
    """
    told = dict[tuple[str, str], str]()
    for name, value in files.items():
        if name == IO_MAX:
            told |= _throttles(value)
        elif name in PLACES:
            told[PLACES[name]] = _value(name, value)
    return told


def _value(name: str, value: str) -> str:
    if name == WEIGHT:
        return str(shares(value))
    if name == IO_WEIGHT:
        return str(max(1, int(value.split()[-1]) // 10))
    return value


def _throttles(lines: str) -> dict[tuple[str, str], str]:
    """A file for each key, with a line for each device that has it; 0 takes a limit away and is not shown."""
    told = dict[str, list[str]]()
    for line in lines.splitlines():
        number, *limits = line.split()
        for key, _, value in (limit.partition("=") for limit in limits):
            if value != "max":
                told.setdefault(_THROTTLES[key], []).append(f"{number} {value}")
    return {("blkio", name): "\n".join(values) for name, values in told.items()}
