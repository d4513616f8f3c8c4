"""On which NUMA nodes dedicated pods live."""

from __future__ import annotations

import pytest

from qrm.allocator import BadRequest, ContainerKey, CpuEnhancement, DoesNotFit, ResourceRequest, TopologyHint
from qrm.allocator.testing import Harness, machine, request
from qrm.cpuset import NodeSet
from qrm.topology.machine import Machine
from tests.plugins.qrm_cpu.nodes import DEDICATED, SHARED, cpus, node, two_nodes


def four_nodes() -> Machine:
    """Two sockets of two NUMA nodes each, four CPUs without SMT in each node."""
    return machine(sockets=2, nodes_per_socket=2, cores_per_l3=4)


def offered(on: Harness, asked: ResourceRequest) -> list[tuple[str, bool]]:
    """The hints as text, with whether they are preferred."""
    return [(str(hint.nodes), hint.preferred) for hint in on.allocator.hints(asked, on.state)]


def test_one_node_is_best_the_one_with_the_fewest_cpus_that_suffice() -> None:
    """Large gaps stay for large pods."""
    on = node(two_nodes())
    on.create(request("a", 4000, DEDICATED))
    assert on.create(request("b", 3000, DEDICATED)).nodes == NodeSet([0])
    assert on.create(request("c", 3000, DEDICATED)).nodes == NodeSet([1])


def test_without_binding_as_few_nodes_as_possible() -> None:
    """More than a node is no reason to refuse a pod that is not bound to one."""
    on = node(four_nodes())
    assert on.create(request("a", 6000, DEDICATED)).nodes == NodeSet([0, 1])
    with pytest.raises(DoesNotFit):
        on.create(request("b", 6000, DEDICATED, numa_binding=True))


def test_hints_come_best_first() -> None:
    """Few nodes, then few sockets; preferred are those that an empty machine would need."""
    assert offered(node(four_nodes()), request("a", 6000, DEDICATED))[:7] == [
        ("0-1", True),
        ("2-3", True),
        ("0,2", False),
        ("0,3", False),
        ("1-2", False),
        ("1,3", False),
        ("0-2", False),
    ]


def test_hints_that_only_a_full_machine_needs_are_not_preferred() -> None:
    """So that a restricted topology policy can refuse what would be spread for want of room."""
    on = node(machine(sockets=2, cores_per_l3=4))
    on.create(request("a", 2000, DEDICATED, numa_binding=True, numa_ids="0"))
    on.create(request("b", 2000, DEDICATED, numa_binding=True, numa_ids="1"))
    assert offered(on, request("c", 3000, DEDICATED)) == [("0-1", False)]


def test_hints_are_bounded_on_machines_with_many_nodes() -> None:
    """From eight nodes on only one size more than needed is offered, and not all of a hundred thousand sets."""
    hints = offered(node(machine(sockets=2, nodes_per_socket=4, cores_per_l3=2)), request("a", 5000, DEDICATED))
    assert {len(NodeSet.parse(nodes)) for nodes, _ in hints} == {3, 4}
    many = offered(node(machine(sockets=2, nodes_per_socket=12, cores_per_l3=2)), request("a", 20000, DEDICATED))
    assert {len(NodeSet.parse(nodes)) for nodes, _ in many} == {10, 11}
    assert len(many) < 40
    assert many[0] == ("0-9", True)


def test_a_pod_stays_where_it_is() -> None:
    """Its other containers get the nodes that it is on as their only hint."""
    on = node(two_nodes())
    on.create(request("a", 2000, DEDICATED, numa_binding=True), choice=1)
    assert offered(on, request("a", 1000, DEDICATED, container="second", numa_binding=True)) == [("1", True)]


