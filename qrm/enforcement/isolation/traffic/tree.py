"""One ifb of ours and the HTB tree on it: compared with what it is to be, and put right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.traffic.messages import ROOT, Counters, Link, Qdisc
from qrm.enforcement.isolation.traffic.plan import MAJOR, POD_MINORS, HtbClass
from qrm.enforcement.isolation.traffic.rtnl import ABSENT, Rtnl, TrafficError

IFB = "ifb"
_HANDLE = MAJOR << 16
_QUEUE = 1000
"""Packets in the ifb's own queue, as Ethernet devices have."""
_FLOWS = 128
"""fq_codel's own default of 1024 takes 70 KB for each class, of which a node has hundreds."""
_TARGET, _INTERVAL = 30_000, 300_000
"""Microseconds. With the default target of 5000, packets that wait for one of 64 KiB (before segmentation) are late
below 100 Mbit/s: two pods that share 100 Mbit/s were measured at 90 together, and at 96 with these."""
_LEAF = "fq_codel"
"""Below a pod's class. HTB's own, a FIFO, fills with what the pod sends too fast, since a veth hides from the sender's
TCP that its packets wait; a ceiling would then mean seconds of delay for all of the pod's connections."""


class Tree:
    """The tree of one direction. `link` and `known` are what was last seen in the kernel or written there."""

    def __init__(self, rtnl: Rtnl, name: str) -> None:
        self.name = name
        self.link: Link | None = None
        self.known: dict[int, HtbClass] = {}
        self._rtnl = rtnl
        self._leaves: set[int] = set()
        """Minors of classes that have their qdisc."""
        self._read = False

    @property
    def index(self) -> int:
        """Of the device; 0 where it is not there."""
        return self.link.index if self.link else 0

    def distrust(self) -> None:
        """Somebody else changed something: read all of it again before the next comparison."""
        self._read = False

    def ensure_device(self, done: Counter[str]) -> bool:
        """Have the ifb, up; whether it is another one than last time. Counts its writes in `done`.

        Raises:
            NotEnforced: It cannot be had.
        """
        found = self._rtnl.link(name=self.name)
        if found is not None and found.kind != IFB:
            raise NotEnforced(f"{self.name} is {found.kind or 'a device'} of somebody else", hint="rename that device")
        if found is None:
            self._rtnl.add_ifb(self.name, _QUEUE)
            done[IFB] += 1
            found = self._rtnl.link(name=self.name)
        elif not found.is_up:
            self._rtnl.set_up(found)
            done[IFB] += 1
        is_new = found is None or found.index != self.index
        self.link = found
        if is_new:
            self.distrust()
        return is_new

    def ensure(self, wanted: Mapping[int, HtbClass], done: Counter[str]) -> None:
        """Have the classes `wanted`, parents first in it, and their qdiscs; counts writes in `done`.

        Classes that are there and not wanted stay: see `remove_others`. `ensure_device` comes first.

        Raises:
            NotEnforced: The kernel refused one.
        """
        link = self._device()
        if not self._read:
            self._look(link, done)
        for minor, each in wanted.items():
            if self.known.get(minor) != each:
                self._put(link, each)
                done["class"] += 1
            if minor in POD_MINORS and minor not in self._leaves:
                self._rtnl.put_fq_codel(link, each.handle, _FLOWS, _TARGET, _INTERVAL)
                self._leaves.add(minor)
                done["qdisc"] += 1

    def remove_others(self, wanted: Mapping[int, HtbClass]) -> int:
        """Remove all classes that are not in `wanted`; returns how many."""
        extra = [minor for minor in self.known if minor not in wanted]
        for minor in sorted(extra, reverse=True):  # pods' before those that they are in
            self.remove(minor)
        return len(extra)

    def remove(self, minor: int) -> None:
        """Remove a class if it is there."""
        if self.known.pop(minor, None) is None or self.link is None:
            return
        self._leaves.discard(minor)
        try:
            self._rtnl.delete_class(self.link, _HANDLE | minor)
        except TrafficError as error:
            self.distrust()
            if error.errno not in ABSENT:
                raise

    def look(self) -> dict[int, tuple[HtbClass, Counters]]:
        """All classes as they are in the kernel now; empty where there is no tree."""
        found = self._rtnl.link(name=self.name)
        if found is None or found.kind != IFB:
            return {}
        classes = self._rtnl.classes(found.index)
        return {minor: (_comparable(made), counted) for minor, (made, counted) in classes.items()}

    def delete(self) -> bool:
        """Remove the device with everything on it; whether there was one."""
        found = self._rtnl.link(name=self.name)
        self.link, self.known, self._leaves, self._read = None, {}, set(), False
        if found is None or found.kind != IFB:
            return False
        self._rtnl.delete_link(found)
        return True

    def _device(self) -> Link:
        if self.link is None:
            raise NotEnforced(f"{self.name} is not there")
        return self.link

    def _look(self, link: Link, done: Counter[str]) -> None:
        """Read all that is on the device, whose root qdisc is made if it is not ours."""
        qdiscs = [each for each in self._rtnl.qdiscs() if each.index == link.index]
        root = next((each for each in qdiscs if each.parent == ROOT), None)
        self.known, self._leaves = {}, set()
        if root is None or (root.kind, root.handle) != ("htb", _HANDLE):
            self._replace(root, link)
            done["qdisc"] += 1
        else:
            self.known = {minor: _comparable(made) for minor, (made, _) in self._rtnl.classes(link.index).items()}
            self._leaves = {each.parent & 0xFFFF for each in qdiscs if each.kind == _LEAF and each.parent != ROOT}
        self._read = True

    def _replace(self, root: Qdisc | None, link: Link) -> None:
        if root is not None and root.handle:  # else it is the kernel's default, which gives way by itself
            self._rtnl.delete_qdisc(link, ROOT)
        self._rtnl.add_htb(link, _HANDLE)

    def _put(self, link: Link, wanted: HtbClass) -> None:
        found = self.known.get(wanted.minor)
        if found is not None and found.parent != wanted.parent:
            self.remove(wanted.minor)
        self._rtnl.put_class(link, wanted, found)
        self.known[wanted.minor] = wanted


def _comparable(found: HtbClass) -> HtbClass:
    """`found` without the priority that only a pod's class has."""
    return found if found.minor in POD_MINORS else replace(found, priority=None)
