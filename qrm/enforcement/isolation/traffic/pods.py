"""The pods whose traffic is shaped: their class ids, their classes in both trees, and the filters on their veths."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qrm.config import NetworkSection
from qrm.enforcement.isolation.dimension import NotEnforced, Sandbox
from qrm.enforcement.isolation.traffic import hooks
from qrm.enforcement.isolation.traffic.devices import Devices, NamespaceGone, Veth, find
from qrm.enforcement.isolation.traffic.plan import MAJOR, HtbClass, Trunk, ceilings, free_minor, leaf, most
from qrm.enforcement.isolation.traffic.rtnl import Rtnl, TrafficError
from qrm.enforcement.isolation.traffic.tree import Tree
from qrm.errors import BadRequest

LEFTOVER = "leftover"
"""The cause of repair of what belongs to nobody."""


@dataclass(frozen=True, slots=True)
class Held:
    """What is in force for one pod, as last seen or written."""

    classes: tuple[HtbClass, HtbClass] | None
    """For what it sends and for what it receives, with the same minor; None where nothing of it can be shaped."""
    veths: tuple[Veth, ...] = ()
    made: frozenset[int] = frozenset()
    """Indices of the veths whose clsact is ours."""
    problems: tuple[str, ...] = ()
    """What cannot be enforced as long as nobody changes something."""
    is_checked: bool = False
    """False: the veths have to be compared again."""

    @property
    def indices(self) -> frozenset[int]:
        """Of the veths' host ends."""
        return frozenset(each.host.index for each in self.veths)


class Pods:
    """`held` is by sandbox id."""

    def __init__(self, rtnl: Rtnl, trees: tuple[Tree, Tree], section: NetworkSection, trunk: Trunk) -> None:
        self.held: dict[str, Held] = {}
        self._rtnl = rtnl
        self._trees = trees
        self._section = section
        self._trunk = trunk

    def classes(self, sandbox: Sandbox, minor: int) -> tuple[HtbClass, HtbClass]:
        """What the pod is to have in each tree.

        Raises:
            NotEnforced: Its class of traffic or its annotations cannot be understood.
        """
        name = str(sandbox.profile.network)
        klass = self._section.classes.get(name)
        if klass is None:
            choices = ", ".join(sorted(self._section.classes)) or "none"
            raise NotEnforced(f"network = {name!r} in the pod's profile: not in network.classes, which has {choices}")
        parent = self._trunk.classes[name]
        try:
            limits = ceilings(klass, most(parent), sandbox.annotations)
        except BadRequest as error:
            raise NotEnforced(str(error)) from None
        return leaf(minor, parent, klass, limits.egress), leaf(minor, parent, klass, limits.ingress)

    def leaves(self, position: int) -> Sequence[HtbClass]:
        """All pods' classes in the tree at `position`."""
        return [pod.classes[position] for pod in self.held.values() if pod.classes]

    def distrust(self, changed: frozenset[int] | None) -> None:
        """Compare again the pods with these devices; None stands for all."""
        for id_, pod in self.held.items():
            if changed is None or changed & pod.indices:
                self.held[id_] = replace(pod, is_checked=False)

    def replan(self, trunk: Trunk) -> None:
        """What all pods' classes hang on has other numbers: compare all pods with it."""
        self._trunk = trunk
        self.distrust(None)

    def enforce(self, sandbox: Sandbox, done: Counter[str]) -> None:
        """Have classes and filters of one pod; counts writes in `done`.

        Raises:
            NotEnforced: Not all of it could be put in force; what can be, is.
        """
        devices = find(self._rtnl, sandbox.netns)
        if not devices.veths:
            self.held[sandbox.id] = Held(None, problems=devices.others, is_checked=True)
        else:
            old = self.held.get(sandbox.id)
            classes = self.classes(sandbox, self._minor(sandbox, devices))
            pod = Held(classes, devices.veths, old.made if old else frozenset(), devices.others)
            self.held[sandbox.id] = pod
            for tree, wanted in zip(self._trees, classes, strict=True):
                tree.ensure({wanted.minor: wanted}, done)
            self.held[sandbox.id] = self._hooked(pod, classes[0].handle, done)
        if problems := self.held[sandbox.id].problems:
            raise NotEnforced("; ".join(problems))

    def drop(self, sandbox_id: str) -> int:
        """Remove what is a pod's; returns how many things. Filters first, so that none names a class of another pod.

        Raises:
            NotEnforced: The kernel refused; the rest is for the next round.
        """
        pod = self.held.pop(sandbox_id, None)
        if pod is None or pod.classes is None:
            return 0
        removed = sum(hooks.remove(self._rtnl, veth.host) for veth in pod.veths)
        for tree in self._trees:
            tree.remove(pod.classes[0].minor)
        return removed + len(self._trees)

    def again(self, sandbox: Sandbox, done: Counter[str]) -> str:
        """Enforce what one pod is to have, of which any part may vanish meanwhile; "" or what is not in force."""
        for attempt in range(2):
            try:
                self.enforce(sandbox, done)
            except NamespaceGone:
                done[LEFTOVER] += self.drop(sandbox.id)
            except NotEnforced as error:
                if isinstance(error, TrafficError) and error.errno == errno.ENODEV and attempt == 0:
                    continue  # a veth is gone since we looked, and perhaps the pod
                return str(error)
            break
        return ""

    def _hooked(self, pod: Held, priority: int, done: Counter[str]) -> Held:
        egress, ingress = self._trees
        targets = hooks.Targets(priority, egress.index, ingress.index)
        made, problems = set(), list(pod.problems)
        for veth in pod.veths:
            index = veth.host.index
            try:
                if hooks.ensure(self._rtnl, veth.host, targets, done, made=index in pod.made):
                    made.add(index)
            except hooks.Taken as error:
                problems.append(str(error))
        return replace(pod, made=frozenset(made), problems=tuple(problems), is_checked=True)

    def _minor(self, sandbox: Sandbox, devices: Devices) -> int:
        """The pod's class id: what it has, what its filters say that it had under an earlier process, or a free one."""
        held = self.held.get(sandbox.id)
        if held is not None and held.classes is not None:
            return held.classes[0].minor
        others = {pod.classes[0].minor for pod in self.held.values() if pod.classes}
        for veth in devices.veths:
            found = hooks.minor_of(self._rtnl, veth.host)
            if found is not None and found not in others:
                return found
        free = free_minor(others.union(*(tree.known for tree in self._trees)))
        if free is None:
            raise NotEnforced(f"all class ids below {MAJOR:x}: are taken")
        return free