def test_a_bound_pod_that_cannot_grow_at_home_is_refused() -> None:
    """Its memory is there already."""
    on = node(two_nodes())
    on.create(request("a", 4000, DEDICATED, numa_binding=True))
    on.create(request("b", 3000, DEDICATED, numa_binding=True))
    with pytest.raises(DoesNotFit) as refused:
        on.resize("a", 6000)
    assert str(refused.value) == (
        "cpu: asked 6 CPUs (the whole pod, which has 4) for dedicated_cores with numa_binding;"
        " free by NUMA node: 0: 1, 1: 7; largest that would fit: 5"
    )


def test_numa_number_is_a_number_of_nodes() -> None:
    """The hints are sets of that many nodes, those in one socket first and preferred."""
    asked = request("a", 4000, DEDICATED, numa_binding=True, numa_number=2)
    assert offered(node(four_nodes()), asked)[:3] == [("0-1", True), ("2-3", True), ("0,2", False)]


def test_numa_ids_are_exactly_those_nodes() -> None:
    """They win over the number, and are offered with the nodes that only have memory."""
    on = node(machine(sockets=2, cores_per_l3=4, memory_only=1))
    asked = request("a", 5000, DEDICATED, numa_binding=True, numa_ids="0-2", numa_number=1)
    assert offered(on, asked) == [("0-2", True)]
    assert on.create(asked).cpus == cpus("0-4")


def test_numa_ids_without_binding_are_a_wish() -> None:
    """Other nodes do as well, behind the wanted ones."""
    asked = request("a", 2000, DEDICATED, numa_ids="1")
    assert offered(node(two_nodes()), asked) == [("1", True), ("0", False), ("0-1", False)]


@pytest.mark.parametrize(
    ("ids", "number", "message"),
    [
        (
            "1,7",
            None,
            (
                "katalyst.kubewharf.io/numa_ids asks for NUMA nodes '1,7'"
                " (this machine has nodes 0-2, of which 0-1 have CPUs)"
            ),
        ),
        (
            "2",
            None,
            (
                "katalyst.kubewharf.io/numa_ids asks for NUMA nodes '2'"
                " (this machine has nodes 0-2, of which 0-1 have CPUs)"
            ),
        ),
        (None, 3, "katalyst.kubewharf.io/numa_number asks for 3 NUMA nodes (this machine has 2 with CPUs)"),
    ],
)
def test_nodes_that_do_not_exist_are_a_bad_request(ids: str | None, number: int | None, message: str) -> None:
    """No waiting helps there, so it is not the same as a full machine."""
    on = node(machine(sockets=2, cores_per_l3=4, memory_only=1))
    with pytest.raises(BadRequest) as refused:
        on.create(request("a", 1000, DEDICATED, numa_binding=True, numa_ids=ids, numa_number=number))
    assert str(refused.value) == message


def test_an_exclusive_pod_has_the_node_for_itself() -> None:
    """It gets all of the node's CPUs but the reserved ones, and its only container runs on all of them."""
    on = node(two_nodes(), reserved="0")
    held = on.create(request("a", 2000, DEDICATED, numa_binding=True, numa_exclusive=True))
    assert held.cpus == cpus("1-3,8-11")
    assert held.exclusive == cpus("1,9")
    assert on.holdings[ContainerKey("a", "")].allocation.exclusive == cpus("1-3,8-11")
    assert on.create(request("s")).nodes == NodeSet([1])


def test_nobody_comes_to_an_exclusive_node() -> None:
    """Neither dedicated nor NUMA-bound shared pods."""
    on = node(two_nodes())
    on.create(request("a", 2000, DEDICATED, numa_binding=True, numa_exclusive=True))
    assert offered(on, request("b", 1000, DEDICATED)) == [("1", True)]
    assert offered(on, request("b", 1000, SHARED, numa_binding=True)) == [("1", True)]


