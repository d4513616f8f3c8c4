"""Which NIC a pod gets, and which NUMA nodes are hinted for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qrm.allocator import BadRequest, DoesNotFit, ResourceRequest
from qrm.allocator.testing import machine
from qrm.cpuset import NodeSet
from qrm.topology.machine import Nic
from tests.plugins.qrm_nic.nodes import Node, ask, eth, mbit, two_nodes

BLUE = {"nics": {"blue0": {"namespace": "blue", "speed": 1000, "node": 1}}}


def test_each_nic_that_fits_is_hinted_and_then_all_nodes() -> None:
    """Near a NIC is preferred, anywhere is possible."""
    node = Node(two_nodes(eth(0, 0), eth(1, 1)))
    assert node.hints(ask("a", 100)) == [("0", True), ("1", True), ("0-1", False)]


def test_restricted_pods_are_hinted_no_other_nodes() -> None:
    """They are near their NIC or refused."""
    node = Node(two_nodes(eth(0, 0), eth(1, 1)))
    assert node.hints(ask("a", 100, restricted=True)) == [("0", True), ("1", True)]


def test_two_nics_on_one_node_are_one_hint() -> None:
    """Hints are about nodes, not NICs."""
    node = Node(two_nodes(eth(0, 1), eth(1, 1)))
    assert node.hints(ask("a", 100)) == [("1", True), ("0-1", False)]


def test_a_nic_without_a_node_is_good_everywhere() -> None:
    """Its hint is all nodes with CPUs, preferred, and only once; restricted pods may have it too."""
    node = Node(replace(machine(sockets=2, memory_only=1), nics=(eth(0),)))
    assert node.hints(ask("a", 100)) == [("0-1", True)]
    assert node.hints(ask("a", 100, restricted=True)) == [("0-1", True)]
    held = node.create(ask("a", 100, restricted=True), on="1")
    assert (held.device, held.nodes) == ("eth0", NodeSet())
    assert held.amounts["resource.katalyst.kubewharf.io/net_bandwidth"] == {0: 100}


def test_a_node_without_cpus_is_no_place_to_be_near() -> None:
    """A NIC there is as one whose node is unknown, and so is one on a node that the machine does not have."""
    node = Node(replace(machine(memory_only=1, sockets=2), nics=(eth(0, 2),)), {"nics": {"eth0": {"node": 2}}})
    assert node.hints(ask("a", 100)) == [("0-1", True)]
    assert Node(two_nodes(eth(0, 0)), {"nics": {"eth0": {"node": 7}}}).hints(ask("a", 100)) == [("0-1", True)]


def test_who_asks_for_nothing_gets_nothing() -> None:
    """One hint without a preference, and no allocation, NICs or not."""
    for each in (Node(two_nodes(eth(0, 1))), Node(two_nodes())):
        assert each.hints(ask("a")) == [("0-1", True)]
        assert each.create(ask("a")).device == ""
        assert each.holdings == {}


def test_the_emptier_nic_is_taken() -> None:
    """By the part of it that is promised, not by Mbit/s; of equals the first by name."""
    node = Node(two_nodes(eth(1, 0, 1000), eth(0, 0, 1000), eth(2, 0, 4000)))
    taken = [node.create(ask(pod, 900, 90)).device for pod in "abcdef"]
    assert taken == ["eth2", "eth2", "eth2", "eth0", "eth1", "eth2"]


def test_the_fuller_direction_counts() -> None:
    """A NIC that only sends is still full in that direction."""
    node = Node(two_nodes(eth(0, 0), eth(1, 0)))
    node.create(ask("a", 0, 800))
    assert node.create(ask("b", 10)).device == "eth1"
    assert node.create(ask("c", 300, 0)).device == "eth1"
    assert node.create(ask("d", 940, 0)).device == "eth0"


def test_a_full_nic_is_no_choice() -> None:
    """Bandwidth is the first filter, before any wish."""
    node = Node(two_nodes(eth(0, 0), eth(1, 1)))
    node.create(ask("a", 600), on="0")
    assert node.hints(ask("b", 600)) == [("1", True), ("0-1", False)]
    held = node.create(ask("b", 600), on="0")
    assert (held.device, held.nodes) == ("eth1", NodeSet([1]))


def test_the_hints_node_decides() -> None:
    """The NIC on it wins over an emptier one elsewhere, and over one whose node is unknown."""
    node = Node(two_nodes(eth(0, 0), eth(1, 1), eth(2)))
    for pod in "abc":
        assert node.create(ask(pod, 200), on="1").device == "eth1"
    assert node.create(ask("d", 400), on="1").device == "eth2"
    assert node.create(ask("e", 300), on="0-1").device == "eth0"


def test_down_nics_get_no_new_pods_and_keep_the_old() -> None:
    """A pod whose NIC went down stays, can restart, and is not moved when another NIC has room."""
    node = Node(two_nodes(eth(0, 0), eth(1, 1)))
    held = node.create(ask("a", 500), on="0")
    node.machine = two_nodes(eth(0, 0, None, up=False), eth(1, 1))
    assert node.settle().allocations == {}
    assert node.hints(ask("b", 500)) == [("1", True), ("0-1", False)]
    node.exit("a")
    assert node.hints(ask("a", 500)) == [("0", True), ("0-1", False)]
    assert mbit(node.create(ask("a", 500))) == mbit(held)
    assert "largest that would fit: 500 Mbit/s egress and 500 Mbit/s ingress" in node.refusal(ask("a", 501))


def test_a_pod_outlives_its_nic() -> None:
    """The NIC is gone from the machine, the pod is not."""
    node = Node(two_nodes(eth(0, 0), eth(1, 1)))
    node.create(ask("a", 500), on="0")
    node.machine = two_nodes(eth(1, 1))
    node.exit("a")
    held = node.create(ask("a", 500))
    assert (held.device, held.nodes, mbit(held)) == ("eth0", NodeSet([0]), (500, 500))
    assert node.free() == {1: 940}


def test_unknown_speed_is_not_used_unless_assumed_or_said() -> None:
    """Each of the two settings makes the NIC usable, and what is said of it wins."""
    nics = two_nodes(eth(0, 0, None))
    refused = Node(nics).refusal(ask("a", 100))
    assert "eth0 on NUMA node 0: speed unknown" in refused
    assert "(the speed of eth0 is not known: set assume_speed or nics.eth0.speed)" in refused
    assert Node(nics, {"assume_speed": 500}).free() == {0: 470}
    assert Node(nics, {"assume_speed": 500, "nics": {"eth0": {"speed": 100}}}).free() == {0: 94}


def test_what_the_operator_says_wins() -> None:
    """Speed and node replace those of sysfs; ignored NICs get no new pods."""
    said = {"eth0": {"speed": 100, "node": 1}, "eth1": {"ignore": True}}
    node = Node(two_nodes(eth(0, 0), eth(1, 1)), {"nics": said})
    assert node.twice(node.allocator.allocatable).allocatable == {1: 94}
    assert "eth1 on NUMA node 1: ignored" in node.refusal(ask("a", 200))


def test_a_bond_is_a_nic() -> None:
    """Topology lists it in place of its ports, with their sum as its speed."""
    node = Node(two_nodes(Nic("bond0", 50000, None, up=True)))
    assert node.create(ask("a", 40000)).device == "bond0"


@pytest.mark.parametrize(
    ("wanted", "device"),
    [
        (None, "blue0"),
        ("host_ns", "eth0"),
        ("host_ns_preferred", "eth0"),
        ("anti_host_ns", "blue0"),
        ("anti_host_ns_preferred", "blue0"),
    ],
)
def test_the_network_namespace_is_chosen(wanted: str | None, device: str) -> None:
    """NICs of other namespaces are known from the settings alone; without a wish the emptier NIC wins."""
    node = Node(two_nodes(eth(0, 0)), BLUE)
    node.create(ask("first", 100), on="0")
    assert node.create(ask("a", 200, namespace=wanted), on="0-1").device == device


@pytest.mark.parametrize(("wish", "instead"), [("host_ns", "blue0"), ("anti_host_ns", "eth0")])
def test_a_namespace_can_be_a_wish_or_a_condition(wish: str, instead: str) -> None:
    """Where the NICs of that namespace are full, who only prefers it gets another one."""
    node = Node(two_nodes(eth(0, 0)), BLUE)
    node.create(ask("first", 800, namespace=wish))
    assert node.create(ask("a", 300, namespace=f"{wish}_preferred")).device == instead
    where = "in" if wish == "host_ns" else "outside"
    assert f"namespace_type {wish} allows only NICs {where} the host's" in node.refusal(ask("b", 300, namespace=wish))


def test_a_wish_does_not_make_a_restricted_pod_fail() -> None:
    """The preferred namespace has nothing on the pod's node, so the other one counts."""
    node = Node(two_nodes(eth(0, 0)), BLUE)
    asked = ask("a", 100, namespace="host_ns_preferred", restricted=True)
    assert node.hints(asked) == [("0", True)]
    assert node.create(asked, on="1").device == "blue0"


