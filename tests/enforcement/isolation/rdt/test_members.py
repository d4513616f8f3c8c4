"""Where the threads of a pod are, and whether its shim hands a group down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qrm.enforcement.isolation.rdt.members import Members, Processes, inherits
from tests.enforcement.isolation.rdt.fake import Kernel


def test_a_pod_is_its_shim_and_all_in_its_cgroup(intel: Kernel) -> None:
    """Cgroups within containers included; another pod's are not."""
    pod = intel.pod(1)
    intel.pod(2)
    intel.process(190, 120, cgroup=f"/kubepods/pod{pod.pod.uid}/container1/inner")
    processes = Processes(intel.proc, intel.cgroup)
    members = processes.find(pod)
    assert members is not None
    assert (members.parent, members.shim_of) == (100, pod.id)
    assert processes.threads(members, with_parent=True) == {*range(100, 105), 110, 120, 121, 190}
    assert processes.threads(members, with_parent=False) == {110, 120, 121, 190}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/kubepods.slice/kubepods-podaaaa_1.slice/cri-containerd-sandbox1.scope", "kubepods-podaaaa_1.slice"),
        ("/kubepods/podaaaa-1/crio-sandbox1.scope/container", "podaaaa-1"),
        ("/k8s.io/sandbox1", "sandbox1"),
    ],
)
def test_the_pods_cgroup_is_known_by_its_uid(intel: Kernel, path: str, found: str) -> None:
    """In both drivers' spelling; without one, it is no more than the sandbox's own."""
    pod = intel.pod(1)
    (intel.proc / str(pod.pid) / "cgroup").write_text(f"0::{path}\n")
    members = Processes(intel.proc, intel.cgroup).find(pod)
    assert members is not None
    assert members.cgroup.name == found


def test_cgroup_v1_lists_threads_in_another_file(intel: Kernel) -> None:
    """Of the hierarchy of cpusets."""
    pod = intel.pod(1)
    (intel.cgroup / "cgroup.controllers").unlink()
    home = intel.cgroup / f"cpuset/kubepods/pod{pod.pod.uid}/{pod.id}"
    home.mkdir(parents=True)
    (home / "tasks").write_text("7\n8\n")
    (intel.proc / str(pod.pid) / "cgroup").write_text(f"3:memory:/x\n5:cpuset:/kubepods/pod{pod.pod.uid}/{pod.id}\n")
    processes = Processes(intel.proc, intel.cgroup)
    members = processes.find(pod)
    assert members is not None
    assert processes.threads(members, with_parent=False) == {7, 8}


def test_a_process_that_is_gone_is_not_mistaken(intel: Kernel) -> None:
    """Its pid may be anybody's by now: the cgroup has the sandbox's id."""
    pod = intel.pod(1)
    processes = Processes(intel.proc, intel.cgroup)
    assert processes.find(replace(pod, pid=99)) is None
    assert processes.find(replace(pod, pid=0)) is None
    (intel.proc / str(pod.pid) / "cgroup").write_text("0::/system.slice/sshd.service\n")
    assert processes.find(pod) is None


def test_what_was_found_holds_as_long_as_the_process(intel: Kernel) -> None:
    """An id that was given again is told by its time, and a shim that died by the new parent."""
    pod = intel.pod(1)
    processes = Processes(intel.proc, intel.cgroup)
    last = processes.find(pod)
    assert last is not None
    assert processes.find(pod, last) is last
    stat = intel.proc / str(pod.pid) / "stat"
    born = stat.read_text()
    stat.write_text(born.replace(f"S {last.parent} ", "S 1 "))
    orphaned = processes.find(pod, last)
    assert orphaned is not None
    assert (orphaned.parent, orphaned.shim_of) == (1, "")
    stat.write_text(born.replace(f" {last.started} 1\n", " 999 1\n"))
    (intel.proc / str(pod.pid) / "cgroup").write_text("0::/system.slice/sshd.service\n")
    assert processes.find(pod, last) is None


def test_whose_group_a_process_is_in(intel: Kernel) -> None:
    """None where the kernel does not say, or the process has ended."""
    pod = intel.pod(1)
    processes = Processes(intel.proc, intel.cgroup)
    assert processes.groups_of(pod.pid) == ("", "")
    file = intel.proc / str(pod.pid) / "cpu_resctrl_groups"
    file.write_text("res:qrm-reclaimed\nmon:qrm-x\n")
    assert processes.groups_of(pod.pid) == ("qrm-reclaimed", "qrm-x")
    file.write_text("res:\nmon:\n")
    assert processes.groups_of(pod.pid) == ("", "")
    file.unlink()
    assert processes.groups_of(pod.pid) is None


@pytest.mark.parametrize(
    ("shim_of", "sharing", "why"),
    [
        ("s1", {"s1": "qrm-a"}, ""),
        ("s1", {"s1": "qrm-a", "s2": "qrm-a"}, ""),
        ("s2", {"s1": "qrm-a", "s2": "qrm-a"}, ""),
        ("s1", {"s1": "qrm-a", "s2": ""}, "its shim 7 serves pods of other classes: s2"),
        ("s9", {"s1": "qrm-a"}, "its shim 7 is that of the sandbox s9, which qrm does not know"),
        ("", {"s1": "qrm-a"}, "its parent 7 is no containerd shim"),
    ],
)
def test_who_hands_down_a_group(intel: Kernel, shim_of: str, sharing: dict[str, str], why: str) -> None:
    """A shim whose pods are all of one class."""
    assert inherits("s1", "qrm-a", Members(7, shim_of, intel.cgroup), sharing) == why


@pytest.mark.parametrize(
    ("command", "shim_of"),
    [
        ("/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id abc -address /x", "abc"),
        ("containerd-shim-kata-v2 -id abc", "abc"),
        ("/usr/bin/containerd-shim-runc-v2 -info", ""),
        ("/usr/bin/conmon -b /run/abc -id abc", ""),
        ("", ""),
    ],
)
def test_a_shim_is_known_by_its_command(intel: Kernel, command: str, shim_of: str) -> None:
    """By the program's name and the sandbox it names."""
    pod = intel.pod(1)
    (intel.proc / "100/cmdline").write_text(command.replace(" ", "\0"))
    members = Processes(intel.proc, intel.cgroup).find(pod)
    assert members is not None
    assert members.shim_of == shim_of
