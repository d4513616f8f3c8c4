"""Reading cpusets from cgroup v1, v2 and the two side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from qrm.cpuset import CPUSet
from qrm.enforcement.cgroup import Cgroups

V1_LINES = "12:pids:/x\n7:cpuset:/kubepods/pod1/abc\n3:cpu,cpuacct:/y\n0::/system.slice\n"
V1_SHARED = "7:cpu,cpuset:/kubepods/pod1/abc\n"
V2_LINES = "0::/kubepods/pod1/abc\n"


def process(root: Path, lines: str) -> Cgroups:
    (root / "proc/42").mkdir(parents=True)
    (root / "proc/42/cgroup").write_text(lines)
    return Cgroups(root / "cgroup", root / "proc")


def files(folder: Path, **contents: str) -> None:
    folder.mkdir(parents=True)
    for name, text in contents.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.mark.parametrize("lines", [V1_LINES, V1_SHARED])
def test_version_1_has_a_hierarchy_of_its_own(tmp_path: Path, lines: str) -> None:
    """The line that names cpuset counts, alone or mounted with others, and the effective file is v1's."""
    files(
        tmp_path / "cgroup/cpuset/kubepods/pod1/abc",
        cpuset__cpus="0-3\n",
        cpuset__effective_cpus="0-1\n",
        cpuset__mems="0\n",
    )
    cgroups = process(tmp_path, lines)
    assert cgroups.version == 1
    found = cgroups.cpuset_of(42)
    assert found is not None
    assert (found.cpus, found.effective) == (CPUSet(range(4)), CPUSet(range(2)))
    assert found.path == tmp_path / "cgroup/cpuset/kubepods/pod1/abc"


def test_version_2_is_the_mount_itself(tmp_path: Path) -> None:
    """An empty cpuset.cpus means "as the parent": what is effective is told beside it."""
    files(
        tmp_path / "cgroup/kubepods/pod1/abc",
        **{"cpuset__cpus": "\n", "cpuset__cpus.effective": "0-7\n", "cpuset__mems.effective": "0-1\n"},
    )
    (tmp_path / "cgroup/cgroup.controllers").write_text("cpuset cpu\n")
    cgroups = process(tmp_path, V2_LINES)
    assert cgroups.version == 2
    found = cgroups.cpuset_of(42)
    assert found is not None
    assert (found.cpus, found.effective) == (CPUSet(), CPUSet(range(8)))


def test_what_is_gone_is_none(tmp_path: Path) -> None:
    """A process that ended, a cgroup that was removed and one without the controller are no errors."""
    cgroups = process(tmp_path, V1_LINES)
    assert cgroups.cpuset_of(43) is None
    assert cgroups.cpuset_of(42) is None
    files(
        tmp_path / "cgroup/cpuset/kubepods/pod1/abc",
        cpuset__cpus="garbage",
        cpuset__effective_cpus="",
        cpuset__mems="0\n",
    )
    assert cgroups.cpuset_of(42) is None
    (tmp_path / "proc/42/cgroup").write_text("3:memory:/x\n")
    assert cgroups.cpuset_of(42) is None
