"""What disks of each kind do, for those that nobody has measured.

Models are the kernel's own for disks of that kind (block/blk-iocost.c, autop: HDD, SSD_DFL, SSD_FAST), so that
switching io.cost on with them tells the kernel nothing that it does not believe already. A virtual disk may be
anything; it gets the modest SSD's.

Latencies are the kernel's too (same place), with the percentile of its documentation's example (cgroup-v2.rst,
io.cost.qos: rpct=95.00); for virtio, whose disks are often behind a network and a provider's limit, 75 ms as Katalyst's
writeback throttling has it. The model may be much too low for a fast disk, so the kernel may speed up without a bound,
but not slow down below half of it.
"""

from __future__ import annotations

from qrm.enforcement.isolation.io_cost.disks import Kind
from qrm.enforcement.isolation.io_cost.model import Model, Params, Qos

UNBOUNDED = 10_000_00
"""What the kernel takes at most: a hundred times the model."""
_PERCENTILE = 95_00
_SLOWEST = 50_00

_SSD = Model(rbps=488_636_629, rseqiops=8_932, rrandiops=8_518, wbps=427_891_549, wseqiops=28_755, wrandiops=21_940)


def _qos(latency: int) -> Qos:
    return Qos(rpct=_PERCENTILE, rlat=latency, wpct=_PERCENTILE, wlat=latency, min=_SLOWEST, max=UNBOUNDED)


TABLE: dict[Kind, Params] = {
    "hdd": Params(
        Model(rbps=174_019_176, rseqiops=41_708, rrandiops=370, wbps=178_075_866, wseqiops=42_705, wrandiops=378),
        _qos(250_000),
    ),
    "sata_ssd": Params(_SSD, _qos(25_000)),
    "nvme": Params(
        Model(
            rbps=3_102_524_156,
            rseqiops=724_816,
            rrandiops=778_122,
            wbps=1_742_780_862,
            wseqiops=425_702,
            wrandiops=443_193,
        ),
        _qos(5_000),
    ),
    "virtio": Params(_SSD, _qos(75_000)),
}

UNJUDGED = Qos(rpct=0, rlat=25_000, wpct=0, wlat=25_000, min=1_00, max=UNBOUNDED)
"""For a disk of which only the model is known: the kernel's own (SSD_DFL), by which latency does not count."""
