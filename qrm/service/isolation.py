"""The dimensions of a node, as its configuration has them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from qrm.config import Config, HostSection
from qrm.enforcement.isolation.dimension import Dimension
from qrm.enforcement.isolation.io_cost.dimension import IoCostDimension
from qrm.enforcement.isolation.io_cost.disks import DiskAbsent, Host, resolve
from qrm.enforcement.isolation.profile import profile_for
from qrm.enforcement.isolation.rdt.dimension import RdtDimension
from qrm.enforcement.isolation.traffic.dimension import Traffic
from qrm.errors import ConfigError
from qrm.metrics import Metrics
from qrm.pods.model import QosLevel

_FRESH = 1.0
"""Seconds for which a disk's number is not asked again."""


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


def check_classes(config: Config) -> None:
    """Raise ConfigError where a QoS level's profile names a class of traffic that there is not."""
    for level in QosLevel if config.isolation.network != "off" else ():
        name = str(profile_for(level, "", config.profiles).network)
        if name and name not in config.network.classes:
            raise ConfigError(
                f"network.classes: {name} is missing, which the profile {level} names",
                hint=f"write [network.classes.{name}], or profiles.{level}.network = one of "
                f"{', '.join(config.network.classes)}",
            )


def disk_number(config: Config) -> Callable[[str], str | None]:
    """How a device becomes MAJ:MIN; None where there is none of that name, ConfigError where it is no disk.

    What was found holds for a moment: a round asks the same for each container, on the event loop, and a link in /dev
    may take a look at all of udev's database.
    """
    host = Host(sysfs=Path(config.host.sysfs))
    known: dict[str, str | None] = {}
    since = -_FRESH

    def number(device: str) -> str | None:
        nonlocal since
        if time.monotonic() - since > _FRESH:
            known.clear()
            since = time.monotonic()
        if device not in known:
            try:
                known[device] = resolve(device, host)
            except DiskAbsent:
                known[device] = None
        return known[device]

    return number
