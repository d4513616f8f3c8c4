"""What this node's resctrl can do, read from its mount and its info directory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.rdt.schemata import BANDWIDTH, parse_schemata
from qrm.topology.attributes import children, read_number, read_text

CACHES = ("L3", "L3CODE", "L3DATA", "L2", "L2CODE", "L2DATA")
"""Resources whose values are masks of ways. With CDP there are two in place of one."""
MONITORING = "L3_MON"
_FULL_PERCENT = 100
_FULL_EIGHTHS = 2048
"""AMD: no limit (MAX_MBA_BW_AMD of the kernel; its processors may have a higher one)."""
_FULL_MIB = 0xFFFF_FFFF
"""mba_MBps: no limit (MBA_MAX_MBPS of the kernel)."""

Unit = Literal["percent", "1/8 GB/s", "MiB/s"]


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Ways of one level of cache. A mask has one bit for each, from bit 0 (cbm_mask)."""

    ways: int
    min_bits: int = 1
    """As few as a mask may have (min_cbm_bits)."""
    sparse: bool = False
    """A mask may have gaps (sparse_masks)."""
    shareable: int = 0
    """Ways that devices use too (shareable_bits)."""

    @property
    def full(self) -> int:
        """The mask of all ways."""
        return (1 << self.ways) - 1


@dataclass(frozen=True, slots=True)
class BandwidthInfo:
    """Memory bandwidth, for each domain."""

    unit: Unit
    low: int
    """The smallest value (min_bandwidth)."""
    step: int
    """Values are rounded up to a multiple of it (bandwidth_gran)."""
    full: int
    """No limit."""


@dataclass(frozen=True, slots=True)
class RdtInfo:
    """All of it."""

    root: Path
    """Where resctrl is mounted."""
    writable: bool
    closids: int
    """Groups that there can be at once, the default group among them: the least of all resources; with CDP the kernel
    has halved it already."""
    caches: Mapping[str, CacheInfo] = field(default_factory=dict)
    """By resource, of CACHES."""
    bandwidth: BandwidthInfo | None = None
    rmids: int = 0
    """Groups that can be monitored at once, control groups among them; 0: no monitoring."""
    features: tuple[str, ...] = ()
    """What is monitored, such as llc_occupancy (mon_features)."""


def read_info(proc: Path) -> RdtInfo:
    """Read it; `proc` is where proc is mounted.

    Raises:
        NotEnforced: resctrl is not mounted, or allocates nothing; with what to do about it.
    """
    root, options = _mount(proc)
    info = root / "info"
    resources = [name for name in children(info) if read_number(info / name / "num_closids")]
    if not resources:
        raise NotEnforced(
            f"{info} names nothing that can be allocated", hint="the processor monitors at most: leave [rdt] off"
        )
    return RdtInfo(
        root=root,
        writable="ro" not in options,
        closids=min(read_number(info / name / "num_closids") or 1 for name in resources),
        caches={name: _cache(info / name) for name in CACHES if name in resources},
        bandwidth=_bandwidth(root, options) if BANDWIDTH in resources else None,
        rmids=read_number(info / MONITORING / "num_rmids") or 0,
        features=tuple(
            word for word in (read_text(info / MONITORING / "mon_features") or "").split() if "_config" not in word
        ),
    )


def _mount(proc: Path) -> tuple[Path, frozenset[str]]:
    """Where resctrl is mounted, and with what options (proc_pid_mounts(5))."""
    for line in (read_text(proc / "mounts") or "").splitlines():
        fields = line.split(" ")
        if len(fields) > 3 and fields[2] == "resctrl":
            path = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[1])
            return Path(path), frozenset(fields[3].split(","))
    if "resctrl" in (read_text(proc / "filesystems") or "").split():
        raise NotEnforced(
            "resctrl is not mounted", hint="mount -t resctrl resctrl /sys/fs/resctrl, in /etc/fstab to have it at boot"
        )
    raise NotEnforced(
        "this kernel offers no resctrl",
        hint="it takes a processor with RDT or PQoS, CONFIG_X86_CPU_RESCTRL, and no rdt=!l3cat or the like at boot",
    )


def _cache(directory: Path) -> CacheInfo:
    full = _hex(directory / "cbm_mask")
    if not full or full & (full + 1):
        raise NotEnforced(f"{directory / 'cbm_mask'} is {full:#x}, which is no row of ways from bit 0")
    return CacheInfo(
        ways=full.bit_length(),
        min_bits=read_number(directory / "min_cbm_bits") or 1,
        sparse=bool(read_number(directory / "sparse_masks")),
        shareable=_hex(directory / "shareable_bits"),
    )


def _bandwidth(root: Path, options: frozenset[str]) -> BandwidthInfo:
    """Of Intel's the kernel says that delays are linear, of AMD's that they are not; both are in MB (resctrl.rst)."""
    directory = root / "info" / BANDWIDTH
    low, step = read_number(directory / "min_bandwidth") or 0, read_number(directory / "bandwidth_gran") or 1
    if "mba_MBps" in options:
        return BandwidthInfo("MiB/s", 0, 1, _FULL_MIB)
    if read_number(directory / "delay_linear"):
        return BandwidthInfo("percent", low, step, _FULL_PERCENT)
    now = parse_schemata(read_text(root / "schemata") or "").get(BANDWIDTH, {})
    return BandwidthInfo("1/8 GB/s", low, step, max(_FULL_EIGHTHS, *now.values(), 0))


def _hex(path: Path) -> int:
    text = read_text(path) or ""
    return int(text, 16) if re.fullmatch(r"[0-9a-fA-F]+", text) else 0
