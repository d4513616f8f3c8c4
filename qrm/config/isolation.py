"""How containers are kept out of each other's way: modes, profiles, and what their names stand for."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field
from msgspec.structs import force_setattr

from qrm.config.base import Mode, Section

Weight = Annotated[int, Meta(ge=0, le=10_000)]
"""cgroup v2's scale of weights, 1 to 10000 with 100 in the middle (kernel cgroup-v2.rst); 0: not ours to set."""
Percent = Annotated[int, Meta(ge=0, le=100)]
Rate = Annotated[int, Meta(ge=0, le=1_000_000)]
"""Mbit/s."""
Bytes = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Bytes a second; 0: no limit. More than 64 bits the kernel cuts off in silence."""
Operations = Annotated[int, Meta(ge=0, le=(1 << 32) - 2)]
"""Operations a second; 0: no limit. The kernel takes all above for no limit (block/blk-throttle.c, tg_set_limit)."""
Speed = Annotated[int, Meta(ge=1, le=1 << 40)]
"""Bytes or operations a second; the kernel divides by them, and has failed at the ends of their range."""
Percentile = Annotated[float, Meta(ge=0, le=100)]
Microseconds = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
Scaling = Annotated[float, Meta(ge=1, le=10_000)]
"""Percent; the kernel's own bounds (block/blk-iocost.c, VRATE_MIN_PPM and VRATE_MAX_PPM)."""
Share = Annotated[str, Meta(pattern=r"^(|\d{1,4}%|\d{1,18}(\.\d{1,9})?([kMGTPE]|[KMGTPE]i)?)$")]
"""A share of the memory request such as "120%", or a quantity of bytes such as "2Gi"; "": not ours to set."""
Ways = Annotated[str, Meta(pattern=r"^(|100%|\d{1,2}%|0x[0-9a-fA-F]{1,16})$")]
"""A share of a cache such as "30%", or a mask of its ways such as "0x3f"; "": all of it."""


GroupName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
"""Becomes the end of a directory's name."""


class IsolationSection(Section, frozen=True):
    """Which means of isolation are used."""

    cpu: Mode = "auto"
    """cpu.weight, cpu.idle and cpu.max.burst of containers."""
    memory: Mode = "auto"
    """memory.high, memory.low and memory.min of containers."""
    io: Mode = "auto"
    """io.weight and io.max of containers."""
    rdt: Mode = "auto"
    """Cache ways and memory bandwidth of pods, through resctrl."""
    io_cost: Mode = "auto"
    """The cost model of block devices, without which io.weight has no effect (BFQ excepted)."""
    network: Mode = "auto"
    """Rates and priorities of pods' traffic, through tc."""


class IoLimits(Section, frozen=True):
    """io.max of one device (kernel cgroup-v2.rst)."""

    rbps: Bytes = 0
    wbps: Bytes = 0
    riops: Operations = 0
    wiops: Operations = 0

    def __post_init__(self) -> None:
        """Kernels from 5.10 on refuse 1 (block/blk-throttle.c, tg_set_limit), and no container would start."""
        for name in self.__struct_fields__:
            if getattr(self, name) == 1:
                raise ValueError(f"{name} is 1, which the kernel refuses: 0 for no limit, or 2 and more")


class Profile(Section, frozen=True):
    """What a container or its pod gets. A key that is left out is as in the profile of the pod's QoS level."""

    cpu_weight: Weight | UnsetType = UNSET
    """0: as the runtime makes it of the CPU request. Without effect where cpu_idle is true."""
    cpu_idle: bool | UnsetType = UNSET
    """Runs only when nobody else wants the CPU (SCHED_IDLE for the whole cgroup, kernel 5.15)."""
    cpu_burst_percent: Percent | UnsetType = UNSET
    """Unused quota that may be saved up, in percent of the quota (cpu.max.burst, kernel 5.14); 0: none."""
    memory_high: Share | UnsetType = UNSET
    """Beyond it the container is slowed down and its memory reclaimed."""
    memory_low: Share | UnsetType = UNSET
    """Below it its memory is reclaimed last, as far as the cgroups above protect it too."""
    memory_min: Share | UnsetType = UNSET
    """Below it its memory is never reclaimed, as far as the cgroups above protect it too."""
    io_weight: Weight | UnsetType = UNSET
    """0: as the runtime makes it."""
    io_max: dict[str, IoLimits] | UnsetType = UNSET
    """By device, such as "/dev/sda" or "8:0"; a disk, not a partition."""
    rdt: str | UnsetType = UNSET
    """A class of [rdt.classes]; "": the node's default group."""
    network: str | UnsetType = UNSET
    """A class of [network.classes]; "": traffic is left alone."""


class RdtClass(Section, frozen=True):
    """A group of resctrl. Several classes that come to the same masks still have a group each."""

    l3: Ways = ""
    """Of the L3 caches. With CDP it stands for code and data."""
    l3_code: Ways = ""
    """Where it is to differ; needs a mount with cdp."""
    l3_data: Ways = ""
    """Where it is to differ; needs a mount with cdp."""
    l2: Ways = ""
    """Of the L2 caches. With CDP it stands for code and data."""
    l2_code: Ways = ""
    """Where it is to differ; needs a mount with cdpl2."""
    l2_data: Ways = ""
    """Where it is to differ; needs a mount with cdpl2."""
    memory_bandwidth: Annotated[str, Meta(pattern=r"^(|100%|\d{1,2}%|\d{1,9})$")] = ""
    """A share such as "40%", or a number in the platform's unit: percent (Intel), 1/8 GB/s (AMD), or MiB/s (a mount
    with mba_MBps); "": all of it."""
    from_top: bool = False
    """true: a share of a cache is taken from the upper end of its mask, so that it need not overlap with others'."""


