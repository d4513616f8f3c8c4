"""The groups of classes: made, compared, put right and removed. Those of others are left alone."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.kernel import KernelError
from qrm.enforcement.isolation.rdt.info import RdtInfo
from qrm.enforcement.isolation.rdt.masks import PREFIX, WAY_OUT, shortage
from qrm.enforcement.isolation.rdt.schemata import differences, format_schemata, parse_schemata, show
from qrm.enforcement.isolation.rdt.tree import Tree


class Groups:
    """The control groups of one mount, and the schemata that those of ours are to have, by name."""

    def __init__(self, tree: Tree, info: RdtInfo, wanted: Mapping[str, Mapping[str, int]]) -> None:
        self._tree = tree
        self._info = info
        self.wanted = wanted

    def path(self, name: str) -> Path:
        """A group's directory; "" is the default group."""
        return self._tree.root / name if name else self._tree.root

    def ours(self) -> list[str]:
        """The groups of ours that there are."""
        return [name for name in self._tree.control_groups() if name.startswith(PREFIX)]

    def check(self) -> None:
        """Raises NotEnforced where there cannot be all of them at once."""
        if short := shortage(self._info, self.wanted, self._tree.control_groups()):
            raise short

    def put_right(self, tally: Counter[str]) -> dict[str, NotEnforced]:
        """Remove the groups that no class needs, make those that are missing, and correct schemata.

        Adds to `tally` what was done; returns what failed, by the group's name.
        """
        failed: dict[str, NotEnforced] = {}
        for name in self.ours():
            if name not in self.wanted:
                with _kept(failed, name):
                    tally["group"] += self._tree.remove(self.path(name))
        for name in self.wanted:
            with _kept(failed, name):
                self.ensure(name, tally)
        return failed

    def ensure(self, name: str, tally: Counter[str]) -> None:
        """Make one group where it is missing, and correct its schemata; reads, and does nothing where all is right.

        Raises:
            NotEnforced: it could not be; with what the kernel says.
        """
        text = self._tree.schemata(self.path(name))
        if text is None:
            self._make(name)
            tally["group"] += 1
            text = self._tree.schemata(self.path(name)) or ""
        if differing := differences(self.wanted[name], parse_schemata(text)):
            old = show({key: parse_schemata(text)[key] for key in differing})
            self._tree.set_schemata(self.path(name), format_schemata(differing), old)
            tally["schemata"] += 1
            self._read_back(name)

    def _make(self, name: str) -> None:
        try:
            self._tree.make(self.path(name))
        except KernelError as error:
            if error.errno == errno.ENOSPC:
                raise NotEnforced(str(error), hint=WAY_OUT) from None
            raise

    def _read_back(self, name: str) -> None:
        now = parse_schemata(self._tree.schemata(self.path(name)) or "")
        if differing := differences(self.wanted[name], now):
            has = show({key: now[key] for key in differing})
            raise NotEnforced(f"{self.path(name)}/schemata has {has} after {show(differing)} was written without error")

    def remove_all(self) -> list[str]:
        """Remove all of ours, one after the other; returns a line for each. Raises KernelError."""
        lines = []
        for name in self.ours():
            held = len(self._tree.tasks(self.path(name)))
            if self._tree.remove(self.path(name)):
                lines.append(f"{self.path(name)} removed, {held} threads are in the default group again")
        return lines


@contextmanager
def _kept(failed: dict[str, NotEnforced], name: str) -> Iterator[None]:
    """Keep what is not enforced and go on."""
    try:
        yield
    except NotEnforced as error:
        failed[name] = error
