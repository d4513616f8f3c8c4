"""The dimension `network`: pods' traffic in both directions, by class of traffic and by pod."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import structlog

from qrm.config import NetworkSection
from qrm.enforcement.isolation.dimension import Fact, NotEnforced, Probe, Repairs, Sandbox
from qrm.enforcement.isolation.traffic import hooks, report
from qrm.enforcement.isolation.traffic.devices import find
from qrm.enforcement.isolation.traffic.messages import Link
from qrm.enforcement.isolation.traffic.parts import missing
from qrm.enforcement.isolation.traffic.plan import Trunk, trunk
from qrm.enforcement.isolation.traffic.pods import LEFTOVER, Pods
from qrm.enforcement.isolation.traffic.rtnl import Rtnl
from qrm.enforcement.isolation.traffic.tree import Tree
from qrm.enforcement.isolation.traffic.uplink import node_rate
from qrm.enforcement.isolation.traffic.watch import Watch
from qrm.errors import QrmError

log = structlog.get_logger(__name__)

EGRESS, INGRESS = "qrm-egress", "qrm-ingress"
"""The two ifbs."""


class Kernel:
    """The sockets and what is reached by them, in the network namespace of the thread that makes it."""

    def __init__(self) -> None:
        try:
            self.rtnl = Rtnl()
            try:
                self.watch = Watch(self.rtnl.port)  # before anything is read, so that no change is missed
            except OSError:
                self.rtnl.close()  # it is tried again with each pod
                raise
        except OSError as error:
            raise NotEnforced(f"netlink: {error.strerror}", hint="qrm needs CAP_NET_ADMIN") from None
        self.trees = Tree(self.rtnl, EGRESS), Tree(self.rtnl, INGRESS)

    def close(self) -> None:
        """Give the sockets back."""
        self.rtnl.close()
        self.watch.close()

    def hooked(self, without: Collection[int]) -> list[Link]:
        """All devices that have a clsact, of whomever, but those with these indices."""
        names = dict(socket.if_nameindex())
        indices = {each.index for each in self.rtnl.qdiscs() if each.kind == hooks.CLSACT} & names.keys()
        return [Link(index, names[index]) for index in sorted(indices.difference(without))]


class Traffic:
    """All calls come from one thread, in the host's network namespace."""

    name = "network"

    def __init__(self, section: NetworkSection, *, sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._section = section
        self._sysfs, self._proc = sysfs, proc
        self._kernel: Kernel | None = None
        self._trunk: Trunk | None = None
        self._pods: Pods | None = None
        self._mended: Counter[str] = Counter()
        """What `admit` put right of the node's, for the next round to count."""
        self._swept = False

    @property
    def writes(self) -> int:
        """Requests that changed something in the kernel, since the beginning."""
        return self._kernel.rtnl.writes if self._kernel else 0

    def close(self) -> None:
        """Give the sockets back; what is in force stays, and is found again."""
        if self._kernel:
            self._kernel.close()
        self._kernel = self._pods = None

    def probe(self) -> Probe:
        """As the protocol says."""
        try:
            rate = node_rate(self._section, self._sysfs, self._proc)
            trunk(self._section, rate)
        except QrmError as error:
            return Probe(False, str(error))
        lacking = missing(self._proc, os.uname().release)
        if lacking:
            why = f"the kernel lacks {', '.join(lacking)}: install all of its modules, such as linux-modules-extra"
            return Probe(False, why)
        return Probe(True, f"{report.mbit(rate)} each way; not for pods with the host's network, nor devices but veths")

    def prepare(self) -> None:
        """As the protocol says."""
        self._ready(Counter())

    def admit(self, sandbox: Sandbox) -> None:
        """As the protocol says."""
        if sandbox.profile.network:
            _, pods = self._ready(self._mended if self._pods else Counter())
            pods.enforce(sandbox, Counter())

    def forget(self, sandbox_id: str) -> None:
        """As the protocol says."""
        if self._pods is None:
            return
        try:
            self._pods.drop(sandbox_id)
        except NotEnforced as error:
            self._swept = False
            log.warning("traffic classes stay until the next round", sandbox=sandbox_id, error=str(error))

    def repair(self, sandboxes: Sequence[Sandbox]) -> Repairs:
        """As the protocol says. In the steady state it costs two requests, for the ifbs."""
        done, self._mended = self._mended, Counter()
        failed: dict[str, str] = {}
        try:
            self._round({each.id: each for each in sandboxes if each.profile.network}, done, failed)
        except NotEnforced as error:
            failed[""] = str(error)
        return Repairs({cause: count for cause, count in done.items() if count}, failed)

    def explain(self, sandbox: Sandbox) -> Sequence[Fact]:
        """As the protocol says."""
        name = str(sandbox.profile.network)
        if not name:
            return []
        if self._kernel is None or self._pods is None:
            return [Fact("network class", name, "")]
        try:
            held = self._pods.held.get(sandbox.id)
            wanted = self._pods.classes(sandbox, held.classes[0].minor if held and held.classes else 0)
            devices = find(self._kernel.rtnl, sandbox.netns)
            seen = [(tree.name, tree.look()) for tree in self._kernel.trees]
            return report.facts(self._kernel.rtnl, name, wanted, seen, devices)
        except NotEnforced as error:
            return [Fact("network class", name, f"not enforced: {error}")]

    def reset(self) -> Sequence[str]:
        """As the protocol says: filters first, since a packet that is redirected to a deleted device is lost."""
        kernel = self._open()
        undone, refused = [], []
        for link in kernel.hooked(()):
            try:
                if hooks.remove(kernel.rtnl, link):
                    undone.append(f"{link.name}: filters removed")
            except NotEnforced as error:
                refused.append(str(error))
        if refused:
            raise NotEnforced("; ".join(refused))
        undone += [f"{tree.name}: removed" for tree in kernel.trees if tree.delete()]
        self._pods, self._swept = None, False
        return undone

    def _open(self) -> Kernel:
        if self._kernel is None:
            self._kernel = Kernel()
        return self._kernel

    def _ready(self, done: Counter[str]) -> tuple[Kernel, Pods]:
        """Have what is the node's, and know what others have changed; counts writes in `done`."""
        kernel = self._open()
        if self._trunk is None:
            try:
                self._trunk = trunk(self._section, node_rate(self._section, self._sysfs, self._proc))
            except QrmError as error:
                raise NotEnforced(str(error)) from None
        pods = self._pods or Pods(kernel.rtnl, kernel.trees, self._section, self._trunk)
        changed = kernel.watch.changed()
        pods.distrust(changed)
        for tree in kernel.trees:
            if changed is None or tree.index in changed:
                tree.distrust()
            if tree.ensure_device(done):
                pods.distrust(None)  # their filters redirect to a device that is gone
            tree.ensure({each.minor: each for each in self._trunk.all()}, done)
        self._pods = pods
        return kernel, pods

    def _follow_rate(self) -> None:
        """The uplink may have another speed than when qrm looked first, as a bond with another member has.

        Where none can be told now, or the classes do not fit into it, all stays as it is.
        """
        if self._trunk is None or self._pods is None:
            return
        try:
            now = trunk(self._section, node_rate(self._section, self._sysfs, self._proc))
        except QrmError:
            return
        if now != self._trunk:
            log.info("the node has another rate", now=report.mbit(now.root.ceil * 8))
            self._trunk = now
            self._pods.replan(now)

    def _round(self, wanted: Mapping[str, Sandbox], done: Counter[str], failed: dict[str, str]) -> None:
        self._follow_rate()
        kernel, pods = self._ready(done)
        for gone in pods.held.keys() - wanted.keys():
            done[LEFTOVER] += pods.drop(gone)
        present = {index for index, _ in socket.if_nameindex()}
        for id_, sandbox in wanted.items():
            held = pods.held.get(id_)
            if held is not None and held.is_checked and held.indices <= present:
                why = "; ".join(held.problems)
            else:
                why = pods.again(sandbox, done)
            if why:
                failed[id_] = why
        self._tidy(kernel, pods, done)

    def _tidy(self, kernel: Kernel, pods: Pods, done: Counter[str]) -> None:
        """Have the classes of all pods and no others; after a start also no filters of pods that are not there."""
        trunk = self._trunk.all() if self._trunk else ()
        for position, tree in enumerate(kernel.trees):
            wanted = {each.minor: each for each in (*trunk, *pods.leaves(position))}
            tree.ensure(wanted, done)
            done[LEFTOVER] += tree.remove_others(wanted)
        if not self._swept:
            held = {index for pod in pods.held.values() for index in pod.indices}
            done[LEFTOVER] += sum(hooks.remove(kernel.rtnl, link) for link in kernel.hooked(held))
            self._swept = True