@pytest.mark.parametrize("level", [DEDICATED, SHARED])
def test_an_exclusive_pod_comes_to_no_node_with_others(level: object) -> None:
    """It would have to drive them out."""
    on = node(two_nodes())
    neighbour = request("b", 1000, DEDICATED if level is DEDICATED else SHARED, numa_binding=True)
    assert on.create(neighbour).nodes == NodeSet([0])
    assert offered(on, request("a", 2000, DEDICATED, numa_binding=True, numa_exclusive=True)) == [("1", True)]


def test_an_exclusive_pod_gets_as_many_nodes_as_it_needs() -> None:
    """As in Katalyst, binding to one node only holds for pods that leave room on it for others."""
    on = node(four_nodes())
    held = on.create(request("a", 6000, DEDICATED, numa_binding=True, numa_exclusive=True))
    assert held.nodes == NodeSet([0, 1])


def test_an_exclusive_pod_leaves_a_node_for_the_rest() -> None:
    """The refusal tells what it could have had."""
    with pytest.raises(DoesNotFit) as refused:
        node(two_nodes()).create(request("a", 9000, DEDICATED, numa_binding=True, numa_exclusive=True))
    assert str(refused.value) == (
        "cpu: asked 9 CPUs for dedicated_cores with numa_binding, numa_exclusive;"
        " free by NUMA node: 0: 8, 1: 8; largest that would fit: 8"
    )


def test_evenly_gives_each_node_the_same_number() -> None:
    """With whole cores it is the same number of cores."""
    even = CpuEnhancement(distribute_evenly_across_numa=True)
    held = node(two_nodes()).create(request("a", 6000, DEDICATED, numa_binding=True, numa_number=2, cpu=even))
    assert held.cpus == cpus("0-1,4-5,8,12")
    cores = CpuEnhancement(distribute_evenly_across_numa=True, full_pcpus_pairing=True)
    held = node(two_nodes()).create(request("a", 8000, DEDICATED, numa_binding=True, numa_number=2, cpu=cores))
    assert held.cpus == cpus("0-1,4-5,8-9,12-13")


def test_evenly_is_refused_where_it_does_not_divide() -> None:
    """The refusal says so, because free CPUs alone would not explain it."""
    even = CpuEnhancement(distribute_evenly_across_numa=True)
    with pytest.raises(DoesNotFit) as refused:
        node(two_nodes()).create(request("a", 5000, DEDICATED, numa_binding=True, numa_number=2, cpu=even))
    assert str(refused.value) == (
        "cpu: asked 5 CPUs for dedicated_cores with numa_binding, distribute_evenly_across_numa, numa_number 2;"
        " free by NUMA node: 0: 8, 1: 8; largest that would fit: 0; 5 CPUs cannot be divided evenly"
    )


def test_align_by_socket_does_not_cross_sockets() -> None:
    """As long as the nodes of one socket are as many as are asked for."""
    align = CpuEnhancement(align_by_socket=True)
    two = request("a", 4000, DEDICATED, numa_binding=True, numa_number=2, cpu=align)
    assert offered(node(four_nodes()), two) == [("0-1", True), ("2-3", True)]
    three = request("a", 4000, DEDICATED, numa_binding=True, numa_number=3, cpu=align)
    assert len(offered(node(four_nodes()), three)) == 4


def test_the_hint_decides() -> None:
    """The CPUs come from the nodes of the hint, even if others would be better."""
    on = node(two_nodes())
    asked = request("a", 2000, DEDICATED)
    changes = on.allocator.allocate(asked, TopologyHint(NodeSet([1]), preferred=False), on.state)
    assert changes.allocations[asked.key].cpus == cpus("4,12")


def test_a_hint_on_which_nothing_fits_is_refused() -> None:
    """Another resource may have insisted on it."""
    on = node(two_nodes())
    on.create(request("b", 7000, DEDICATED, numa_binding=True))
    with pytest.raises(DoesNotFit, match="free by NUMA node: 0: 1, 1: 7; largest that would fit: 1"):
        on.allocator.allocate(request("a", 2000, DEDICATED), TopologyHint(NodeSet([0]), preferred=True), on.state)
