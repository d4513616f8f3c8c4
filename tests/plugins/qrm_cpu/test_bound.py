"""Shared pods that are bound to one NUMA node."""

from __future__ import annotations

import pytest

from qrm.allocator import BadRequest, ContainerKey, CpuEnhancement, DoesNotFit
from qrm.allocator.testing import Harness, machine, request
from qrm.cpuset import CPUSet, NodeSet
from tests.plugins.qrm_cpu.nodes import DEDICATED, SHARED, cpus, node, two_nodes


def cpus_of(on: Harness, pod: str, container: str = "main") -> CPUSet:
    return on.holdings[ContainerKey(pod, container)].allocation.cpus


def test_a_bound_pod_lives_on_one_node() -> None:
    """The pool of that node has what its pods ask for, and the pod as a whole holds the same."""
    on = node(two_nodes())
    held = on.create(request("a", 2500, numa_binding=True))
    assert (held.pool, held.cpus, held.exclusive, held.nodes) == (
        "share-NUMA0",
        cpus("0-1,8"),
        cpus(""),
        NodeSet([0]),
    )
    assert on.holdings[ContainerKey("a", "")].allocation == held


def test_bound_pods_spread() -> None:
    """Each goes to the node with the most free CPUs."""
    on = node(two_nodes())
    pools = [on.create(request(pod, 2000, numa_binding=True)).pool for pod in "abcd"]
    assert pools == ["share-NUMA0", "share-NUMA1", "share-NUMA0", "share-NUMA1"]


def test_hints_are_single_nodes() -> None:
    """All preferred, the one with the most free CPUs first."""
    on = node(two_nodes())
    on.create(request("d", 2000, DEDICATED, numa_binding=True))
    hints = on.allocator.hints(request("a", 1000, numa_binding=True), on.state)
    assert [(str(hint.nodes), hint.preferred) for hint in hints] == [("1", True), ("0", True)]


def test_the_pool_grows_and_shrinks_with_its_pods() -> None:
    """By whole CPUs for the sum of the requests, and to one core of two threads at least."""
    on = node(two_nodes())
    on.create(request("a", 500, numa_binding=True))
    assert cpus_of(on, "a") == cpus("0,8")
    on.create(request("b", 2000, numa_binding=True), choice=1)
    assert cpus_of(on, "a") == cpus_of(on, "b") == cpus("0-1,8")
    on.remove("b")
    assert cpus_of(on, "a") == cpus("0,8")


def test_all_containers_of_a_pod_are_on_its_node() -> None:
    """Later ones get no other hint."""
    on = node(two_nodes())
    on.create(request("a", 1000, numa_binding=True), choice=1)
    on.create(request("a", 1000, container="side", numa_binding=True))
    assert cpus_of(on, "a", "side") == cpus_of(on, "a") == cpus("4,12")


def test_the_pods_total_counts_as_its_request() -> None:
    """Unless its containers ask for more."""
    on = node(two_nodes())
    on.create(request("a", 1000, pod_millis=3000, numa_binding=True))
    assert len(cpus_of(on, "a")) == 3
    on.create(request("a", 4000, container="side", pod_millis=3000, numa_binding=True))
    assert len(cpus_of(on, "a")) == 5


def test_a_named_pool_has_a_part_on_each_node() -> None:
    """Of its own, beside that of share."""
    on = node(two_nodes())
    on.create(request("a", 1000, numa_binding=True))
    held = on.create(request("b", 1000, numa_binding=True, cpu=CpuEnhancement(cpuset_pool="batch")), choice=1)
    assert (held.pool, held.cpus) == ("batch-NUMA0", cpus("1,9"))


def test_a_request_larger_than_a_node_is_refused() -> None:
    """The refusal has the numbers."""
    on = node(two_nodes(), reserved="0")
    with pytest.raises(DoesNotFit) as refused:
        on.create(request("a", 8500, numa_binding=True))
    assert str(refused.value) == (
        "cpu: asked 8.5 CPUs for shared_cores with numa_binding; free by NUMA node: 0: 7, 1: 8;"
        " largest that would fit: 8 CPUs"
    )


def test_floating_containers_keep_what_they_were_promised() -> None:
    """A bound pool takes nothing of it, and they get nothing of a bound pool."""
    on = node(two_nodes())
    on.create(request("s", 12000))
    with pytest.raises(DoesNotFit, match="largest that would fit: 4 CPUs"):
        on.create(request("a", 4500, numa_binding=True))
    on.create(request("a", 4000, numa_binding=True))
    with pytest.raises(DoesNotFit, match="largest that would fit: 0 CPUs"):
        on.create(request("t", 500))


def test_a_bound_pod_that_wants_no_company() -> None:
    """numa_share "false" keeps other bound pods away, those that were there and those that come."""
    on = node(two_nodes())
    alone = CpuEnhancement(numa_share=False)
    on.create(request("a", 1000, numa_binding=True))
    assert on.create(request("b", 1000, numa_binding=True, cpu=alone)).nodes == NodeSet([1])
    assert on.create(request("c", 1000, numa_binding=True)).nodes == NodeSet([0])
    with pytest.raises(DoesNotFit) as refused:
        on.create(request("d", 1000, numa_binding=True, cpu=alone))
    assert str(refused.value) == (
        'cpu: asked 1 CPU for shared_cores with numa_binding, numa_share "false"; free by NUMA node: 0: 6, 1: 6;'
        ' largest that would fit: 0 CPUs; numa_share "false" keeps NUMA-bound shared pods apart'
    )


def test_numa_ids_are_respected() -> None:
    """The pod goes to one of them."""
    on = node(machine(sockets=3, cores_per_l3=4))
    assert on.create(request("a", 1000, numa_binding=True, numa_ids="1-2")).nodes == NodeSet([1])
    assert on.create(request("b", 1000, numa_binding=True, numa_ids="1-2")).nodes == NodeSet([2])
    with pytest.raises(BadRequest, match="numa_ids asks for NUMA nodes '7'"):
        on.create(request("c", 1000, numa_binding=True, numa_ids="7"))


def test_a_bound_pod_never_moves() -> None:
    """It is refused more than its node has; a restart is not refused."""
    on = node(two_nodes())
    on.create(request("a", 6000, numa_binding=True))
    on.create(request("d", 2000, DEDICATED, numa_binding=True, numa_ids="0"))
    with pytest.raises(DoesNotFit, match=r"asked 7 CPUs .* largest that would fit: 6 CPUs"):
        on.resize("a", 7000)
    assert on.restart("a").nodes == NodeSet([0])


def test_a_pool_whose_node_lost_its_cpus_runs_where_share_does() -> None:
    """Until they are back."""
    on = node(two_nodes())
    on.create(request("a", 1000, numa_binding=True))
    on.replug(machine(sockets=2, cores_per_l3=4, threads=2, offline=[0, 1, 2, 3, 8, 9, 10, 11]))
    assert cpus_of(on, "a") == cpus("4-7,12-15")
    on.replug(two_nodes())
    assert on.holdings[ContainerKey("a", "main")].allocation.nodes == NodeSet([0])


def test_a_container_beside_dedicated_ones_floats() -> None:
    """Where whole CPUs are dedicated by the node's default, the pod's place is that of its exclusive CPUs."""
    on = node(two_nodes())
    on.create(request("a", 2000, DEDICATED, numa_binding=True, by_default=True))
    held = on.create(request("a", 500, SHARED, container="side", numa_binding=True, by_default=True))
    assert (held.pool, held.cpus) == ("share", cpus("1-7,9-15"))
