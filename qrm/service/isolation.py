"""The dimensions of a node, as its configuration has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from qrm.config import Config
from qrm.enforcement.isolation.dimension import Dimension
from qrm.enforcement.isolation.rdt.dimension import RdtDimension
from qrm.metrics import Metrics


def dimensions(config: Config, metrics: Metrics) -> Sequence[Dimension]:
    """All of them; which are used is for their modes to say."""
    host = config.host
    rdt = RdtDimension(config.rdt, config.profiles, Path(host.proc), Path(host.cgroup))
    metrics.registry.register(rdt.usage)
    return [rdt]


def disk_number(_config: Config) -> Callable[[str], str | None]:
    """How the devices of io.max become MAJ:MIN."""
    return lambda _: None
