"""RDT as one of the dimensions: pods in the groups of their classes, and what is put right when they are not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from qrm.config import Profile, RdtSection
from qrm.enforcement.isolation.dimension import Fact, NotEnforced, Probe, Repairs, Sandbox
from qrm.enforcement.isolation.rdt.groups import Groups
from qrm.enforcement.isolation.rdt.info import RdtInfo, read_info
from qrm.enforcement.isolation.rdt.masks import PREFIX, plan, used_classes
from qrm.enforcement.isolation.rdt.members import Members, Processes
from qrm.enforcement.isolation.rdt.monitor import Monitoring
from qrm.enforcement.isolation.rdt.placing import Placing, Tenant
from qrm.enforcement.isolation.rdt.telling import DEFAULT, Node, facts, found
from qrm.enforcement.isolation.rdt.tree import Tree
from qrm.enforcement.isolation.rdt.usage import Usage

log = structlog.get_logger(__name__)


class RdtDimension:
    """The Dimension of cache ways and memory bandwidth.

    Args:
        section: The classes. Each that sets anything and that a profile names gets a group.
        profiles: Those of the configuration, by name.
        proc: Where proc is mounted; it also tells where resctrl is.
        cgroup: Where cgroups are mounted.
        tree: Makes what touches the mount at a path.
    """

    name = "rdt"

    def __init__(
        self,
        section: RdtSection,
        profiles: Mapping[str, Profile],
        proc: Path,
        cgroup: Path,
        tree: Callable[[Path], Tree] = Tree,
    ) -> None:
        self._classes = used_classes(section.classes, profiles)
        self._monitoring = section.monitoring
        self._proc = proc
        self._tree = tree
        self._processes = Processes(proc, cgroup)
        self._node: Node | None = None
        self.usage = Usage()
        """To be registered with the metrics."""
        self._known: dict[str, Tenant] = {}
        """The pods that were found running last, by sandbox id."""

    def probe(self) -> Probe:
        """Whether resctrl is mounted and can give all classes at once."""
        try:
            node = self._read()
            node.groups.check()
        except NotEnforced as error:
            return Probe(usable=False, why=str(error))
        info = node.info
        if not info.writable:
            return Probe(usable=False, why=f"{info.root} is mounted read-only")
        return Probe(usable=True, why=found(node))

    def prepare(self) -> None:
        """Make the classes' groups, and remove those of ours that no class needs any more."""
        node = self._node = self._read()
        node.groups.check()
        for error in node.groups.put_right(Counter()).values():
            raise error

    def admit(self, sandbox: Sandbox) -> None:
        """Put the pod's shim, and what there is of the pod, into its group, from which the containers inherit it."""
        if self._node is None:
            self.prepare()
        node = self._node or self._read()
        group = self._group(node, sandbox)
        if group:
            node.groups.ensure(group, Counter())
        members = self._processes.find(sandbox)
        if members is None:
            if not group:
                return
            told = f"its process {sandbox.pid} is gone" if sandbox.pid else "the runtime does not tell its process"
            raise NotEnforced(f"{sandbox.pod} cannot be put into {node.groups.path(group)}: {told}")
        tenant = self._tenant(node, sandbox, group, members)
        self._known[sandbox.id] = tenant
        moved = node.placing.settle(tenant, Counter())
        node.placing.release_parent(tenant, node.placing.held(), Counter())
        node.monitoring.recount()
        node.placing.watch(tenant, Counter(), moved=moved)

    def started(self, sandbox: Sandbox) -> None:
        """A container of the pod has started: move it, where it could not inherit the group. Raises NotEnforced."""
        known = self._known.get(sandbox.id)
        if known is None or known.why_moved:
            self.admit(sandbox)

    def forget(self, sandbox_id: str) -> None:
        """Remove the pod's monitoring group, unless it has another sandbox."""
        gone, node = self._known.pop(sandbox_id, None), self._node
        if gone is None or node is None:
            return
        uid = gone.sandbox.pod.uid
        if node.monitoring.name(uid) and all(each.sandbox.pod.uid != uid for each in self._known.values()):
            try:
                node.tree.remove(node.monitoring.path(node.groups.path(gone.group), uid))
            except NotEnforced as error:
                log.warning("monitoring group is left", **gone.named, why=str(error))

    def repair(self, sandboxes: Sequence[Sandbox]) -> Repairs:
        """Compare groups, schemata and every pod's threads, and put right what differs."""
        tally: Counter[str] = Counter()
        try:
            node = self._node = self._read()
            broken = node.groups.put_right(tally)
        except NotEnforced as error:
            return Repairs(failed={"": str(error)})
        failed = {"": "; ".join(map(str, broken.values()))} if broken else {}
        self._known = {each.sandbox.id: each for each in self._survey(node, sandboxes, failed)}
        try:
            moved = self._repair_threads(node, tally, failed, broken)
            self._repair_monitoring(node, tally, moved)
        except NotEnforced as error:
            failed[""] = str(error)
        self.usage.update(
            {
                each.sandbox.pod: node.monitoring.read(node.groups.path(each.group), each.sandbox.pod.uid)
                for each in self._known.values()
            }
        )
        return Repairs(dict(+tally), failed)

    def explain(self, sandbox: Sandbox) -> Sequence[Fact]:
        """Group, schemata, how the pod's threads come to be there and how many are, and the monitoring group."""
        try:
            node = self._read()
            group = self._group(node, sandbox)
            members = self._processes.find(sandbox)
            tenant = None if members is None else self._tenant(node, sandbox, group, members)
            return facts(node, self._processes, tenant, sandbox, group)
        except NotEnforced as error:
            return [Fact("rdt group", str(sandbox.profile.rdt) or DEFAULT, str(error))]

    def reset(self) -> Sequence[str]:
        """Remove all groups of ours; the kernel puts their threads into the default group."""
        try:
            info = read_info(self._proc)
        except NotEnforced:
            return []
        node = self._parts(info, {})
        removed = node.monitoring.sweep(())
        lines = [f"{removed} monitoring groups removed from {info.root}"] if removed else []
        return lines + node.groups.remove_all()

    def _read(self) -> Node:
        """The mount as it is now. Raises NotEnforced where there is none, or where it cannot give a class."""
        info = read_info(self._proc)
        return self._parts(info, plan(self._classes, info))

    def _parts(self, info: RdtInfo, wanted: Mapping[str, Mapping[str, int]]) -> Node:
        tree = self._tree(info.root)
        groups = Groups(tree, info, wanted)
        monitoring = Monitoring(tree, info, on=self._monitoring)
        return Node(info, tree, groups, monitoring, Placing(tree, groups, monitoring, self._processes))

    def _group(self, node: Node, sandbox: Sandbox) -> str:
        """The name of the group that a pod belongs to; "" is the default one. Raises NotEnforced."""
        name = str(sandbox.profile.rdt)
        if name and name not in self._classes:
            choices = ", ".join(self._classes) or "none"
            raise NotEnforced(f"no profile has the class {name!r} of [rdt.classes]", hint=f"there are: {choices}")
        return f"{PREFIX}{name}" if f"{PREFIX}{name}" in node.groups.wanted else ""

    def _tenant(self, node: Node, sandbox: Sandbox, group: str, members: Members) -> Tenant:
        sharing = {
            known.sandbox.id: known.group for known in self._known.values() if known.members.parent == members.parent
        }
        return node.placing.tenant(sandbox, group, members, sharing | {sandbox.id: group})

    def _survey(self, node: Node, sandboxes: Sequence[Sandbox], failed: dict[str, str]) -> list[Tenant]:
        """Where the pods' threads are to be found; one that is gone is left out."""
        found: list[tuple[Sandbox, str, Members]] = []
        by_parent: dict[int, dict[str, str]] = defaultdict(dict)
        for sandbox in sandboxes:
            try:
                group = self._group(node, sandbox)
            except NotEnforced as error:
                failed[sandbox.id] = str(error)
                continue
            known = self._known.get(sandbox.id)
            members = self._processes.find(sandbox, known.members if known else None)
            if members is not None:
                found.append((sandbox, group, members))
                by_parent[members.parent][sandbox.id] = group
            elif group and not sandbox.pid:
                failed[sandbox.id] = f"the runtime does not tell its process: not put into {node.groups.path(group)}"
        return [node.placing.tenant(*each, by_parent[each[2].parent]) for each in found]

    def _repair_threads(
        self, node: Node, tally: Counter[str], failed: dict[str, str], broken: Mapping[str, NotEnforced]
    ) -> set[str]:
        """The sandboxes of which threads were moved.

        Each group is read once for all pods; a pod of which something seems to be elsewhere is looked at again.
        """
        moved = set()
        held, suspects = node.placing.look(self._known.values())
        for sandbox_id, tenant in self._known.items():
            if tenant.group in broken:
                failed[sandbox_id] = str(broken[tenant.group])
                continue
            try:
                if sandbox_id in suspects and node.placing.settle(tenant, tally):
                    moved.add(sandbox_id)
                node.placing.release_parent(tenant, held, tally)
            except NotEnforced as error:
                failed[sandbox_id] = str(error)
        return moved

    def _repair_monitoring(self, node: Node, tally: Counter[str], moved: set[str]) -> None:
        name, groups = node.monitoring.path, node.groups
        wanted = {name(groups.path(each.group), each.sandbox.pod.uid) for each in self._known.values()}
        tally["monitoring"] += node.monitoring.sweep(wanted)
        node.monitoring.recount()
        for tenant in self._known.values():
            node.placing.watch(tenant, tally, moved=tenant.sandbox.id in moved)
