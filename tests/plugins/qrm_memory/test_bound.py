"""Bound pods: on which NUMA nodes they come, and that they stay there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qrm.allocator import BadRequest, DoesNotFit, NativeQos, ResourceRequest
from qrm.cpuset import NodeSet
from qrm.topology.generate import GIB
from tests.plugins.qrm_memory.nodes import DEDICATED, MIB, RECLAIMED, SHARED, SYSTEM, Node, ask, machine


def bound(pod: str, gib: float = 0, **more: object) -> ResourceRequest:
    """A dedicated pod with numa_binding."""
    return ask(pod, gib, DEDICATED, binding=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", [DEDICATED, SHARED])
def test_one_node_the_one_with_most_free_memory_first(level: object) -> None:
    """With numa_binding a pod is on one node."""
    node = Node(machine(sockets=3))
    node.create(bound("a", 3), on="0")
    node.create(bound("b", 1), on="1")
    assert node.hints(ask("c", 4, level, binding=True)) == [("2", True), ("1", True), ("0", True)]  # type: ignore[arg-type]
    assert node.hints(ask("c", 6, level, binding=True)) == [("2", True), ("1", True)]  # type: ignore[arg-type]


def test_the_answer_counts_by_node() -> None:
    """The container and its pod hold the node; amounts are in bytes."""
    node = Node(machine(hugepages={GIB: 2}))
    held = node.create(bound("a", 3, pages={"1Gi": 1}), on="1")
    assert (held.pool, str(held.nodes)) == ("dedicated", "1")
    assert held.amounts == {"memory": {1: 3 * GIB}, "hugepages-1Gi": {1: GIB}}
    assert held.why == "NUMA node 1, of which 6Gi was free"
    assert not held.cpus
    assert not held.exclusive
    assert node.amounts("a", "") == {1: 3}
    assert node.free() == {0: 6, 1: 3}


def test_without_binding_as_few_nodes_as_possible() -> None:
    """Only sets as small as on an empty machine are preferred; near ones come first."""
    node = Node(machine(sockets=2, nodes_per_socket=2))
    assert node.hints(ask("a", 6, DEDICATED))[:4] == [("0", True), ("1", True), ("2", True), ("3", True)]
    assert node.hints(ask("a", 10, DEDICATED))[:3] == [("0-1", True), ("2-3", True), ("0,2", True)]
    assert ("0-2", False) in node.hints(ask("a", 10, DEDICATED))
    for number in range(4):
        node.create(bound(f"b{number}", 3), on=str(number))
    assert node.hints(ask("a", 6, DEDICATED))[0] == ("0-1", False)


def test_a_pod_that_needs_several_nodes_for_its_cpus_prefers_its_memory_there_too() -> None:
    """Its memory alone would fit on one."""
    node = Node(machine())
    assert node.hints(ask("a", 1, DEDICATED, cpus=6)) == [("0", True), ("1", True), ("0-1", True)]
    assert node.nodes("a") == "0-1" if node.create(ask("a", 1, DEDICATED, cpus=6), on="0-1") else False
    assert node.amounts("a") == {0: 0.5, 1: 0.5}


def test_numa_number_and_numa_ids() -> None:
    """With binding they are met exactly; shared pods get one of the named nodes."""
    node = Node(machine(sockets=3))
    assert node.hints(bound("a", 1, number=2)) == [("0-1", True), ("0,2", True), ("1-2", True)]
    assert node.hints(bound("a", 1, ids="0,2")) == [("0,2", True)]
    assert node.hints(ask("a", 1, SHARED, binding=True, ids="1-2")) == [("1", True), ("2", True)]
    assert node.hints(ask("a", 1, DEDICATED, number=2))[0] == ("0-1", True)
    assert node.create(bound("a", 1, ids="0,2")).amounts == {"memory": {0: GIB // 2, 2: GIB // 2}}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            bound("a", 1, ids="0,5"),
            (
                "katalyst.kubewharf.io/numa_ids asks for NUMA nodes '0,5'"
                " (nodes 0 of this machine have CPUs and memory; 2 have memory alone, for pods with"
                " qrm.io/memory_only_nodes)"
            ),
        ),
        (
            bound("a", 1, ids="1"),
            (
                "katalyst.kubewharf.io/numa_ids asks for NUMA nodes '1'"
                " (nodes 0 of this machine have CPUs and memory; 2 have memory alone, for pods with"
                " qrm.io/memory_only_nodes)"
            ),
        ),
        (
            bound("a", 1, number=2),
            "katalyst.kubewharf.io/numa_number asks for 2 NUMA nodes (this machine has 1 with CPUs and memory)",
        ),
        (ask("a", pages={"big": 1}), "hugepages-big names no page size (write it like hugepages-2Mi or hugepages-1Gi)"),
    ],
)
def test_what_the_machine_does_not_have_is_a_bad_request(asked: ResourceRequest, message: str) -> None:
    """The message names the annotation and what there is."""
    node = Node(machine(memory_only=1, cpu_only_nodes=NodeSet([1])))
    with pytest.raises(BadRequest) as refused:
        node.allocator.hints(asked, node.state)
    assert str(refused.value) == message


def test_exclusive_nodes_are_nobody_elses() -> None:
    """Floating pods are pushed to the other nodes, and get them back."""
    node = Node(machine(sockets=3))
    for level in (SHARED, RECLAIMED, SYSTEM):
        node.create(ask(str(level), 1, level))
    node.create(ask("narrow", 1, RECLAIMED, binding=True), on="1")
    assert node.create(bound("a", 4, exclusive=True), on="1").why == "NUMA node 1, for its pod alone"
    assert [node.nodes(str(level)) for level in (SHARED, RECLAIMED, SYSTEM)] == ["0,2"] * 3
    assert node.nodes("narrow") == "0,2"
    assert node.create(ask("late", 1)).nodes == node.create(ask("later", 1, SYSTEM)).nodes
    assert node.nodes("late") == "0,2"
    assert node.free()[1] == 0
    node.remove("a")
    assert [node.nodes(pod) for pod in ("late", "later", str(SHARED))] == ["0-2"] * 3


def test_exclusive_nodes_are_empty_ones() -> None:
    """Bound pods on a node block it, whatever they ask for."""
    node = Node(machine(sockets=3))
    node.create(ask("b", 0, SHARED, binding=True), on="0")
    assert node.hints(bound("a", 1, exclusive=True)) == [("1", True), ("2", True), ("1-2", False)]


def test_an_exclusive_pod_leaves_a_node_to_the_others() -> None:
    """On the last node containers float."""
    node = Node(machine())
    node.create(ask("f", 7))
    assert node.hints(bound("a", 8, exclusive=True)) == [("0", True), ("1", True)]
    assert node.refusal(bound("a", 9, exclusive=True)) == (
        "memory: asked 9Gi for dedicated_cores with numa_binding, numa_exclusive; free by NUMA node: 0: 8Gi, 1: 8Gi;"
        " largest that would fit: 8Gi"
    )
    node.create(bound("a", 1, exclusive=True))
    assert node.refusal(bound("b", exclusive=True)) == (
        "memory: asked 0 for dedicated_cores with numa_binding, numa_exclusive; free by NUMA node: 0: 0, 1: 1Gi;"
        " largest that would fit: 0; a pod that wants NUMA nodes for itself needs ones without bound pods,"
        " and must leave one for others"
    )


def test_an_exclusive_pod_leaves_memory_for_what_floats() -> None:
    """What floating pods were promised must fit on the other nodes."""
    node = Node(machine())
    node.create(ask("f", 8))
    node.create(ask("g", 1))
    assert node.refusal(bound("a", 1, exclusive=True)) == (
        "memory: asked 1Gi for dedicated_cores with numa_binding, numa_exclusive; free by NUMA node: 0: 7Gi, 1: 7Gi;"
        " largest that would fit: 0; what other containers were promised would not fit on the other nodes"
    )


def test_all_containers_of_a_pod_stay_together() -> None:
    """The second one goes where the first one is, or not at all."""
    node = Node(machine())
    node.create(bound("a", 5), on="1")
    assert node.hints(bound("a", 2, container="side")) == [("1", True)]
    assert node.create(bound("a", 2, container="side")).why == "NUMA node 1, where its pod is"
    assert node.amounts("a", "") == {1: 7}
    assert node.refusal(bound("a", 2, container="third")) == (
        "memory: asked 9Gi (the whole pod, which has 7Gi) for dedicated_cores with numa_binding;"
        " free by NUMA node: 0: 8Gi, 1: 1Gi; largest that would fit: 8Gi; the pod stays on NUMA node 1"
    )


def test_an_init_container_leaves_its_memory_to_those_after_it() -> None:
    """What the pod had stays reserved for it, and only for it."""
    node = Node(machine(sockets=1))
    node.create(bound("a", 5, container="init"))
    node.exit("a", "init")
    assert node.free() == {0: 3}
    node.create(bound("a", 6))
    assert node.amounts("a", "") == {0: 6}
    node.exit("a")
    node.create(bound("b", 2))
    with pytest.raises(DoesNotFit):
        node.hints(bound("c", 1))
    assert node.create(bound("a", 6)).amounts == {"memory": {0: 6 * GIB}}


def test_a_pod_grows_and_shrinks_where_it_is() -> None:
    """It is refused with numbers where it cannot, and keeps what it has."""
    node = Node(machine())
    node.create(bound("a", 2), on="0")
    node.create(bound("b", 4), on="0")
    node.create(bound("a", 4))
    assert node.free() == {0: 0, 1: 8}
    assert node.refusal(bound("a", 5)) == (
        "memory: asked 5Gi (the whole pod, which has 4Gi) for dedicated_cores with numa_binding;"
        " free by NUMA node: 0: 0, 1: 8Gi; largest that would fit: 4Gi; the pod stays on NUMA node 0"
    )
    node.create(bound("a", 1))
    assert node.free() == {0: 3, 1: 8}


def test_parts_of_a_pod_make_room_for_others() -> None:
    """A pod on two nodes may use the memory of both, so what it counts for on one node can move to the other."""
    node = Node(machine())
    node.create(ask("a", 6, DEDICATED), on="0-1")
    assert node.amounts("a") == {0: 3, 1: 3}
    node.create(bound("b", 7), on="0")
    assert node.amounts("a") == node.amounts("a", "") == {0: 1, 1: 5}
    assert node.refusal(bound("c", 4)) == (
        "memory: asked 4Gi for dedicated_cores with numa_binding; free by NUMA node: 0: 1Gi, 1: 3Gi;"
        " largest that would fit: 3Gi"
    )


def test_hugepages_count_by_node() -> None:
    """Each size for itself, in whole pages; sizes may be spelled otherwise."""
    node = Node(machine(hugepages={GIB: 2, 2 * MIB: 256}))
    node.create(bound("a", pages={"1Gi": 1.5}), on="0")
    assert node.amounts("a", resource="hugepages-1Gi") == {0: 2}
    assert node.hints(bound("b", pages={"1024Mi": 1})) == [("1", True)]
    assert node.refusal(bound("b", 9, pages={"1Gi": 3, "2Mi": 0.5})) == (
        "memory: asked 9Gi for dedicated_cores with numa_binding; free by NUMA node: 0: 5.5Gi, 1: 5.5Gi;"
        " largest that would fit: 5.5Gi. hugepages-1Gi: asked 3Gi for dedicated_cores with numa_binding;"
        " free by NUMA node: 0: 0, 1: 2Gi; largest that would fit: 2Gi"
    )
    assert node.refusal(bound("b", pages={"16Mi": 1})) == (
        "hugepages-16Mi: asked 1Gi for dedicated_cores with numa_binding; free by NUMA node: 0: 0, 1: 0;"
        " largest that would fit: 0"
    )


def test_what_fits_only_apart_is_refused() -> None:
    """Memory on one node and hugepages on another are no place for a bound pod."""
    node = Node(machine(hugepages={GIB: 2}))
    node.create(bound("a", pages={"1Gi": 2}), on="0")
    node.create(bound("b", 5), on="1")
    assert node.refusal(bound("c", 3, pages={"1Gi": 1})).endswith("; not all of this on one set of NUMA nodes")


def test_without_a_memory_request_the_limit_counts() -> None:
    """For Guaranteed and dedicated pods, which have both equal or mean it so."""
    node = Node(machine())
    assert node.create(ask("a", None, DEDICATED, limit=3)).amounts == {"memory": {0: 3 * GIB}}
    assert node.create(ask("b", None, native=NativeQos.GUARANTEED, limit=2)).amounts != {}
    assert node.create(ask("c", None, limit=2)).amounts == {}
    assert node.create(ask("d", 0, DEDICATED, limit=2)).amounts == {}


def test_memory_only_nodes_are_for_those_who_ask() -> None:
    """They are added to the nodes of the hint, and their memory counts."""
    node = Node(machine(memory_only=1))
    assert node.hints(bound("a", 12, remote=True)) == [("0", True), ("1", True)]
    assert "largest that would fit: 8Gi" in node.refusal(bound("a", 12))
    held = node.create(bound("a", 12, remote=True))
    assert str(held.nodes) == "0,2"
    assert held.amounts == {"memory": {0: 6 * GIB, 2: 6 * GIB}}
    assert node.hints(bound("b", 3)) == [("1", True), ("0", True)]
    assert node.amounts("a") == {0: 6, 2: 6}
    assert node.create(ask("f", 1, remote=True)).nodes.mask == 0b111
    assert node.create(ask("g", 1)).nodes.mask == 0b11


def test_only_the_nearest_memory_only_nodes_are_taken() -> None:
    """Nearest to one of the nodes of the pod."""
    where = machine(memory_only=2)
    near = {(0, 2): 17, (2, 0): 17, (1, 3): 17, (3, 1): 17}
    nodes = {
        each.id: replace(
            each, distances={other: near.get((each.id, other), far) for other, far in each.distances.items()}
        )
        for each in where.nodes.values()
    }
    node = Node(replace(where, nodes=nodes))
    assert str(node.create(bound("a", 9, remote=True), on="1").nodes) == "1,3"
    assert str(node.create(bound("b", 1, remote=True, number=2)).nodes) == "0-3"
    assert str(node.create(bound("c", 1, remote=True, ids="0,2")).nodes) == "0,2"


def test_unknown_sizes_refuse_nothing() -> None:
    """A kernel without CONFIG_NUMA has one node and says nothing of its memory."""
    node = Node(machine(sockets=1, numa=False))
    assert node.create(bound("a", 1000)).why == "NUMA node 0, of which unknown was free"
    assert node.free() == {}
    assert node.create(ask("b", 1000)).nodes.mask == 1


def test_hints_are_bounded_on_large_machines() -> None:
    """From eight nodes on, the smallest sets that fit and those with one node more."""
    assert len(Node(machine(sockets=2, nodes_per_socket=4)).hints(ask("a", 1, DEDICATED))) == 8 + 28
    assert len(Node(machine(sockets=2, nodes_per_socket=4)).hints(ask("a", 20, DEDICATED))) == 56 + 70
    assert len(Node(machine(sockets=4, nodes_per_socket=4)).hints(ask("a", 9, DEDICATED))) < 160
