"""The parts that this machine's own kernel has, each in a network namespace of its own; the rest is in tests/guest."""

from __future__ import annotations

import os
import socket
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from qrm.config import NetworkSection
from qrm.enforcement.isolation.dimension import NotEnforced, Sandbox
from qrm.enforcement.isolation.profile import DEFAULTS
from qrm.enforcement.isolation.traffic import Traffic, hooks
from qrm.enforcement.isolation.traffic.devices import NamespaceGone, find
from qrm.enforcement.isolation.traffic.messages import EGRESS, INGRESS, Filter
from qrm.enforcement.isolation.traffic.parts import missing
from qrm.enforcement.isolation.traffic.plan import HtbClass, trunk
from qrm.enforcement.isolation.traffic.rtnl import Rtnl, TrafficError
from qrm.enforcement.isolation.traffic.tree import Tree
from qrm.enforcement.isolation.traffic.watch import Watch
from qrm.pods.model import PodIdentity, QosLevel

from .namespaces import PodNamespace, apart, sh
from .test_node import V4, node

MBIT = 1_000_000
VETH = "ip link add v0 type veth peer name eth0 netns {pid}"


def pod(netns: str, level: QosLevel = QosLevel.SHARED, **annotations: str) -> Sandbox:
    """A pod as qrm knows it."""
    return Sandbox("s1", PodIdentity("u1", "default", "p1"), level, DEFAULTS[level], annotations, 0, netns)


def planned(rate: int) -> dict[int, HtbClass]:
    """The classes of a node."""
    return {each.minor: each for each in trunk(NetworkSection(), rate).all()}


@pytest.mark.parametrize("rate", [MBIT, 100 * MBIT, 10_000 * MBIT, 34_359 * MBIT, 34_360 * MBIT, 400_000 * MBIT])
def test_the_kernel_keeps_what_is_written(rate: int) -> None:
    """Classes of any rate, also of one that needs 64 bits, read back as they were meant: nothing is written twice."""

    def play() -> None:
        rtnl, wanted = Rtnl(), planned(rate)
        tree, again, done = Tree(rtnl, "t0"), Tree(rtnl, "t0"), Counter[str]()
        tree.ensure_device(done)
        tree.ensure(wanted, done)
        assert done == {"ifb": 1, "qdisc": 1, "class": 5}
        assert rtnl.writes == 7
        again.ensure_device(done)
        again.ensure(wanted, done)
        assert rtnl.writes == 7
        assert {minor: made for minor, (made, _) in again.look().items()} == wanted
        rtnl.close()

    apart(play)


def test_the_uplinks_speed_is_followed(tmp_path: Path) -> None:
    """A node whose link came up slow is not kept at that rate; while none can be told, nothing changes."""
    sysfs, proc = node(tmp_path, v4=V4, fast="100")
    speed = sysfs / "class/net/fast/speed"

    def play() -> None:
        traffic, rtnl = Traffic(NetworkSection(), sysfs=sysfs, proc=proc), Rtnl()
        traffic.prepare()
        for told, rate in (("-1", 100), ("25000", 25_000), ("1000", 1000)):
            speed.write_text(told)
            traffic.repair([])
            assert {minor: made for minor, (made, _) in Tree(rtnl, "qrm-ingress").look().items()} == planned(
                rate * MBIT
            )
        writes = traffic.writes
        assert traffic.repair([]).by_cause == {}
        assert traffic.writes == writes
        traffic.reset()
        traffic.close()
        rtnl.close()

    apart(play)


def test_announcements_that_were_lost_may_be_about_any_device() -> None:
    """The kernel says once that it could not keep them all."""

    def play() -> None:
        rtnl = Rtnl()
        watch = Watch(rtnl.port)
        watch._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # the least there is
        change = "tc qdisc add dev x0 root htb; tc qdisc del dev x0 root"
        sh(f"ip link add x0 type ifb; for _ in 1 2 3 4 5 6 7 8; do {change}; done")
        assert watch.changed() is None
        assert watch.changed() == frozenset()
        watch.close()
        rtnl.close()

    apart(play)


