"""What takes qrm's values off a container again. Pure but for `unlock`, `lift_limits` and `restore_legacy`.

A key of `unified` cannot be taken away from what the runtime keeps: it gets kubelet's value, else the kernel's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from qrm.enforcement.isolation import kernel, legacy
from qrm.enforcement.isolation.knobs import BURST, FILES, IDLE, IO_MAX, WEIGHT
from qrm.units import MAX_SHARES, MIN_SHARES

_NEUTRAL = {
    IDLE: "0",
    BURST: "0",
    "memory.high": "max",
    "memory.low": "0",
    "memory.min": "0",
    "io.weight": "default 100",
}
"""The kernel's defaults (cgroup-v2.rst)."""


def neutral(names: Iterable[str], own: Mapping[str, str], weight: str) -> dict[str, str]:
    """What undoes ours of these files: kubelet's `own` values, else defaults; `weight` is what the shares come to."""
    undone = dict[str, str]()
    for name in FILES.keys() & set(names):
        if name in own:
            undone[name] = own[name]
        elif name == IO_MAX:
            undone[name] = ""  # of which the runtime writes nothing; a disk may be gone
        else:
            undone[name] = weight if name == WEIGHT else _NEUTRAL[name]
    return undone


def linear_weight(shares: int) -> int:
    """The cpu.weight that runc before 1.3.2 and kubelet make of shares."""
    return 1 + (shares - MIN_SHARES) * 9999 // (MAX_SHARES - MIN_SHARES)


def curved_weight(shares: int) -> int:
    """The cpu.weight that runc since 1.3.2 and crun since 1.23 make of shares: 1024 become 100."""
    power = math.log2(min(max(shares, MIN_SHARES), MAX_SHARES))
    return math.ceil(10 ** ((power * power + 125 * power) / 612 - 7 / 34))


def weight_for(shares: int, seen: Iterable[tuple[int, str]]) -> str:
    """The cpu.weight that this node's runtime makes of `shares`; `seen` are shares and weights of other containers."""
    shares = shares or 1024
    curved = any(weight == str(curved_weight(had)) != str(linear_weight(had)) for had, weight in seen)
    return str(curved_weight(shares) if curved else linear_weight(shares))


def unlock(folders: Mapping[str, Path], *, v2: bool) -> None:
    """Before the update that undoes: what the runtime's own writes would be refused for. Raises KernelError."""
    for name in (IDLE, BURST):
        controller, file = ("", name) if v2 else legacy.PLACES[name]
        if controller in folders:
            _write_if(folders[controller] / file, "0")


def lift_limits(path: Path) -> None:
    """Afterwards: a container's limits of all disks, of which the runtime knows one at most. Raises KernelError."""
    for line in (kernel.read(path) or "").splitlines():
        try:
            kernel.write(path, f"{line.split()[0]} rbps=max wbps=max riops=max wiops=max", old=line)
        except kernel.KernelError as error:
            if error.errno not in kernel.GONE:
                raise


def restore_legacy(folders: Mapping[str, Path], files: Mapping[str, str]) -> None:
    """Afterwards, on cgroup v1: what CRI has no field for, as far as it is ours by `files`. Raises KernelError."""
    for (controller, name), value in legacy.translated(files).items():
        if controller not in folders or not name.startswith("blkio."):
            continue
        path = folders[controller] / name
        if "throttle" not in name:
            _write_if(path, "100")
            continue
        for line in value.splitlines():
            if line in (kernel.read(path) or "").splitlines():
                kernel.write(path, f"{line.split()[0]} 0", old=line)


def _write_if(path: Path, value: str) -> None:
    now = kernel.read(path)
    if now is not None and now != value:
        kernel.write(path, value, old=now)
