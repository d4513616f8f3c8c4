"""Putting a pod's threads where they belong, and finding those that are elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from qrm.enforcement.isolation.dimension import NotEnforced, Sandbox
from qrm.enforcement.isolation.rdt.groups import Groups
from qrm.enforcement.isolation.rdt.masks import PREFIX
from qrm.enforcement.isolation.rdt.members import Members, Processes, inherits
from qrm.enforcement.isolation.rdt.monitor import Monitoring
from qrm.enforcement.isolation.rdt.tree import Tree

log = structlog.get_logger(__name__)

_PASSES = 20
"""Each finds only what was forked meanwhile by threads that had not been moved yet: two or three are usual."""

Held = Mapping[str, frozenset[int]]
"""The threads in each group of ours, by its name."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod that runs: where it belongs, and where its threads are found."""

    sandbox: Sandbox
    group: str
    """The name of its control group; "" is the default one."""
    members: Members
    why_moved: str
    """Why its threads are moved; "" where they inherit the group from their shim."""
    alone: bool
    """Nobody else's processes have the same parent."""

    @property
    def named(self) -> dict[str, str]:
        """For the log."""
        return {"pod": str(self.sandbox.pod), "group": self.group or "default"}


class Placing:
    """The threads of pods in the groups of one mount."""

    def __init__(self, tree: Tree, groups: Groups, monitoring: Monitoring, processes: Processes) -> None:
        self._tree = tree
        self._groups = groups
        self._monitoring = monitoring
        self._processes = processes

    def tenant(self, sandbox: Sandbox, group: str, members: Members, sharing: Mapping[str, str]) -> Tenant:
        """A pod with what follows from who shares its parent; `sharing` as for `inherits`."""
        why_moved = inherits(sandbox.id, group, members, sharing)
        return Tenant(sandbox, group, members, why_moved, alone=not why_moved and len(sharing) == 1)

    def held(self) -> Held:
        """The threads that are in groups of ours now."""
        return {name: self._tree.tasks(self._groups.path(name)) for name in self._groups.ours()}

    def threads(self, tenant: Tenant) -> set[int]:
        """The threads of a pod that are to be in its group."""
        return self._processes.threads(tenant.members, with_parent=not tenant.why_moved)

    def strays(self, tenant: Tenant, threads: set[int], held: Held) -> set[int]:
        """Those of `threads` that are in another group than they should be, or ended before `held` was read.

        In the default group belongs who is in none of ours: other people may have put it into theirs.
        """
        if tenant.group:
            return threads - held.get(tenant.group, frozenset())
        return threads & frozenset().union(*held.values())

    def look(self, tenants: Collection[Tenant]) -> tuple[Held, set[str]]:
        """All of our groups, and the sandboxes of which threads seem to be elsewhere than they should be.

        Only of pods with a group of ours all threads are read. Of the default group's, most of the node as a rule, one
        can be astray only if some group of ours has a thread that belongs to none of the former.
        """
        threads = {tenant.sandbox.id: self.threads(tenant) for tenant in tenants if tenant.group}
        held = self.held()
        suspects = {
            tenant.sandbox.id
            for tenant in tenants
            if tenant.group and self.strays(tenant, threads[tenant.sandbox.id], held)
        }
        intruders = frozenset().union(*held.values()).difference(*threads.values())
        if intruders:
            homes = [self._processes.home_of(thread) for thread in intruders]
            cgroups = {folder for path, _ in homes if path for folder in (path, *path.parents)}
            processes = {process for _, process in homes}
            suspects |= {
                tenant.sandbox.id
                for tenant in tenants
                if not tenant.group and (tenant.members.cgroup in cgroups or tenant.members.parent in processes)
            }
        return held, suspects

    def outside(self, tenant: Tenant) -> set[int]:
        """The threads of a pod that are in another group than they should be now: they were there before and after."""
        strays = self.strays(tenant, self.threads(tenant), self.held())
        return strays & self.threads(tenant) if strays else strays

    def settle(self, tenant: Tenant, tally: Counter[str]) -> bool:
        """Move a pod's threads into its group until there is none outside; whether there was any.

        Adds to `tally` how many. They are in no monitoring group afterwards.

        Raises:
            NotEnforced: the kernel refuses it, or there is no end to it.
        """
        path = self._groups.path(tenant.group)
        moved = self._until_none(path, lambda: self.outside(tenant), tenant)
        tally["tasks"] += moved
        return moved > 0

    def release_parent(self, tenant: Tenant, held: Held, tally: Counter[str]) -> None:
        """A shim that cannot hand down this pod's group must not hand down another of ours. Raises NotEnforced."""
        if tenant.why_moved and tenant.members.shim_of:
            ours = self._processes.threads_of(tenant.members.parent) & frozenset().union(*held.values())
            if ours:
                tally["tasks"] += self._tree.move(self._groups.path(""), ours)

    def watch(self, tenant: Tenant, tally: Counter[str], *, moved: bool) -> None:
        """Put a pod into its monitoring group, which is made where it is missing and there are RMIDs. Never raises.

        Where the pod has a shim to itself and none of its threads was `moved`, the shim and the first process stand for
        all: the others inherit it.
        """
        group, uid = self._groups.path(tenant.group), tenant.sandbox.pod.uid
        if not self._monitoring.name(uid):
            return
        pids = [tenant.sandbox.pid, *([tenant.members.parent] if tenant.alone else [])]
        now = [found for pid in pids if (found := self._processes.groups_of(pid))]
        if any(control != tenant.group for control, _ in now) or not self._monitoring.ensure(group, uid, tally):
            return
        if tenant.alone and not moved and now and all(monitored == self._monitoring.name(uid) for _, monitored in now):
            return
        path = self._monitoring.path(group, uid)

        def unwatched() -> set[int]:
            threads = self._processes.threads(tenant.members, with_parent=tenant.alone)
            out = threads - self._tree.tasks(path)
            return out & self._processes.threads(tenant.members, with_parent=tenant.alone) if out else out

        try:
            tally["monitoring"] += self._until_none(path, unwatched, tenant)
            self._unwatch_parent(tenant, tally)
        except NotEnforced as error:
            log.info("pod is not monitored", **tenant.named, why=str(error))

    def _unwatch_parent(self, tenant: Tenant, tally: Counter[str]) -> None:
        """A shim of several pods must not count what it starts for one of them."""
        parent = tenant.members.parent
        _, monitored = self._processes.groups_of(parent) or ("", "")
        if not tenant.alone and tenant.members.shim_of and monitored.startswith(PREFIX):
            tally["monitoring"] += self._tree.move(self._groups.path(tenant.group), self._processes.threads_of(parent))

    def _until_none(self, path: Path, outside: Callable[[], Iterable[int]], tenant: Tenant) -> int:
        moved, names = 0, set[str]()
        for _ in range(_PASSES):
            threads = sorted(outside())
            if not threads:
                if moved:
                    log.info("threads moved", **tenant.named, path=str(path), threads=moved, names=sorted(names))
                return moved
            names.update(self._processes.names_of(threads))
            moved += self._tree.move(path, threads)
        raise NotEnforced(f"{path}/tasks: threads of {tenant.sandbox.pod} are outside after {_PASSES} passes")
