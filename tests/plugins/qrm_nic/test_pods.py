"""What a pod as a whole holds, while its containers come and go."""

from __future__ import annotations

from dataclasses import replace

from qrm.allocator import Allocation, ContainerKey
from qrm.cpuset import NodeSet
from tests.plugins.qrm_nic.nodes import Node, ask, eth, mbit, two_nodes


def busy() -> Node:
    """Two NICs; pod a has 300 Mbit/s on the first one, which is now the fuller one."""
    node = Node(two_nodes(eth(0, 0), eth(1, 1)))
    node.create(ask("a", 300), on="0")
    return node


def test_all_containers_are_on_the_pods_nic() -> None:
    """Although another one is emptier and nearer, and their amounts add up."""
    node = busy()
    assert node.hints(ask("a", 200, container="second")) == [("0", True), ("0-1", False)]
    second = node.create(ask("a", 200, container="second"), on="1")
    assert (second.device, second.nodes, mbit(second)) == ("eth0", NodeSet([0]), (200, 200))
    assert node.of_pod("a") == (500, 500)
    assert node.free() == {0: 440, 1: 940}


def test_a_container_that_does_not_fit_on_the_pods_nic_is_refused() -> None:
    """Room elsewhere does not help it."""
    refused = busy().refusal(ask("a", 700, container="second"))
    assert "largest that would fit: 600 Mbit/s egress and 600 Mbit/s ingress; its pod is on eth0" in refused


def test_a_container_that_asks_for_nothing_changes_nothing() -> None:
    """Beside others in its pod it still holds nothing."""
    node = busy()
    assert node.create(ask("a", container="second")) == Allocation("")
    assert node.of_pod("a") == (300, 300)


def test_a_container_that_asks_for_nothing_any_more_gives_back() -> None:
    """It keeps a line on the pod's NIC, with nothing in it."""
    node = busy()
    node.create(ask("a", 100, container="second"))
    held = node.create(ask("a"))
    assert (held.device, held.amounts, node.of_pod("a")) == ("eth0", {}, (100, 100))
    assert node.hints(ask("a")) == [("0-1", True)]


def test_a_resize_changes_the_pods_total() -> None:
    """Down and up again, also beside an exited container whose room is kept."""
    node = busy()
    node.create(ask("a", 100, container="second"))
    node.exit("a", "second")
    totals = []
    for size in (50, 400, 300):
        node.create(ask("a", size))
        totals.append(node.of_pod("a")[0])
    assert totals == [150, 500, 400]
    assert "largest that would fit: 800 Mbit/s" in node.refusal(ask("a", 801))
    assert node.create(ask("a", 800)).device == "eth0"


def test_an_exited_container_can_come_back() -> None:
    """What it held is kept for its pod, and nobody else gets it."""
    node = busy()
    node.create(ask("a", 500, container="second"))
    node.exit("a", "second")
    assert node.of_pod("a") == (800, 800)
    assert "eth0 on NUMA node 0: 140 egress and 100 ingress" in node.refusal(ask("b", 950))
    node.create(ask("a", 500, container="second"))
    assert node.of_pod("a") == (800, 800)


def test_app_containers_use_the_room_of_exited_init_containers() -> None:
    """They run one after the other, so the pod is no bigger than the biggest of them."""
    node = Node(two_nodes(eth(0, 0)))
    node.create(ask("a", 800, container="init"))
    node.exit("a", "init")
    node.create(ask("a", 500))
    node.create(ask("a", 300, container="second"))
    assert node.of_pod("a") == (800, 800)


def test_a_container_that_left_gives_back() -> None:
    """The pod's total follows at the next settling, and the room is there for others."""
    node = busy()
    node.create(ask("a", 500, container="second"))
    node.remove("a", "second")
    assert node.of_pod("a") == (300, 300)
    node.remove("a", "main")
    assert node.of_pod("a") == (0, 0)
    assert node.free() == {0: 940, 1: 940}


def test_a_pod_that_left_gives_everything_back() -> None:
    """The NIC is as before."""
    node = busy()
    before = node.free()
    node.create(ask("b", 600), on="0")
    node.remove("b")
    assert node.free() == before
    assert node.create(ask("c", 600), on="0").device == "eth0"


def test_a_pod_is_known_by_its_containers_alone() -> None:
    """The ledger was lost, and with it the line of the pod: it is put back with the next container."""
    node = busy()
    node.create(ask("a", 100, container="second"))
    node.exit("a", "second")
    del node.holdings[ContainerKey("a", "")]
    assert node.settle().allocations == {}
    assert node.free() == {0: 540, 1: 940}
    assert node.create(ask("a", 50, container="third")).device == "eth0"
    assert node.of_pod("a") == (450, 450)
    assert "largest that would fit: 550 Mbit/s" in node.refusal(ask("a", 999, container="fourth"))


def test_directions_are_apart() -> None:
    """Ingress is the egress where it is not said, and what is not asked is not held."""
    node = Node(two_nodes(eth(0, 0)))
    assert mbit(node.create(ask("a", 100))) == (100, 100)
    assert mbit(node.create(ask("b", 100, 0))) == (100, 0)
    assert mbit(node.create(ask("c", 0, 700))) == (0, 700)
    assert mbit(node.create(ask("d", 700, 100))) == (700, 100)
    assert "largest that would fit: 40 Mbit/s egress" in node.refusal(ask("e", 41, 0))


def test_adopted_or_not_a_held_amount_counts() -> None:
    """What is held is what the allocation says, even if the request is not known any more."""
    node = busy()
    key = ContainerKey("a", "main")
    node.holdings[key] = replace(node.holdings[key], request=ask("a"), adopted=True)
    assert node.settle().allocations == {}
    assert node.free() == {0: 640, 1: 940}