def test_other_rates_are_changed_in_place() -> None:
    """After a change of the configuration only classes are written, and those that are not in it any more go."""

    def play() -> None:
        rtnl, done = Rtnl(), Counter[str]()
        tree = Tree(rtnl, "t0")
        tree.ensure_device(done)
        tree.ensure(planned(100 * MBIT), done)
        fewer = dict(list(planned(50 * MBIT).items())[:3])
        done.clear()
        tree.ensure(fewer, done)
        assert done == {"class": 3}
        assert tree.remove_others(fewer) == 2
        assert {minor: made for minor, (made, _) in tree.look().items()} == fewer
        rtnl.close()

    apart(play)


def test_a_device_of_that_name_is_left_alone() -> None:
    """What is no ifb is somebody else's, whatever its name."""

    def play() -> None:
        sh("ip link add qrm-egress type bridge")
        traffic = Traffic(NetworkSection(rate_mbit=100))
        with pytest.raises(NotEnforced, match=r"qrm-egress is bridge of somebody else \(rename that device\)"):
            traffic.prepare()
        assert traffic.reset() == []
        assert "qrm-egress" in sh("ip link show qrm-egress")
        traffic.close()

    apart(play)


def test_others_changes_are_news_and_ours_are_not() -> None:
    """Whoever else touches qdiscs, classes or filters of a device has it compared again."""

    def play() -> None:
        sh("ip link add x0 type ifb; ip link add x1 type ifb")
        rtnl = Rtnl()
        watch = Watch(rtnl.port)
        tree, link = Tree(rtnl, "t0"), rtnl.link(name="x0")
        tree.ensure_device(Counter())
        tree.ensure(planned(MBIT), Counter())
        assert link is not None
        assert rtnl.hook(link.index) == ""
        assert watch.changed() == frozenset()
        sh("tc qdisc add dev x0 root handle 1: htb")
        assert watch.changed() == frozenset((link.index,))
        sh("tc class add dev x0 parent 1: classid 1:1 htb rate 1mbit")
        assert watch.changed() == frozenset((link.index,))
        sh("tc qdisc add dev x1 clsact; tc qdisc del dev t0 root")
        other = rtnl.link(name="x1")
        assert other is not None
        assert watch.changed() == frozenset((other.index, tree.index))
        assert watch.changed() == frozenset()
        rtnl.close()
        watch.close()

    apart(play)


def test_a_pods_devices_are_found_from_outside() -> None:
    """Veths that end in the host's namespace, however many; what a pod makes itself or has of others is told apart."""

    def play() -> None:
        with PodNamespace() as inside, PodNamespace() as third:
            sh(VETH.format(pid=inside.pid))
            sh(f"ip link add v1 type veth peer name net1 netns {inside.pid}")
            sh("ip link add low type bridge; ip link add mac0 link low type macvlan")
            sh(f"ip link set mac0 netns {inside.pid}")
            inside.ip("link add own0 type veth peer name own1")
            inside.ip("link add bridge0 type bridge")
            inside.ip("link add mac1 link eth0 type macvlan")
            inside.ip(f"link add far type veth peer name far netns {third.pid}")
            rtnl = Rtnl()
            found = find(rtnl, inside.path)
            rtnl.close()
            names = {each.inside: each.host.name for each in found.veths}
            assert names == {"eth0": "v0", "net1": "v1"}
            assert found.others == ("mac0 is macvlan: its traffic does not pass a veth, where qrm shapes",)
            assert not found.is_host

    apart(play)


def test_the_hosts_namespace_is_recognised() -> None:
    """By an empty path, and by any path that leads to it."""

    def play() -> None:
        rtnl = Rtnl()
        assert find(rtnl, "").is_host
        assert find(rtnl, f"/proc/{os.getpid()}/task/{_thread()}/ns/net").is_host
        for gone in ("/run/netns/no-such-pod", __file__):  # between unmount and unlink it is an ordinary file
            with pytest.raises(NamespaceGone):
                find(rtnl, gone)
        rtnl.close()

    apart(play)