def test_a_restricted_pod_is_refused_on_other_nodes() -> None:
    """The refusal says that it is its own condition."""
    node = Node(two_nodes(eth(0, 0)))
    asked = ask("a", 100, restricted=True)
    elsewhere = replace(node.allocator.hints(asked, node.state)[0], nodes=NodeSet([1]))
    with pytest.raises(DoesNotFit, match=r"largest that would fit: nothing; .* allows only NICs on NUMA node 1$"):
        node.allocator.allocate(asked, elsewhere, node.state)
    assert node.create(ask("b", 100), on="1").device == "eth0"


def test_a_restricted_pod_on_named_nodes_needs_a_nic_there() -> None:
    """The nodes are known before the hints are merged, so the refusal can say what is missing."""
    node = Node(two_nodes(eth(0, 0), eth(1, 1)))
    assert node.hints(ask("a", 100, restricted=True, numa_ids="1")) == [("1", True)]
    assert node.hints(ask("a", 100, numa_ids="1"))[0] == ("0", True)
    node.machine = two_nodes(eth(0, 0))
    assert "allows only NICs on NUMA node 1" in node.refusal(ask("a", 100, restricted=True, numa_ids="1"))


def test_nodes_that_do_not_exist_are_a_bad_request() -> None:
    """As for CPUs."""
    with pytest.raises(BadRequest, match=r"numa_ids asks for NUMA nodes '3' \(this machine has nodes 0-1\)"):
        Node(two_nodes(eth(0, 0))).hints(ask("a", 100, numa_ids="3"))


@pytest.mark.parametrize("asked", [ask("a", -1), ask("a", 5, -1)])
def test_less_than_nothing_is_a_bad_request(asked: ResourceRequest) -> None:
    """Adding it up would make room out of nothing."""
    with pytest.raises(BadRequest, match=r"is -1 .0 or more Mbit/s are allowed"):
        Node(two_nodes(eth(0, 0))).hints(asked)
