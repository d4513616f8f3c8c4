"""Which threads a pod consists of, and through which process its containers come to be where they belong.

A process is born in the resctrl group of the one that forks it. Where a pod has a containerd shim of its own, all its
containers and all that is exec'd into them descend from that shim: with the shim in a group, nothing of the pod ever
runs outside. A shim is the parent of the pod's first process, and names the sandbox in its command line (`-id`,
containerd runtime/v2). With other parents (conmon, which is one for each container, or a shim of several pods that are
not of the same class) the threads are moved once they are there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from qrm.enforcement.cgroup import Cgroups, named
from qrm.enforcement.isolation.dimension import Sandbox
from qrm.topology.attributes import read_text

_SHIM = "containerd-shim"
"""How the names of all containerd shims begin."""
_LEAF_LINKS = 2
"""A cgroup's directory has one link for itself, one for its name, and one for each cgroup below (kernfs)."""


@dataclass(frozen=True, slots=True)
class Members:
    """Where a sandbox's threads are found."""

    parent: int
    """The parent of the sandbox's first process."""
    shim_of: str
    """The sandbox id in the parent's command line; "" where the parent is no shim."""
    cgroup: Path
    """With those below it, it holds all of the pod's processes: the pod's own, or else the sandbox's."""
    started: str = ""
    """When the sandbox's first process started, in the kernel's ticks."""


def inherits(sandbox: str, group: str, members: Members, sharing: Mapping[str, str]) -> str:
    """Why the parent cannot be in `group` for this sandbox, to hand it down; "" where it can. Pure.

    `sharing` has the group of each sandbox with the same parent, by id, this one included.
    """
    if not members.shim_of:
        return f"its parent {members.parent} is no containerd shim"
    if members.shim_of != sandbox and members.shim_of not in sharing:
        return f"its shim {members.parent} is that of the sandbox {members.shim_of[:13]}, which qrm does not know"
    if others := sorted(each[:13] for each, has in sharing.items() if has != group):
        return f"its shim {members.parent} serves pods of other classes: {', '.join(others)}"
    return ""


class Processes:
    """A reader of /proc and of cgroups."""

    def __init__(self, proc: Path, cgroup: Path) -> None:
        self._proc = proc
        self._cgroups = Cgroups(cgroup, proc)
        self._threads = "cgroup.threads" if self._cgroups.version == 2 else "tasks"

    def find(self, sandbox: Sandbox, last: Members | None = None) -> Members | None:
        """Where the threads of a sandbox are; None where its first process is gone, or is another's by now.

        `last` is what was found before. It holds as long as that process lives and has the same parent: a process is
        given another only when the first has ended, and one that got its id started at another time.
        """
        parent, started = self._birth(sandbox.pid)
        if last is not None and started and (last.parent, last.started) == (parent, started):
            return last
        path = self._cgroups.folders_of(sandbox.pid).get("" if self._cgroups.version == 2 else "cpuset")
        if path is None or parent is None:
            return None
        own = named(path, sandbox.id)
        if own is None:
            return None
        uid = sandbox.pod.uid
        of_pod = any(form in own.parent.name for form in (uid, uid.replace("-", "_"))) if uid else False
        return Members(parent, self._shim_of(parent), own.parent if of_pod else own, started)

    def threads(self, members: Members, *, with_parent: bool) -> set[int]:
        """The ids of all threads that there are now."""
        found = self.threads_of(members.parent) if with_parent else set()
        for directory in _and_below(members.cgroup):
            found.update(map(int, (read_text(f"{directory}/{self._threads}") or "").split()))
        return found

    def home_of(self, thread: int) -> tuple[Path | None, int]:
        """The cgroup and the process of one thread; None and 0 where it has ended."""
        status = (read_text(f"{self._proc}/{thread}/status") or "").splitlines()
        process = next((int(line.split()[1]) for line in status if line.startswith("Tgid:")), 0)
        return self._cgroups.folders_of(thread).get("" if self._cgroups.version == 2 else "cpuset"), process

    def threads_of(self, pid: int) -> set[int]:
        """The ids of one process's threads; none where it is gone."""
        try:
            return set(map(int, os.listdir(f"{self._proc}/{pid}/task")))  # noqa: PTH208 - names are wanted
        except OSError:
            return set()

    def names_of(self, threads: Iterable[int]) -> list[str]:
        """What threads are called, each name once; without those that have ended."""
        names = {(read_text(self._proc / str(thread) / "comm") or "").strip() for thread in threads}
        return sorted(names - {""})

    def groups_of(self, pid: int) -> tuple[str, str] | None:
        r"""A process's control group ("" for the default one) and monitoring group ("" for none).

        From /proc/PID/cpu_resctrl_groups (proc_resctrl_show in the kernel's resctrl), such as "res:/\nmon:x"; None
        where the process is gone or the kernel has no such file.
        """
        text = read_text(f"{self._proc}/{pid}/cpu_resctrl_groups")
        found = dict(line.split(":", 1) for line in (text or "").splitlines() if ":" in line)
        return (found["res"].strip("/"), found["mon"].strip("/")) if {"res", "mon"} <= found.keys() else None

    def _birth(self, pid: int) -> tuple[int | None, str]:
        """A process's parent and starttime; None and "" where it is gone.

        From /proc/PID/stat, where the name in parentheses may hold anything (proc_pid_stat(5), fields 4 and 22).
        """
        fields = (read_text(f"{self._proc}/{pid}/stat") or "").rpartition(")")[2].split()
        return (int(fields[1]), fields[19]) if len(fields) > 19 and pid else (None, "")

    def _shim_of(self, pid: int) -> str:
        words = (read_text(self._proc / str(pid) / "cmdline") or "").split("\0")
        if not Path(words[0]).name.startswith(_SHIM):
            return ""
        return dict(pairwise(words)).get("-id", "")


def _and_below(directory: Path) -> Iterator[Path]:
    """A cgroup and all cgroups below it."""
    yield directory
    try:
        if directory.stat().st_nlink == _LEAF_LINKS:
            return
        with os.scandir(directory) as entries:
            below = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for each in below:
        yield from _and_below(each)