def test_an_ingress_qdisc_is_left_in_peace() -> None:
    """The CNI plugin's qdiscs stay as they are, and who has the hook is named."""

    def play() -> None:
        with PodNamespace() as inside:
            sh(VETH.format(pid=inside.pid))
            sh("tc qdisc add dev v0 root handle 1: tbf rate 1mbit burst 10k latency 25ms; tc qdisc add dev v0 ingress")
            before = sh("tc qdisc show dev v0")
            rtnl = Rtnl()
            (veth,) = find(rtnl, inside.path).veths
            writes = rtnl.writes
            with pytest.raises(hooks.Taken, match="v0 has an ingress qdisc of somebody else"):
                hooks.ensure(rtnl, veth.host, hooks.Targets(0x71720010, 1, 1), Counter())
            assert hooks.remove(rtnl, veth.host) is False
            assert rtnl.writes == writes
            assert sh("tc qdisc show dev v0") == before
            rtnl.close()

    apart(play)


def test_the_probe_says_what_trying_says() -> None:
    """A kernel without a module refuses the pod with its name in the text, and the probe has said so before."""

    def play() -> None:
        lacking = missing(Path("/proc"), os.uname().release)
        rtnl, done = Rtnl(), Counter[str]()
        tree = Tree(rtnl, "t0")
        tree.ensure_device(done)
        tree.ensure(planned(MBIT), done)
        link = tree.link
        assert link is not None
        rtnl.add_clsact(link)
        ours = Filter("matchall", hooks.PREFERENCE, 1, 0x71720010, link.index)
        with refused("sch_fq_codel" in lacking):
            rtnl.put_fq_codel(link, 0x71720002, 128, 5000, 100_000)
        with refused(bool({"cls_matchall", "act_skbedit", "act_mirred"} & set(lacking))):
            rtnl.add_filter(link, ours, INGRESS)
        assert not rtnl.filters(tree.index, EGRESS)
        rtnl.close()

    apart(play)


def test_a_pod_is_refused_as_long_as_the_kernel_lacks_a_part() -> None:
    """Admission fails, every round says so, nothing of it stays after reset; with all parts it goes through."""

    def play() -> None:
        with PodNamespace() as inside:
            sh(VETH.format(pid=inside.pid))
            before = sh("ip -json link") + sh("tc qdisc show")
            traffic, sandbox = Traffic(NetworkSection(rate_mbit=100)), pod(inside.path)
            probe = traffic.probe()
            traffic.prepare()
            if probe.usable:
                traffic.admit(sandbox)
            else:
                with pytest.raises(NotEnforced, match="ENOENT"):
                    traffic.admit(sandbox)
            assert probe.usable == (not traffic.repair([sandbox]).failed)
            traffic.reset()
            assert sh("ip -json link") + sh("tc qdisc show") == before
            traffic.close()

    apart(play)


def test_an_unknown_class_is_named() -> None:
    """A profile's network has to be among the classes."""

    def play() -> None:
        with PodNamespace() as inside:
            sh(VETH.format(pid=inside.pid))
            traffic = Traffic(NetworkSection(rate_mbit=100, classes={}))
            traffic.prepare()
            with pytest.raises(NotEnforced, match=r"network = 'shared' in the pod's profile: not in network.classes"):
                traffic.admit(pod(inside.path))
            traffic.close()

    apart(play)


def refused(lacks: bool) -> AbstractContextManager[object]:
    """Expects the kernel's refusal where it lacks a module."""
    return pytest.raises(TrafficError, match=r"ENOENT .*where it has no such module") if lacks else nullcontext()


def _thread() -> int:
    return int(Path("/proc/thread-self").readlink().name)
