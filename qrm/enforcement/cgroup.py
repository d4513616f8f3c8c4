"""What the kernel says a process may run on. Reads cgroup v1, v2 and the two side by side; writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qrm.cpuset import CPUSet, NodeSet
from qrm.errors import ParseError


@dataclass(frozen=True, slots=True)
class KernelCpuset:
    """A cgroup's cpuset as the kernel has it."""

    path: Path
    cpus: CPUSet
    """What was asked for (cpuset.cpus); empty means "as the parent" on cgroup v2."""
    effective: CPUSet
    """What is in force (cpuset.cpus.effective; cpuset.effective_cpus on v1)."""
    mems: NodeSet
    """The memory nodes in force, which the kernel takes from the parent where none are asked for."""


class Cgroups:
    """A reader for one cgroup mount and one /proc."""

    def __init__(self, cgroup: Path, proc: Path) -> None:
        self._root = cgroup
        self._proc = proc
        self._v2 = (cgroup / "cgroup.controllers").exists()

    @property
    def root(self) -> Path:
        """The mount."""
        return self._root

    @property
    def version(self) -> int:
        """2 where the unified hierarchy stands at the mount itself, else 1."""
        return 2 if self._v2 else 1

    def cpuset_of(self, pid: int) -> KernelCpuset | None:
        """The cpuset of process `pid`; None where the process or its cgroup is gone."""
        try:
            lines = (self._proc / str(pid) / "cgroup").read_text().splitlines()
        except OSError:
            return None
        path = self._path(lines)
        return None if path is None else read_cpuset(path, v2=self._v2)

    def folders_of(self, pid: int) -> dict[str, Path]:
        """The cgroup folders of process `pid` by v1 controller, or the one of v2 by ""; empty where it is gone."""
        try:
            lines = (self._proc / str(pid) / "cgroup").read_text().splitlines()
        except OSError:
            return {}
        return self._folders(lines)

    def _path(self, lines: list[str]) -> Path | None:
        return self._folders(lines).get("" if self._v2 else "cpuset")

    def _folders(self, lines: list[str]) -> dict[str, Path]:
        """From /proc/PID/cgroup, lines of `id:controllers:path` (cgroups(7))."""
        folders = {}
        for line in lines:
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if self._v2 and not controllers:
                folders[""] = self._root / path.lstrip("/")
            elif not self._v2:
                folders |= {name: self._root / name / path.lstrip("/") for name in controllers.split(",") if name}
        return folders


def named(path: Path, id_: str) -> Path | None:
    """The folder of the container or sandbox `id_`, of which `path` is the cgroup of a process.

    A process such as systemd may have made cgroups of its own below its container's. None where `path` is somebody
    else's, so that the process id must have been given to another.
    """
    return next((each for each in (path, *path.parents) if id_ in each.name), None)


def read_cpuset(path: Path, *, v2: bool) -> KernelCpuset | None:
    """The cpuset of the cgroup at `path`; None where it is gone or has no cpuset controller."""
    try:
        cpus = CPUSet.parse((path / "cpuset.cpus").read_text())
        effective = CPUSet.parse((path / ("cpuset.cpus.effective" if v2 else "cpuset.effective_cpus")).read_text())
        mems = NodeSet.parse((path / ("cpuset.mems.effective" if v2 else "cpuset.mems")).read_text())
    except (OSError, ParseError):
        return None
    return KernelCpuset(path, cpus, effective, mems)
