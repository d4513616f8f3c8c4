"""Which of the files that qrm sets in a container's cgroup this kernel has."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from qrm.enforcement.cgroup import Cgroups
from qrm.enforcement.isolation.knobs import FILES
from qrm.enforcement.isolation.legacy import PLACES
from qrm.topology.attributes import children

_LOOKED_AT = 64
"""Folders below the root that are looked into, at most."""


class Abilities:
    """What is there, looked up when it is first needed and kept once it is known.

    The root of cgroup v2 has none of the files, and a folder below it only those of controllers that are passed on to
    it: on a node without a pod there may be none to see. kubelet makes the pod's folder before the pod.
    """

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self._known: dict[str, frozenset[str]] = {}
        """By controller."""

    def files(self) -> frozenset[str]:
        """The names in FILES that a container's cgroup has, or on v1 a counterpart of, as far as it is known."""
        if set(FILES.values()) - self._known.keys():
            self._look()
        return frozenset().union(*self._known.values())

    def known(self, name: str) -> bool:
        """Whether `files` would have `name` in it if it were there."""
        self.files()
        return FILES[name] in self._known

    def _look(self) -> None:
        root = self._cgroups.root
        if self._cgroups.version == 1:
            there = {name for name, (controller, file) in PLACES.items() if (root / controller / file).exists()}
            self._known = {key: frozenset(each for each in there if FILES[each] == key) for key in FILES.values()}
            return
        controllers = (root / "cgroup.controllers").read_text().split()
        folders = list(islice(_below(root), _LOOKED_AT))
        for key in set(FILES.values()) - self._known.keys():
            names = [name for name, controller in FILES.items() if controller == key]
            found = frozenset(name for name in names if any((folder / name).exists() for folder in folders))
            if found or key not in controllers:
                self._known[key] = found


def _below(root: Path) -> Iterator[Path]:
    """Folders one and two levels below `root`."""
    first = _folders(root)
    yield from first
    for folder in first:
        yield from _folders(folder)


def _folders(folder: Path) -> list[Path]:
    """Those in `folder`, by name; none where it is gone, as cgroups go at any time."""
    return [path for name in children(folder) if (path := folder / name).is_dir()]
