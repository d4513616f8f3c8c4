"""What a container's cgroup files are to hold, computed from its profile and from what kubelet asks. Pure.

Files are named as in cgroup v2, and values are written as the kernel shows them. What it refuses is kept out here:

- There is no cpu.weight beside a cpu.idle of 1, by which the kernel refuses it: the runtime applies `unified` in any
  order. A weight comes with a cpu.idle of 0, in place of the 1 that a runtime may still have for the container.
- cpu.max.burst is at most the quota, and 0 where there is no quota.
- memory values are multiples of a page, as the kernel rounds them down to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from mmap import PAGESIZE

from qrm.config import IoLimits, Profile
from qrm.errors import ConfigError
from qrm.pods.model import Qos
from qrm.units import parse_quantity

PAGE = PAGESIZE
"""Bytes; 4 KiB on x86, up to 64 KiB on arm64, where a value in between would be written again in each round."""
IDLE, BURST, WEIGHT = "cpu.idle", "cpu.max.burst", "cpu.weight"
IO_WEIGHT, IO_MAX = "io.weight", "io.max"
FILES: Mapping[str, str] = {
    WEIGHT: "cpu",
    IDLE: "cpu",
    BURST: "cpu",
    "memory.high": "memory",
    "memory.low": "memory",
    "memory.min": "memory",
    IO_WEIGHT: "io",
    IO_MAX: "io",
}
"""The files that can be set, with the key of their mode in [isolation]."""

_BURST_OFF, _BURST_STATIC = "closed", "static"
"""Values of Katalyst's cpu_burst_policy; with the others, the profile decides."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a container has of CPU and memory."""

    quota: int
    """CFS quota in microseconds for each period; 0 or less for none."""
    memory: int
    """The memory request in bytes, else the limit; 0 where neither is known."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """What is to be set, and what cannot be."""

    files: Mapping[str, str]
    missing: Mapping[str, str]
    """By file: why it is not set although the profile says so."""


def knobs(
    profile: Profile, qos: Qos, amounts: Amounts, able: frozenset[str], number: Callable[[str], str | None]
) -> Knobs:
    """The files of a container of `qos` with `profile`, of which every key is set.

    `able` are the files that this node has; `number` gives MAJ:MIN of a device, None where there is none of that name,
    and raises ConfigError where the name is not a disk's.
    """
    files, missing = dict[str, str](), dict[str, str]()
    _cpu(files, profile, qos, amounts, able)
    for name, share in (("high", profile.memory_high), ("low", profile.memory_low), ("min", profile.memory_min)):
        if share:
            value = _bytes(str(share), amounts.memory)
            if value is None:
                missing[f"memory.{name}"] = f"{share} of a memory request that is not known"
            else:
                files[f"memory.{name}"] = str(value)
    if profile.io_weight:
        files[IO_WEIGHT] = f"default {profile.io_weight}"
    _io_max(files, missing, (_limits(profile), qos.io_max), number)
    missing |= {name: "this kernel or its cgroup version does not have it" for name in files if name not in able}
    return Knobs({name: value for name, value in files.items() if name in able}, missing)


def _cpu(files: dict[str, str], profile: Profile, qos: Qos, amounts: Amounts, able: frozenset[str]) -> None:
    if profile.cpu_idle and IDLE in able:
        files[IDLE] = "1"
    elif profile.cpu_weight:
        files |= {IDLE: "0"} if IDLE in able else {}
        files[WEIGHT] = str(profile.cpu_weight)
    percent = _burst_percent(profile, qos)
    if percent:
        files[BURST] = str(max(amounts.quota, 0) * percent // 100)


def _burst_percent(profile: Profile, qos: Qos) -> int:
    if qos.cpu.cpu_burst_policy == _BURST_OFF:
        return 0
    told = int(profile.cpu_burst_percent or 0)
    if qos.cpu.cpu_burst_policy == _BURST_STATIC and qos.cpu.cpu_burst_percent is not None:
        return qos.cpu.cpu_burst_percent
    return told


def _bytes(share: str, memory: int) -> int | None:
    """Bytes behind "120%" or "2Gi", in whole pages; None for a share of nothing known."""
    if share.endswith("%"):
        if not memory:
            return None
        value = memory * int(share[:-1]) // 100
    else:
        value = int(parse_quantity(share))
    return value // PAGE * PAGE


def _limits(profile: Profile) -> Mapping[str, IoLimits]:
    return profile.io_max if isinstance(profile.io_max, dict) else {}


def _io_max(
    files: dict[str, str],
    missing: dict[str, str],
    layers: Sequence[Mapping[str, IoLimits]],
    number: Callable[[str], str | None],
) -> None:
    """A line for each disk, whatever it is called: the last of `layers` that names it decides."""
    by_number = dict[str, IoLimits]()
    for limits in layers:
        named = set[str]()
        for device, limit in sorted(limits.items()):
            try:
                found = number(device)
            except ConfigError as error:
                missing[f"{IO_MAX} {device}"] = str(error)
                continue
            if found is None:
                missing[f"{IO_MAX} {device}"] = "there is no such disk"
            elif found in named:
                missing[f"{IO_MAX} {device}"] = f"the disk {found} is named twice"
            else:
                by_number[found] = limit
                named.add(found)
    lines = [io_max_line(found, limit) for found, limit in by_number.items() if limit != IoLimits()]
    if lines:
        files[IO_MAX] = "\n".join(sorted(lines))


def io_max_line(number: str, limit: IoLimits) -> str:
    """One line of io.max, as the kernel shows it: every key, "max" for no limit."""
    keys = ("rbps", "wbps", "riops", "wiops")
    return " ".join((number, *(f"{key}={getattr(limit, key) or 'max'}" for key in keys)))


def same(name: str, wanted: str, kernel: str) -> bool:
    """Whether what the kernel shows of a file holds what is wanted.

    io.weight, io.max and v1's limits have a line for each device, in the kernel's order; only the lines that are wanted
    count, the others are not ours.
    """
    if name in (IO_WEIGHT, IO_MAX) or name.startswith("blkio.throttle."):
        return set(wanted.splitlines()) <= {" ".join(line.split()) for line in kernel.splitlines()}
    return wanted == kernel.strip()
