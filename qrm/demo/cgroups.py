"""Kubelet's part of the cgroup tree: kubepods, the QoS classes and the pods, on cgroup v1 and v2.

Every mounted hierarchy is served. The values are those that kubelet gives a pod's cgroup
(pkg/kubelet/cm/helpers_linux.go, ResourceConfigForPod).
"""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from qrm.demo.pods import Pod, pod_resources
from qrm.errors import QrmError
from qrm.units import MAX_SHARES, MIN_SHARES

_V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")
_PATIENCE = 60.0
_INTERVAL = 0.02


class PodCgroups:
    """The cgroups of pods, made before their sandboxes as kubelet does; leaving the context removes what it made.

    Args:
        cgroup_root: Kubelet's --cgroup-root, such as "/demo"; empty for the root itself.
        mounts: The mount points of the cgroup hierarchies; the machine's own where not given.
    """

    def __init__(self, cgroup_root: str = "", *, mounts: tuple[Path, ...] | None = None) -> None:
        self.cgroup_root = cgroup_root
        self._mounts = _cgroup_mounts() if mounts is None else mounts
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ensure(self, pod: Pod) -> None:
        """Make the pod's cgroup and all above it where they are missing, and give it the pod's shares and limits.

        For a pod that is resized, call it with the new pod: before the containers grow, after they have shrunk.

        Raises:
            QrmError: the kernel refuses; the message has the path, the value and the reason.
        """
        values = _pod_values(pod)
        for mount in self._mounts:
            folder = mount
            for part in pod.cgroup(self.cgroup_root).strip("/").split("/"):
                _pass_controllers_down(folder)
                folder /= part
                if not folder.exists():
                    folder.mkdir()
                    self._made.append(folder)
                _inherit_cpuset(folder)
            for name, value in values.items():
                if (folder / name).exists():
                    _write(folder / name, value)

    def remove(self, pod: Pod) -> None:
        """Remove the pod's cgroup and what is below it, killing what still runs there; nothing where it is gone.

        Raises:
            QrmError: something cannot be killed.
        """
        for mount in self._mounts:
            _remove_tree(mount / pod.cgroup(self.cgroup_root).strip("/"))

    def close(self) -> None:
        """Remove every cgroup that `ensure` made.

        Those above pods stay while somebody else has a cgroup in them; another `close` tries them again.
        """
        for folder in reversed(self._made):
            if folder.name.startswith("pod"):
                _remove_tree(folder)
        self._made = [folder for folder in reversed(self._made) if not _remove_if_unused(folder)][::-1]


def cgroup_file(cgroup: str, name: str) -> Path | None:
    """The path of a cgroup's file such as cpuset.cpus, in whichever hierarchy has it; None where none does."""
    return next((path for mount in _cgroup_mounts() if (path := mount / cgroup.strip("/") / name).exists()), None)


def _cgroup_mounts() -> tuple[Path, ...]:
    """Every hierarchy of either version: on a hybrid machine runc makes cgroups in the v2 one too."""
    partitions = psutil.disk_partitions(all=True)
    return tuple(Path(each.mountpoint) for each in partitions if each.fstype in {"cgroup", "cgroup2"})


def _pod_values(pod: Pod) -> dict[str, int | str]:
    """What a pod's cgroup files hold, by the names of both versions; limits only if every container has one."""
    resources = pod_resources(pod)
    shares, period = resources.cpu_shares, resources.cpu_period
    quota = resources.cpu_quota if all(each.cpu_limit for each in pod.containers) else 0
    memory = resources.memory_limit_in_bytes if all(each.memory_limit for each in pod.containers) else 0
    return {
        "cpu.shares": shares,
        "cpu.cfs_period_us": period,
        "cpu.cfs_quota_us": quota or -1,
        "memory.limit_in_bytes": memory or -1,
        "cpu.weight": 1 + (shares - MIN_SHARES) * 9999 // (MAX_SHARES - MIN_SHARES),
        "cpu.max": f"{quota or 'max'} {period}",
        "memory.max": memory or "max",
    }


def _pass_controllers_down(folder: Path) -> None:
    """Cgroup v2: let the children of `folder` have every controller that it has itself."""
    control = folder / "cgroup.subtree_control"
    if control.exists():
        available = (folder / "cgroup.controllers").read_text().split()
        missing = set(available) & set(_V2_CONTROLLERS) - set(control.read_text().split())
        if missing:
            _write(control, " ".join(f"+{controller}" for controller in sorted(missing)))


def _inherit_cpuset(folder: Path) -> None:
    """Cgroup v1: a new cpuset is empty, and refuses processes until it has CPUs and memory nodes."""
    if (folder / "cpuset.effective_cpus").exists():
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not (folder / name).read_text().strip():
                _write(folder / name, (folder.parent / name).read_text().strip())


def _write(path: Path, value: int | str) -> None:
    try:
        path.write_text(str(value))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise QrmError(f"cannot write {value!r} to {path}: {reason}", hint="this needs root") from error


def _remove_tree(folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not _try_to_remove(folder):
        if time.monotonic() > deadline:
            raise QrmError(f"{folder} cannot be removed: processes in it do not end")
        time.sleep(_INTERVAL)


def _try_to_remove(folder: Path) -> bool:
    """Remove what is unused of a cgroup and all below it, and kill the rest; whether all of it is gone."""
    try:
        for below in (*sorted(folder.rglob("*/"), reverse=True), folder):
            if not _remove_if_unused(below):
                _kill_processes(below)
    except OSError as error:
        # A runtime may be removing the same cgroups.
        if error.errno not in {errno.ENOENT, errno.ENODEV}:
            raise
    return not folder.exists()


def _remove_if_unused(folder: Path) -> bool:
    """Whether `folder` is gone; False while it has processes or other cgroups in it."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in {errno.EBUSY, errno.ENOTEMPTY}:
            return False
        raise
    return True


def _kill_processes(folder: Path) -> None:
    for pid in (folder / "cgroup.procs").read_text().split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
