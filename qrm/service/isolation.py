"""The dimensions of a node, as its configuration has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from qrm.config import Config, HostSection
from qrm.enforcement.isolation.dimension import Dimension
from qrm.enforcement.isolation.io_cost.dimension import IoCostDimension
from qrm.enforcement.isolation.io_cost.disks import DiskAbsent, Host, resolve
from qrm.enforcement.isolation.rdt.dimension import RdtDimension
from qrm.enforcement.isolation.traffic.dimension import Traffic
from qrm.metrics import Metrics


def dimensions(config: Config, metrics: Metrics) -> Sequence[Dimension]:
    """All of them; which are used is for their modes to say."""
    host = config.host
    rdt = RdtDimension(config.rdt, config.profiles, Path(host.proc), Path(host.cgroup))
    metrics.registry.register(rdt.usage)
    io_cost = IoCostDimension(
        config.io_cost,
        cgroup=Path(host.cgroup),
        state=Path(config.state.directory),
        host=Host(sysfs=Path(host.sysfs)),
        proc=Path(host.proc),
    )
    # A simulated machine has no network of its own, and must not touch that of the one it is simulated on.
    traffic = [Traffic(config.network)] if host.sysfs == HostSection().sysfs else []
    return [rdt, io_cost, *traffic]


def disk_number(config: Config) -> Callable[[str], str | None]:
    """How a device becomes MAJ:MIN; None where there is none of that name, ConfigError where it is no disk."""
    host = Host(sysfs=Path(config.host.sysfs))

    def number(device: str) -> str | None:
        try:
            return resolve(device, host)
        except DiskAbsent:
            return None

    return number
