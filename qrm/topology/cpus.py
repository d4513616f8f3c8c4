"""How online CPUs are grouped into cores, dies, L3 domains and sockets.

Sources: Documentation/admin-guide/cputopology.rst, Documentation/ABI/stable/sysfs-devices-system-cpu (topology/) and
Documentation/ABI/testing/sysfs-devices-system-cpu (cache/).

The kernel says of every CPU whom it shares a core, die, cache and package with. Those lists are symmetrical, so one
member of each group is asked and its answer holds for all: a machine of 1024 CPUs takes hundreds of reads, not tens of
thousands, and a file that is missing for one CPU costs nothing where another one names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from qrm.cpuset import CPUSet
from qrm.topology.attributes import numbered, read_id, read_number, read_set, read_text
from qrm.topology.machine import CPU


def read_cpus(root: Path, online: CPUSet, node_of: Mapping[int, int]) -> dict[int, CPU]:
    """The online CPUs, ascending.

    Cores, dies and L3 domains never cross a socket: where a hypervisor says that they do, they are cut there. CPUs of
    a socket for which no die or no L3 cache is named are one die or one L3 domain together; CPUs for which no socket
    is named are one socket together; a CPU for which no core is named is a core of its own.

    Args:
        root: The directory of the `cpuN` directories.
        online: The CPUs to describe.
        node_of: The NUMA node of each of them.
    """
    tree = _CpuTree(root)
    cpus: dict[int, CPU] = {}
    for socket, members in _sockets(tree, online).items():
        cores, _ = _partition(members, tree.core)
        dies, no_die = _partition(members, tree.die)
        caches, no_cache = _partition(members, tree.l3)
        for cpu in members:
            siblings = cores[cpu].members if cpu in cores else CPUSet([cpu])
            cache = caches.get(cpu, no_cache)
            cpus[cpu] = CPU(
                id=cpu,
                core=_lowest(siblings),
                siblings=siblings,
                socket=socket,
                die=_lowest(dies.get(cpu, no_die).members),
                l3=_lowest(cache.members),
                l3_id=cache.id,
                node=node_of[cpu],
            )
    return dict(sorted(cpus.items()))


@dataclass(frozen=True, slots=True)
class _Group:
    """CPUs that share something, and the kernel's id of what they share where it has one."""

    members: CPUSet
    id: int | None = None


@dataclass(frozen=True, slots=True)
class _CpuTree:
    """What the files of one CPU say about the groups that it is in; None where they say nothing."""

    root: Path

    def socket(self, cpu: int) -> _Group | None:
        number = read_id(self._topology(cpu) / "physical_package_id")
        # The list alone says nothing: without an id its default is just the CPU itself (cputopology.rst).
        if number is None:
            return None
        # The list saves asking the others, no more: the id alone tells who is in the same package.
        return _Group(self._listed(cpu, "package_cpus_list") or CPUSet(), number)

    def die(self, cpu: int) -> _Group | None:
        # The same default: on older kernels every CPU of a machine without dies has a die of its own by the list.
        if read_id(self._topology(cpu) / "die_id") is None:
            return None
        members = self._listed(cpu, "die_cpus_list")
        return _Group(members) if members else None

    def core(self, cpu: int) -> _Group | None:
        # core_id is no substitute: it is unique only within its package, on some machines only within its die.
        members = self._listed(cpu, "core_cpus_list", "thread_siblings_list")
        return _Group(members) if members else None

    def l3(self, cpu: int) -> _Group | None:
        caches = self.root / f"cpu{cpu}/cache"
        # The largest cache nearly always comes last, so it is looked for from there; but N is not the level.
        for index in reversed(numbered(caches, "index")):
            cache = caches / f"index{index}"
            if read_number(cache / "level") == 3 and read_text(cache / "type") != "Instruction":
                members = read_set(cache / "shared_cpu_list", CPUSet)
                return _Group(members, read_id(cache / "id")) if members else None
        return None

    def _topology(self, cpu: int) -> Path:
        return self.root / f"cpu{cpu}/topology"

    def _listed(self, cpu: int, *names: str) -> CPUSet | None:
        """The first of `names` that can be read: newer kernels renamed lists and kept the old names, too."""
        lists = (read_set(self._topology(cpu) / name, CPUSet) for name in names)
        return next((members for members in lists if members), None)


def _partition(cpus: CPUSet, ask: Callable[[int], _Group | None]) -> tuple[dict[int, _Group], _Group]:
    """Cut `cpus` into groups by what `ask` says of one member of each.

    Returns:
        Each CPU's group, without those that no answer names, and the group of those.
    """
    groups: dict[int, _Group] = {}
    left = cpus
    for cpu in cpus:
        if cpu in left and (answer := ask(cpu)) is not None:
            group = _Group((answer.members | CPUSet([cpu])) & left, answer.id)
            groups.update(dict.fromkeys(group.members, group))
            left -= group.members
    return groups, _Group(left)


def _sockets(tree: _CpuTree, online: CPUSet) -> dict[int, CPUSet]:
    """Socket id to its CPUs: the kernel's physical_package_id; where it has none, the first number that is free."""
    groups, nowhere = _partition(online, tree.socket)
    ids = {cpu: group.id for cpu, group in groups.items() if group.id is not None}
    ids |= dict.fromkeys(nowhere.members, max(ids.values(), default=-1) + 1)
    members: dict[int, list[int]] = {}
    for cpu in online:
        members.setdefault(ids[cpu], []).append(cpu)
    return {socket: CPUSet(cpus) for socket, cpus in members.items()}


def _lowest(cpus: CPUSet) -> int:
    return next(iter(cpus))