class RdtSection(Section, frozen=True):
    """Cache and memory bandwidth. Each class but the empty ones needs one of the hardware's CLOSIDs."""

    classes: dict[GroupName, RdtClass] = field(default_factory=dict)
    """By name, beside reclaimed with 30 % of L3, unless that is named; those that a profile names become groups below
    the resctrl mount, with "qrm-" in front."""
    monitoring: bool = True
    """A monitoring group for each pod, as long as there are RMIDs, for the metrics of cache and bandwidth."""

    def __post_init__(self) -> None:
        """Add what is not named."""
        force_setattr(self, "classes", {"reclaimed": RdtClass(l3="30%"), **self.classes})


class IoCostModel(Section, frozen=True):
    """What a disk can do at most (kernel cgroup-v2.rst, io.cost.model). A key that is left out is as without it."""

    rbps: Speed | UnsetType = UNSET
    """Bytes a second, reading in sequence."""
    rseqiops: Speed | UnsetType = UNSET
    """4 KiB reads a second, in sequence."""
    rrandiops: Speed | UnsetType = UNSET
    """4 KiB reads a second, at random places."""
    wbps: Speed | UnsetType = UNSET
    """Bytes a second, writing in sequence."""
    wseqiops: Speed | UnsetType = UNSET
    """4 KiB writes a second, in sequence."""
    wrandiops: Speed | UnsetType = UNSET
    """4 KiB writes a second, at random places."""


class IoCostQos(Section, frozen=True):
    """When a disk is saturated (kernel cgroup-v2.rst, io.cost.qos). A key that is left out is as without it."""

    rpct: Percentile | UnsetType = UNSET
    """This percentile of the reads' latencies has to be below rlat; 0: their latency does not count."""
    rlat: Microseconds | UnsetType = UNSET
    wpct: Percentile | UnsetType = UNSET
    """This percentile of the writes' latencies has to be below wlat; 0: their latency does not count."""
    wlat: Microseconds | UnsetType = UNSET
    min: Scaling | UnsetType = UNSET
    """How far the kernel may slow down, in percent of the model."""
    max: Scaling | UnsetType = UNSET
    """How far the kernel may speed up, in percent of the model."""


class IoCostDevice(Section, frozen=True):
    """The cost model of one disk."""

    kind: Literal["", "hdd", "sata_ssd", "nvme", "virtio"] = ""
    """Takes model and qos of qrm's table; "": what `qrm calibrate-io` measured, else the kind that the disk says."""
    model: IoCostModel = field(default_factory=IoCostModel)
    """Over the table's or the measured."""
    qos: IoCostQos = field(default_factory=IoCostQos)
    """Over the table's or the measured."""


class IoCostSection(Section, frozen=True):
    """Block devices whose cost model is ours to set."""

    devices: dict[str, IoCostDevice] = field(default_factory=dict)
    """By name, such as "/dev/nvme0n1", "nvme0n1" or "/dev/disk/by-id/...", or by "8:0"; a disk, not a partition."""
    others: Literal["leave", "measured", "table"] = "measured"
    """Disks that are not named: leave them alone, use what `qrm calibrate-io` measured, or the table if nothing was. A
    model that is too low costs throughput, so the table is not a default."""


class NetworkClass(Section, frozen=True):
    """A class of traffic, for each direction. Rates are shares of the node's such as "40%", or numbers in Mbit/s."""

    priority: Annotated[int, Meta(ge=0, le=7)] = 3
    """Who is offered first what nobody is guaranteed; 0 is first (tc-htb)."""
    guaranteed: Annotated[str, Meta(pattern=r"^(100%|\d{1,2}%|\d{1,7})$")] = "1%"
    """Of the whole class, when all others send too."""
    maximal: Annotated[str, Meta(pattern=r"^(100%|\d{1,2}%|\d{1,7})$")] = "100%"
    """Of the whole class."""
    pod_maximal_mbit: Rate = 0
    """Of each pod, unless its annotations kubernetes.io/egress-bandwidth and ingress-bandwidth say less; 0: none."""


def _usual() -> dict[str, NetworkClass]:
    return {
        "system": NetworkClass(priority=0, guaranteed="10%"),
        "dedicated": NetworkClass(priority=1, guaranteed="40%"),
        "shared": NetworkClass(priority=2, guaranteed="40%"),
        "reclaimed": NetworkClass(priority=7, guaranteed="5%"),
    }


class NetworkSection(Section, frozen=True):
    """Traffic of pods."""

    rate_mbit: Rate = 0
    """What the node can send and receive; 0: the speed that the device with the default route reports."""
    classes: dict[str, NetworkClass] = field(default_factory=_usual)
    """By name. Whoever writes classes of his own writes all of them, since their guarantees share the node's rate."""
