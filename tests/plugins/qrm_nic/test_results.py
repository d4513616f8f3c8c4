"""What containers and people are told."""

from __future__ import annotations

from dataclasses import replace

from qrm.allocator import NET_EGRESS, NET_INGRESS, ContainerKey, Quantities
from tests.plugins.qrm_nic.nodes import Node, ask, eth, two_nodes

FACTS = {"ipv4": "192.0.2.7", "ipv6": "2001:db8::7", "netns_path": "/run/netns/blue"}


def test_an_allocation_in_full() -> None:
    """All that is known is told, in Katalyst's annotations and in the environment."""
    node = Node(two_nodes(eth(0, 1)), {"nics": {"eth0": FACTS}})
    held = node.create(ask("a", 100, 50))
    assert (held.pool, held.device, str(held.nodes)) == ("eth0", "eth0", "1")
    assert held.amounts == {NET_EGRESS: {1: 100}, NET_INGRESS: {1: 50}}
    assert held.annotations == {
        "qrm.katalyst.kubewharf.io/nic_name": "eth0",
        "qrm.katalyst.kubewharf.io/net_bandwidth": "100",
        "qrm.katalyst.kubewharf.io/inet_addr": "192.0.2.7",
        "qrm.katalyst.kubewharf.io/inet_addr_ipv6": "2001:db8::7",
        "qrm.katalyst.kubewharf.io/netns_path": "/run/netns/blue",
    }
    assert held.envs == {
        "QRM_NIC_NAME": "eth0",
        "QRM_NET_EGRESS_MBIT": "100",
        "QRM_NET_INGRESS_MBIT": "50",
        "QRM_NIC_IPV4": "192.0.2.7",
        "QRM_NIC_IPV6": "2001:db8::7",
    }


def test_addresses_are_the_kernels_unless_the_operator_says_others() -> None:
    """The first of each kind is told; a setting wins."""
    nic = replace(eth(0, 1), addresses=("192.0.2.1", "192.0.2.2", "2001:db8::1"))
    held = Node(two_nodes(nic)).create(ask("a", 100))
    assert (held.envs["QRM_NIC_IPV4"], held.envs["QRM_NIC_IPV6"]) == ("192.0.2.1", "2001:db8::1")
    held = Node(two_nodes(nic), {"nics": {"eth0": FACTS}}).create(ask("a", 100))
    assert (held.envs["QRM_NIC_IPV4"], held.envs["QRM_NIC_IPV6"]) == ("192.0.2.7", "2001:db8::7")


def test_what_is_not_known_is_not_told() -> None:
    """No empty addresses, no bandwidth of nothing."""
    held = Node(two_nodes(eth(0, 1))).create(ask("a", 0, 50))
    assert held.annotations == {"qrm.katalyst.kubewharf.io/nic_name": "eth0"}
    assert held.envs == {"QRM_NIC_NAME": "eth0", "QRM_NET_INGRESS_MBIT": "50"}


def test_the_pods_line_is_for_no_container() -> None:
    """It has the sum, and neither annotations nor environment."""
    node = Node(two_nodes(eth(0, 1)))
    node.create(ask("a", 100))
    node.create(ask("a", 200, container="second"))
    line = node.holdings[ContainerKey("a", "")].allocation
    assert (line.device, line.amounts) == ("eth0", {NET_EGRESS: {1: 300}, NET_INGRESS: {1: 300}})
    assert (line.annotations, line.envs) == ({}, {})
    assert line.why == ("its containers were promised 300 Mbit/s egress and 300 Mbit/s ingress on eth0 on NUMA node 1")


def test_why() -> None:
    """One sentence each: the only one, the emptiest one, the pod's."""
    node = Node(two_nodes(eth(0, 0)), {"nics": {"blue0": {"namespace": "blue", "speed": 1000}}})
    only = node.create(ask("a", 470, 0, namespace="host_ns")).why
    assert only == "470 Mbit/s egress on eth0 on NUMA node 0, the only NIC that fits: 50% of it promised with this pod"
    emptiest = node.create(ask("b", 94, 0)).why
    assert emptiest == (
        "94 Mbit/s egress on blue0 on an unknown NUMA node in namespace blue,"
        " the emptiest of 2 NICs that fit: 10% of it promised with this pod"
    )
    assert node.create(ask("a", 1, 0, container="second")).why == (
        "1 Mbit/s egress on eth0 on NUMA node 0, where its pod is"
    )


def test_a_refusal_in_full() -> None:
    """Asked, free by NIC, the largest that would fit."""
    node = Node(two_nodes(eth(0, 0), eth(1, 1), eth(2, 1, up=False)))
    node.create(ask("a", 500, 100), on="0")
    assert node.refusal(ask("b", 950, 100)) == (
        "net_bandwidth: asked 950 Mbit/s egress and 100 Mbit/s ingress; free by NIC:"
        " eth1 on NUMA node 1: 940 egress and 900 ingress, eth0 on NUMA node 0: 440 egress and 800 ingress,"
        " eth2 on NUMA node 1: down; largest that would fit: 940 Mbit/s egress and 900 Mbit/s ingress"
    )


def test_a_refusal_without_nics() -> None:
    """It says that there are none."""
    assert Node(two_nodes()).refusal(ask("a", 1)) == (
        "net_bandwidth: asked 1 Mbit/s egress and 1 Mbit/s ingress; free by NIC: there are no NICs;"
        " largest that would fit: nothing"
    )


def test_a_refusal_stays_short() -> None:
    """A node may have hundreds of virtual functions."""
    refused = Node(two_nodes(*(eth(number) for number in range(200)))).refusal(ask("a", 5000))
    assert ", 192 more; largest" in refused
    assert len(refused) < 1000


def test_quantities() -> None:
    """Egress by node of the NICs in use; one without a node is counted at the lowest node."""
    node = Node(two_nodes(eth(0, 1), eth(1), eth(2, 0, up=False), eth(3, 1, None)), {"reserved": 40})
    node.create(ask("a", 100), on="1")
    assert node.twice(node.allocator.allocatable) == Quantities({0: 940, 1: 900}, {0: 940, 1: 800})
