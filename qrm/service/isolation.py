"""The dimensions of a node, as its configuration has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qrm.config import Config
from qrm.enforcement.isolation.dimension import Dimension


def dimensions(_config: Config) -> Sequence[Dimension]:
    """All of them; which are used is for their modes to say."""
    return []


def disk_number(_config: Config) -> Callable[[str], str | None]:
    """How the devices of io.max become MAJ:MIN."""
    return lambda _: None
