"""Monitoring groups, one for each pod: `qrm-<pod uid>` below the pod's control group, as long as there are RMIDs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import structlog

from qrm.enforcement.isolation.kernel import KernelError
from qrm.enforcement.isolation.rdt.info import RdtInfo
from qrm.enforcement.isolation.rdt.masks import PREFIX
from qrm.enforcement.isolation.rdt.tree import MON_GROUPS, Tree
from qrm.topology.attributes import children, read_text

log = structlog.get_logger(__name__)

_DOMAIN = re.compile(r"mon_L3_(\d+)", re.ASCII)
"""One directory for each L3 cache; what sub-NUMA clustering puts below is summed up in it (resctrl.rst)."""
_NAME = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the hardware counted for one pod at one L3 cache."""

    domain: int
    """The cache's id."""
    event: str
    """llc_occupancy (bytes now), mbm_total_bytes or mbm_local_bytes (bytes so far)."""
    value: int | None
    """None: the kernel has no number; it says `Unavailable`, `Unassigned` or `Error`."""
    said: str
    """The file's text."""


class Monitoring:
    """The monitoring groups of one mount."""

    def __init__(self, tree: Tree, info: RdtInfo, *, on: bool) -> None:
        self._tree = tree
        self._rmids = info.rmids if on else 0
        self._features = info.features
        self._left = 0

    def name(self, uid: str) -> str:
        """The name of a pod's group; "" where there is to be none."""
        return f"{PREFIX}{uid}" if self._rmids and _NAME.fullmatch(uid) else ""

    def path(self, group: Path, uid: str) -> Path:
        """The directory of a pod's group."""
        return group.joinpath(MON_GROUPS, self.name(uid))

    def recount(self) -> None:
        """See how many RMIDs nobody has; every control group has one too."""
        if self._rmids:
            groups = [self._tree.root, *(self._tree.root / name for name in self._tree.control_groups())]
            self._left = self._rmids - sum(1 + len(self._tree.monitoring_groups(group)) for group in groups)

    def ensure(self, group: Path, uid: str, tally: Counter[str]) -> bool:
        """Whether the pod has its group, which is made where it is missing; adds that to `tally`.

        A pod goes without where RMIDs are out by the last `recount`, so that nothing is tried in vain each round, and
        where the kernel refuses: an RMID is busy until the cache has forgotten who had it.
        """
        if not self.name(uid):
            return False
        if self.path(group, uid).is_dir():
            return True
        if self._left <= 0:
            return False
        try:
            self._tree.make(self.path(group, uid))
        except KernelError as error:
            log.info("pod is not monitored", pod=uid, why=str(error))
            return False
        self._left -= 1
        tally["monitoring"] += 1
        return True

    def sweep(self, wanted: Collection[Path]) -> int:
        """Remove all of ours that are not in `wanted`; returns how many. Raises KernelError."""
        roots = [self._tree.root]
        roots += [self._tree.root / name for name in self._tree.control_groups() if name.startswith(PREFIX)]
        found = [
            group.joinpath(MON_GROUPS, name)
            for group in roots
            for name in self._tree.monitoring_groups(group)
            if name.startswith(PREFIX)
        ]
        return sum(self._tree.remove(path) for path in found if path not in wanted)

    def read(self, group: Path, uid: str) -> tuple[Reading, ...]:
        """What was counted for a pod; nothing where it is not monitored."""
        if not self.name(uid):
            return ()
        data = self.path(group, uid) / "mon_data"
        readings = []
        for name in children(data):
            if match := _DOMAIN.fullmatch(name):
                for event in self._features:
                    if (said := read_text(f"{data}/{name}/{event}")) is not None:
                        value = int(said) if said.isascii() and said.isdecimal() else None
                        readings.append(Reading(int(match[1]), event, value, said))
        return tuple(readings)
