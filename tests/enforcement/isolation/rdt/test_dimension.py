"""What the guest's hardware lacks: bandwidth, L2, code and data apart, monitoring, shims of several pods."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from qrm.config import RdtClass
from qrm.enforcement.isolation.dimension import NotEnforced, Repairs
from qrm.enforcement.isolation.rdt import members
from qrm.topology import attributes
from tests.enforcement.isolation.rdt.fake import AMD, CDP, INTEL, ROOTS, FakeTree, Kernel

NOTHING = Repairs()
HALF = RdtClass(l3="30%", memory_bandwidth="45%")


def schemata(kernel: Kernel, group: str = "qrm-reclaimed") -> list[str]:
    return [line.strip() for line in (kernel.root / group / "schemata").read_text().splitlines()]


def test_bandwidth_is_set_beside_the_ways(intel: Kernel) -> None:
    """For every cache there is, whatever its id."""
    intel.dimension(reclaimed=HALF).prepare()
    assert schemata(intel) == ["L3:0=7;2=7", "MB:0=50;2=50"]


def test_amds_bandwidth_leaves_other_resources_alone(kernel: Kernel) -> None:
    """SMBA is nobody's here."""
    kernel.mount(AMD, ROOTS["amd"])
    kernel.dimension(reclaimed=RdtClass(memory_bandwidth="80")).prepare()
    assert schemata(kernel) == ["L3:0=ffff;1=ffff", "MB:0=80;1=80", "SMBA:0=2048;1=2048"]


def test_code_data_and_l2(kernel: Kernel) -> None:
    """One write for all of them."""
    kernel.mount(CDP, ROOTS["cdp"], "rw,cdp")
    kernel.dimension(reclaimed=RdtClass(l3="50%", l3_code="0x600", l2="25%")).prepare()
    assert schemata(kernel) == ["L3CODE:0=600", "L3DATA:0=1f", "L2:0=3;1=3"]
    assert [write.splitlines()[0] for write in kernel.writes] == ["mkdir qrm-reclaimed", "qrm-reclaimed L3CODE:0=600"]


def test_what_the_node_cannot_give_is_said_before_anything_is_done(intel: Kernel) -> None:
    """The probe and prepare agree, and nothing is written."""
    rdt = intel.dimension(reclaimed=RdtClass(l2="50%"))
    assert "rdt.classes.reclaimed.l2 = '50%'" in rdt.probe().why
    with pytest.raises(NotEnforced, match="has no L2"):
        rdt.prepare()
    assert not rdt.probe().usable
    assert intel.writes == []


