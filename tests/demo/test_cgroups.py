"""Kubelet's part of the cgroup tree, on this machine and on ordinary files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from qrm.demo.cgroups import PodCgroups, cgroup_file
from qrm.demo.pods import ContainerSpec, Pod
from qrm.errors import QrmError

GIB = 1 << 30
LIMITED = ContainerSpec("a", cpu_request=500, cpu_limit=1000, memory_limit=GIB)
ROOT = f"/qrm-test-{os.getpid()}"

needs_cgroups = pytest.mark.skipif(
    os.geteuid() != 0 or cgroup_file("/", "cgroup.procs") is None, reason="needs root and a cgroup file system"
)


def unified(tmp_path: Path) -> PodCgroups:
    """A root of cgroup v2 as far as ordinary files can play one."""
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    return PodCgroups(mounts=(tmp_path,))


def test_controllers_are_passed_down_on_v2(tmp_path: Path) -> None:
    unified(tmp_path).ensure(Pod("web", (LIMITED,)))
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpuset +hugetlb +io +pids"


def test_pod_values_on_v2(tmp_path: Path) -> None:
    cgroups, pod = unified(tmp_path), Pod("web", (LIMITED, ContainerSpec("b")))
    folder = tmp_path / pod.cgroup().strip("/")
    folder.mkdir(parents=True)
    for name in ("cpu.max", "cpu.weight", "memory.max"):
        (folder / name).write_text("")
    cgroups.ensure(pod)
    values = {path.name: path.read_text() for path in folder.iterdir()}
    assert values == {"cpu.max": "max 100000", "cpu.weight": "20", "memory.max": "max"}
    cgroups.ensure(Pod("web", (LIMITED,), uid=pod.uid))
    values = {path.name: path.read_text() for path in folder.iterdir()}
    assert values == {"cpu.max": "100000 100000", "cpu.weight": "20", "memory.max": str(GIB)}


def test_a_write_that_fails_is_explained(tmp_path: Path) -> None:
    cgroups, pod = unified(tmp_path), Pod("web", (LIMITED,))
    (tmp_path / pod.cgroup().strip("/") / "cpu.max").mkdir(parents=True)
    with pytest.raises(QrmError, match=r"cannot write '100000 100000' to .*/cpu.max: Is a directory"):
        cgroups.ensure(pod)


@needs_cgroups
def test_a_pod_is_made_in_every_hierarchy_and_all_is_removed() -> None:
    pod, other = Pod("web", (LIMITED,)), Pod("other", (ContainerSpec("b"),))
    with PodCgroups(ROOT) as cgroups:
        cgroups.ensure(pod)
        cgroups.ensure(other)
        cgroups.ensure(pod)
        effective = cgroup_file(pod.cgroup(ROOT), "cpuset.effective_cpus") or cgroup_file(
            pod.cgroup(ROOT), "cpuset.cpus.effective"
        )
        assert effective is not None
        assert effective.read_text().strip()
        shares = cgroup_file(pod.cgroup(ROOT), "cpu.shares")
        assert shares is None or shares.read_text() == "512\n"
        cgroups.remove(pod)
        cgroups.remove(pod)
        assert cgroup_file(pod.cgroup(ROOT), "cgroup.procs") is None
        assert cgroup_file(other.cgroup(ROOT), "cgroup.procs") is not None
    assert cgroup_file(ROOT, "cgroup.procs") is None


@needs_cgroups
def test_what_still_runs_in_a_pod_is_killed() -> None:
    pod = Pod("web", (LIMITED,))
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            with PodCgroups(ROOT) as cgroups:
                cgroups.ensure(pod)
                procs = cgroup_file(pod.cgroup(ROOT), "cgroup.procs")
                assert procs is not None
                inner = procs.parent / "container"
                inner.mkdir()
                (inner / "cgroup.procs").write_text(str(sleeper.pid))
            assert sleeper.wait(timeout=60) == -9
        finally:
            sleeper.kill()
    assert cgroup_file(ROOT, "cgroup.procs") is None


@needs_cgroups
def test_what_somebody_else_has_in_a_class_stays() -> None:
    with PodCgroups(ROOT) as mine, PodCgroups(ROOT) as theirs:
        mine.ensure(Pod("web", (LIMITED,)))
        pod = Pod("other", (LIMITED,))
        theirs.ensure(pod)
        mine.close()
        assert cgroup_file(pod.cgroup(ROOT), "cgroup.procs") is not None
        theirs.close()
        assert cgroup_file(pod.cgroup(ROOT), "cgroup.procs") is None
        assert cgroup_file(ROOT, "cgroup.procs") is not None
        mine.close()
        assert cgroup_file(ROOT, "cgroup.procs") is None
