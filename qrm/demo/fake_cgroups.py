"""The kernel's side of the fake runtime: a cgroup v2 tree and /proc/PID/cgroup as real files in ordinary folders.

Values are what runc 1.1 would have written; files that it would not touch have the kernel's defaults.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from qrm.cpuset import CPUSet, NodeSet
from qrm.errors import ParseError
from qrm.units import DEFAULT_PERIOD, MAX_SHARES, MIN_SHARES
from qrm.wire import cri_pb2

KERNEL_DEFAULTS = {
    "cgroup.controllers": "cpuset cpu io memory pids",
    "cgroup.procs": "",
    "cpu.idle": "0",
    "cpu.max": f"max {DEFAULT_PERIOD}",
    "cpu.max.burst": "0",
    "cpu.weight": "100",
    "cpuset.cpus": "",
    "cpuset.mems": "",
    "io.max": "",
    "io.weight": "default 100",
    "memory.high": "max",
    "memory.low": "0",
    "memory.max": "max",
    "memory.min": "0",
    "memory.swap.max": "max",
}
"""What a new cgroup has, by file."""


class CgroupRefusal(Exception):
    """A write that the kernel would refuse; the message is runc's."""


class CgroupTree:
    """The cgroups and processes of one machine.

    Args:
        root: What stands for /sys/fs/cgroup.
        proc: What stands for /proc.
        cpus: The CPUs that are online.
        nodes: The NUMA nodes that have memory.
    """

    def __init__(self, root: Path, proc: Path, cpus: CPUSet, nodes: NodeSet) -> None:
        self.root = root
        self.proc = proc
        self._cpus = cpus
        self._nodes = nodes
        self._next_pid = 100_001
        root.mkdir(parents=True, exist_ok=True)
        proc.mkdir(parents=True, exist_ok=True)
        # By cgroup.controllers a reader knows that this is version 2.
        _write_all(root, {"cgroup.controllers": KERNEL_DEFAULTS["cgroup.controllers"], **self._effective("", "")})

    def path(self, cgroup: str) -> Path:
        """The folder of a cgroup such as /kubepods/podX/abc."""
        return self.root / cgroup.strip("/")

    def start(self, cgroup: str, resources: cri_pb2.LinuxContainerResources) -> int:
        """Make a cgroup with these resources and a process in it; return the process id.

        Raises:
            CgroupRefusal: a value is not valid; nothing is left behind.
        """
        folder = self.path(cgroup)
        for parent in reversed([each for each in folder.parents if each.is_relative_to(self.root)]):
            if not parent.exists():
                parent.mkdir()
                _write_all(parent, {**KERNEL_DEFAULTS, **self._effective("", "")})
        folder.mkdir(exist_ok=True)
        _write_all(folder, {**KERNEL_DEFAULTS, **self._effective("", "")})
        try:
            self.apply(cgroup, resources)
        except CgroupRefusal:
            shutil.rmtree(folder)
            raise
        pid = self._next_pid
        self._next_pid += 1
        (folder / "cgroup.procs").write_text(f"{pid}\n")
        process = self.proc / str(pid)
        process.mkdir()
        (process / "cgroup").write_text(f"0::{cgroup}\n")
        return pid

    def apply(self, cgroup: str, resources: cri_pb2.LinuxContainerResources) -> None:
        """Write all of `resources` into an existing cgroup, `unified` last, as runc does on every update.

        Raises:
            CgroupRefusal: the kernel would refuse one of them.
        """
        folder = self.path(cgroup)
        if not folder.exists():
            raise CgroupRefusal(f"openat2 {folder}/cpu.weight: no such file or directory")
        idle = folder / "cpu.idle"
        if resources.cpu_shares and idle.exists() and idle.read_text().strip() == "1":
            # An idle cgroup has no weight, and runc writes the weight before all else.
            raise CgroupRefusal(f"write {folder}/cpu.weight: invalid argument")
        burst = folder / "cpu.max.burst"
        if resources.cpu_quota > 0 and burst.exists() and int(burst.read_text()) > resources.cpu_quota:
            # A burst is at most the quota, and runc writes the quota before it.
            raise CgroupRefusal(f"write {folder}/cpu.max: invalid argument")
        try:
            _write_all(folder, self._values(resources))
        except ParseError as error:
            raise CgroupRefusal(f"write {folder}/cpuset: invalid argument: {error}") from error
        for name, value in resources.unified.items():
            if "\n" in value:  # runc before 1.2 writes it at once, and the kernel wants a line in each write
                raise CgroupRefusal(f'unable to set unified resource "{name}": invalid argument')
        _write_all(folder, {name: value for name, value in resources.unified.items() if value})

    def end(self, cgroup: str, pid: int) -> None:
        """The process is gone, and its cgroup with it."""
        shutil.rmtree(self.proc / str(pid), ignore_errors=True)
        shutil.rmtree(self.path(cgroup), ignore_errors=True)

    def _values(self, resources: cri_pb2.LinuxContainerResources) -> dict[str, str]:
        values = {}
        if resources.cpu_shares:
            values["cpu.weight"] = str(1 + (resources.cpu_shares - MIN_SHARES) * 9999 // (MAX_SHARES - MIN_SHARES))
        if resources.cpu_quota or resources.cpu_period:
            quota = str(resources.cpu_quota) if resources.cpu_quota > 0 else "max"
            values["cpu.max"] = f"{quota} {resources.cpu_period or DEFAULT_PERIOD}"
        limit, with_swap = resources.memory_limit_in_bytes, resources.memory_swap_limit_in_bytes
        if limit:
            values["memory.max"] = str(limit) if limit > 0 else "max"
        if with_swap:
            values["memory.swap.max"] = str(with_swap - limit) if with_swap > 0 else "max"
        if resources.cpuset_cpus:
            values["cpuset.cpus"] = str(CPUSet.parse(resources.cpuset_cpus))
        if resources.cpuset_mems:
            values["cpuset.mems"] = str(NodeSet.parse(resources.cpuset_mems))
        if resources.cpuset_cpus or resources.cpuset_mems:
            values |= self._effective(resources.cpuset_cpus, resources.cpuset_mems)
        return values

    def _effective(self, cpus: str, nodes: str) -> dict[str, str]:
        """Cgroup v2: where nothing of what is asked can be granted, it is as if nothing were asked."""
        return {
            "cpuset.cpus.effective": str(CPUSet.parse(cpus) & self._cpus or self._cpus),
            "cpuset.mems.effective": str(NodeSet.parse(nodes) & self._nodes or self._nodes),
        }


def _write_all(folder: Path, values: dict[str, str]) -> None:
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")