def test_what_the_kernel_takes_without_doing_it_is_told(intel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write is read back."""
    monkeypatch.setattr(FakeTree, "set_schemata", lambda *_: None)
    with pytest.raises(NotEnforced, match=r"schemata has L3:0=7ff;2=7ff after L3:0=7;2=7 was written without error"):
        intel.dimension().prepare()


def test_a_read_only_mount_is_not_usable(kernel: Kernel) -> None:
    """As in a container."""
    kernel.mount(INTEL, ROOTS["intel"], "ro")
    assert kernel.dimension().probe().why.endswith("read-only")
    assert not kernel.dimension().probe().usable


def test_a_class_that_is_gone_gives_its_closid_back(intel: Kernel) -> None:
    """A group of ours that the configuration does not have any more is removed, nobody else's is."""
    intel.dimension(old=HALF).prepare()
    (intel.root / "theirs").mkdir()
    intel.dimension(reclaimed=HALF).prepare()
    assert not (intel.root / "qrm-old").exists()
    assert (intel.root / "theirs").exists()


def test_an_unknown_class_is_refused(intel: Kernel) -> None:
    """With the choices; in repair it is that pod's failure."""
    pod = intel.pod(1)
    rdt = intel.dimension(other=HALF)
    with pytest.raises(NotEnforced, match=r"'reclaimed' of .* \(there are: other\)"):
        rdt.admit(pod)
    assert pod.id in rdt.repair([pod]).failed
    assert rdt.explain(pod)[0].kernel.startswith("no profile")


def test_a_runtime_that_tells_no_process_is_refused(intel: Kernel) -> None:
    """But a pod of the default group needs nothing."""
    rdt = intel.dimension()
    lent, online = intel.pod(1), intel.pod(2, "shared")
    for pod, refused in ((lent, True), (online, False)):
        blind = type(pod)(pod.id, pod.pod, pod.level, pod.profile, {}, 0, "")
        if refused:
            with pytest.raises(NotEnforced, match="does not tell its process"):
                rdt.admit(blind)
        else:
            rdt.admit(blind)
        assert (blind.id in rdt.repair([blind]).failed) is refused


def test_a_pod_is_monitored_in_its_group(intel: Kernel) -> None:
    """Its shim is in the monitoring group too, so that what comes later is counted; afterwards nothing is written."""
    rdt = intel.dimension()
    lent, online = intel.pod(1), intel.pod(2, "shared")
    for pod in (lent, online):
        rdt.admit(pod)
    assert intel.groups[100] == ("qrm-reclaimed", "qrm-aaaa-1")
    assert intel.groups[200] == ("", "qrm-aaaa-2")
    intel.process(130, 100, cgroup="/kubepods/podaaaa-1/container1")
    before = list(intel.writes)
    assert rdt.repair([lent, online]) == NOTHING
    assert intel.writes == before
    facts = {fact.name: (fact.wanted, fact.kernel) for fact in rdt.explain(lent)}
    assert facts["rdt monitoring"] == ("qrm-aaaa-1", "qrm-aaaa-1")
    assert facts["rdt membership"] == ("inherited from shim 100", "9 of 9 threads")
    rdt.forget(lent.id)
    rdt.forget("nobody")
    assert not (intel.root / "qrm-reclaimed/mon_groups/qrm-aaaa-1").exists()
    assert (intel.root / "mon_groups/qrm-aaaa-2").exists()


def test_monitoring_goes_on_for_the_pods_other_sandbox(intel: Kernel) -> None:
    """kubelet makes a new sandbox before it removes the old one."""
    rdt = intel.dimension()
    first = intel.pod(1)
    rdt.admit(first)
    second = intel.pod(2)
    again = type(second)(second.id, first.pod, first.level, first.profile, {}, second.pid, "")
    rdt.admit(again)
    rdt.forget(first.id)
    assert (intel.root / "qrm-reclaimed/mon_groups/qrm-aaaa-1").exists()


def test_without_rmids_a_pod_goes_without(intel: Kernel) -> None:
    """Two of six are those of control groups; nothing is tried in vain, and one that is free again is used."""
    rdt = intel.dimension()
    pods = [intel.pod(number) for number in range(1, 7)]
    for pod in pods:
        rdt.admit(pod)
    monitored = [pod for pod in pods if (intel.root / "qrm-reclaimed/mon_groups" / f"qrm-{pod.pod.uid}").exists()]
    assert monitored == pods[:4]
    assert intel.groups[500] == ("qrm-reclaimed", "")
    before = list(intel.writes)
    assert rdt.repair(pods) == NOTHING
    assert intel.writes == before
    assert rdt.explain(pods[4])[-1].kernel == "none"
    rdt.forget(pods[0].id)
    assert rdt.repair(pods[1:]).by_cause == {"monitoring": 1 + 8}  # a group, and a pod's threads
    assert "mkdir qrm-aaaa-6" not in intel.writes


def test_a_kernel_that_refuses_an_rmid_refuses_no_pod(intel: Kernel) -> None:
    """Such as one that is busy until the cache has forgotten who had it."""
    rdt = intel.dimension()
    rdt.prepare()
    (intel.root / "info/L3_MON/num_rmids").write_text("2\n")
    rdt.admit(intel.pod(1))
    assert intel.groups[100] == ("qrm-reclaimed", "")


def test_monitoring_can_be_off(intel: Kernel) -> None:
    """What an earlier process monitored is given up."""
    pod = intel.pod(1)
    intel.dimension().admit(pod)
    off = intel.dimension(monitoring=False)
    assert off.repair([pod]).by_cause == {"monitoring": 1}
    assert intel.groups[100] == ("qrm-reclaimed", "")


def test_a_monitoring_group_that_is_lost_comes_back(intel: Kernel) -> None:
    """So does a pod that left it, and one of nobody's goes."""
    rdt = intel.dimension()
    pod = intel.pod(1)
    rdt.admit(pod)
    for thread in (100, 101, 110):
        intel.groups[thread] = ("qrm-reclaimed", "")
    intel.show()
    assert rdt.repair([pod]).by_cause == {"monitoring": 3}
    intel.groups[120] = ("", "")
    intel.show()
    assert rdt.repair([pod]).by_cause == {"tasks": 1, "monitoring": 1}
    assert intel.groups[120] == ("qrm-reclaimed", "qrm-aaaa-1")
    assert rdt.repair([]).by_cause == {"monitoring": 1}


def test_usage_is_shown_as_far_as_the_kernel_has_numbers(intel: Kernel) -> None:
    """By pod and cache, as of the last round; what is unavailable is counted."""
    rdt = intel.dimension()
    registry = CollectorRegistry()
    registry.register(rdt.usage)
    pod = intel.pod(1)
    rdt.admit(pod)
    assert list(registry.collect()) == []
    rdt.repair([pod])
    labels = {"namespace": "ns", "pod": "p1", "cache": "0"}
    assert registry.get_sample_value("qrm_rdt_cache_bytes", labels) == 4096
    assert registry.get_sample_value("qrm_rdt_memory_bytes_total", {**labels, "memory": "total"}) == 123456
    labels["cache"] = "2"
    assert registry.get_sample_value("qrm_rdt_memory_bytes_total", {**labels, "memory": "total"}) is None
    assert registry.get_sample_value("qrm_rdt_unread", {"said": "Unavailable"}) == 1
    rdt.repair([])
    assert list(registry.collect()) == []


def test_a_shim_of_several_classes_is_in_none(intel: Kernel) -> None:
    """Then its pods are moved, whichever of them came first."""
    rdt = intel.dimension(monitoring=False)
    lent = intel.pod(1)
    rdt.admit(lent)
    assert intel.groups[100] == ("qrm-reclaimed", "")
    online = intel.pod(2, "shared", parent=100)
    assert intel.groups[220] == ("qrm-reclaimed", "")
    rdt.admit(online)
    assert intel.groups[100] == intel.groups[104] == intel.groups[220] == ("", "")
    assert rdt.repair([lent, online]) == NOTHING
    intel.process(130, 100, cgroup="/kubepods/podaaaa-1/container1")
    rdt.started(lent)
    rdt.started(online)
    assert intel.groups[130] == intel.groups[110] == ("qrm-reclaimed", "")
    membership = {fact.name: fact for fact in rdt.explain(lent)}["rdt membership"]
    assert membership.wanted == "moved: its shim 100 serves pods of other classes: sandbox2"


def test_a_shim_of_several_pods_of_one_class_hands_it_down(intel: Kernel) -> None:
    """But each pod is monitored by itself: the shim counts for neither, and what it starts is moved."""
    rdt = intel.dimension()
    first = intel.pod(1)
    rdt.admit(first)
    second = intel.pod(2, parent=100)
    rdt.admit(second)
    assert rdt.repair([first, second]).failed == {}
    assert intel.groups[110] == ("qrm-reclaimed", "qrm-aaaa-1")
    assert intel.groups[210] == ("qrm-reclaimed", "qrm-aaaa-2")
    assert intel.groups[100] == ("qrm-reclaimed", "")
    intel.process(230, 100, cgroup="/kubepods/podaaaa-2/container2")
    assert rdt.repair([first, second]).by_cause == {"monitoring": 1}
    assert intel.groups[230] == ("qrm-reclaimed", "qrm-aaaa-2")
    before = list(intel.writes)
    assert rdt.repair([first, second]) == NOTHING
    assert intel.writes == before


@pytest.mark.parametrize("threads", [[200, 201], [221], [210]], ids=["shim", "container", "pause"])
def test_a_pod_of_the_default_group_is_brought_back(intel: Kernel, threads: list[int]) -> None:
    """Whatever of it has been put into a group of ours, with others' threads that are left there."""
    rdt = intel.dimension(monitoring=False)
    lent, online, other = intel.pod(1), intel.pod(2, "shared"), intel.pod(3, "shared")
    for pod in (lent, online, other):
        rdt.admit(pod)
    intel.process(990, 1, cgroup="/system.slice/batch")
    for thread in (990, *threads):
        intel.groups[thread] = ("qrm-reclaimed", "")
    intel.show()
    assert rdt.repair([lent, online, other]).by_cause == {"tasks": len(threads)}
    assert {intel.groups[thread] for thread in threads} == {("", "")}
    assert intel.groups[990] == ("qrm-reclaimed", "")
    assert rdt.repair([lent, online, other]) == NOTHING


def test_most_pods_cost_a_round_one_look(intel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are read of pods that have a group of ours; whether others are astray is seen in these groups."""
    rdt = intel.dimension(monitoring=False)
    pods = [intel.pod(1), *(intel.pod(number, "shared") for number in range(2, 9))]
    for pod in pods:
        rdt.admit(pod)
    assert rdt.repair(pods) == NOTHING
    read: list[str] = []

    def read_text(path: Path | str) -> str | None:
        read.append(str(path))
        return attributes.read_text(path)

    monkeypatch.setattr(members, "read_text", read_text)
    assert rdt.repair(pods) == NOTHING
    assert sorted(path for path in read if path.endswith("stat")) == sorted(
        f"{intel.proc}/{pod.pid}/stat" for pod in pods
    )
    assert {path.split("/")[-3] for path in read if not path.endswith("stat")} == {"kubepods", "podaaaa-1"}


def test_somebody_elses_group_is_left_to_them(intel: Kernel) -> None:
    """A pod without a class that they have put there stays, and is not monitored."""
    (intel.root / "theirs").mkdir()
    pod = intel.pod(1, "shared")
    for thread in (*range(100, 105), 110, 120, 121):
        intel.groups[thread] = ("theirs", "")
    intel.show()
    rdt = intel.dimension()
    rdt.admit(pod)
    assert rdt.repair([pod]) == NOTHING
    assert intel.groups[110] == ("theirs", "")
    assert intel.writes == ["mkdir qrm-reclaimed", "qrm-reclaimed L3:0=7;2=7"]


def test_reset_removes_what_is_ours(intel: Kernel) -> None:
    """Also what a process before this one made; a second time there is nothing to undo."""
    (intel.root / "theirs").mkdir()
    rdt = intel.dimension()
    for pod in (intel.pod(1), intel.pod(2, "shared")):
        rdt.admit(pod)
    lines = intel.dimension(other=HALF).reset()
    assert len(lines) == 2
    assert "2 monitoring groups" in lines[0]
    assert "8 threads are in the default group again" in lines[1]
    assert set(intel.groups.values()) == {("", "")}
    assert [path.name for path in intel.root.iterdir() if path.is_dir()].count("theirs") == 1
    assert not list(intel.root.rglob("qrm-*"))
    assert intel.dimension().reset() == []
