"""Shared containers that float: the share pool and named pools."""

from __future__ import annotations

import pytest

from qrm.allocator import BadRequest, ContainerKey, CpuEnhancement, DoesNotFit
from qrm.allocator.testing import Harness, machine, request
from qrm.cpuset import CPUSet, NodeSet
from tests.plugins.qrm_cpu.nodes import DEDICATED, RECLAIMED, SHARED, SYSTEM, cpus, eight, node, two_nodes


def in_pool(pool: str) -> CpuEnhancement:
    return CpuEnhancement(cpuset_pool=pool)


def cpus_of(on: Harness, pod: str) -> CPUSet:
    return on.holdings[ContainerKey(pod, "main")].allocation.cpus


def test_share_is_everything_that_nobody_else_has() -> None:
    """It is the pool of those that name none, and of those that name it."""
    on = node(two_nodes(), reserved="0")
    held = on.create(request("a", 500))
    assert (held.pool, held.cpus, held.exclusive, held.nodes) == ("share", cpus("1-15"), cpus(""), NodeSet([0, 1]))
    assert on.create(request("b", cpu=in_pool("share"))) == held


def test_floating_containers_get_one_hint() -> None:
    """All NUMA nodes with CPUs, preferred."""
    on = node(machine(sockets=2, memory_only=1))
    for level in (SHARED, RECLAIMED, SYSTEM):
        (hint,) = on.allocator.hints(request("a", 1000, level), on.state)
        assert (hint.nodes, hint.preferred) == (NodeSet([0, 1]), True)


def test_a_shared_request_is_refused_when_the_sum_exceeds_the_pooled_cpus() -> None:
    """The refusal has the numbers, and says what others were promised."""
    on = node(eight(), reserved=1)
    on.create(request("a", 5500))
    on.create(request("b", 1500))
    with pytest.raises(DoesNotFit) as refused:
        on.create(request("c", 100))
    assert str(refused.value) == (
        "cpu: asked 0.1 CPUs for shared_cores; free by NUMA node: 0: 7; largest that would fit: 0 CPUs;"
        " other shared containers were promised 7 CPUs of these"
    )
    assert on.create(request("c")).cpus == cpus("1-7")


def test_exited_containers_still_count() -> None:
    """What they asked for is reserved until their pod is gone."""
    on = node(eight())
    on.create(request("a", 7000))
    on.exit("a")
    with pytest.raises(DoesNotFit):
        on.create(request("b", 2000))
    on.remove("a")
    on.create(request("b", 2000))


def test_a_restart_or_a_smaller_request_is_never_refused() -> None:
    """Not even when less is left by now than was promised."""
    on = node(machine(cores_per_l3=8))
    on.create(request("a", 8000))
    on.replug(machine(cores_per_l3=8, offline=[6, 7]))
    on.restart("a")
    on.resize("a", 7000)
    with pytest.raises(DoesNotFit):
        on.resize("a", 7100)


def test_a_named_pool_has_what_its_members_ask_for() -> None:
    """The sum, rounded up; share has the rest."""
    on = node(eight())
    on.create(request("s"))
    assert on.create(request("a", 1200, cpu=in_pool("batch"))).pool == "batch"
    assert cpus_of(on, "a") == cpus("0-1")
    on.create(request("b", 1200, cpu=in_pool("batch")))
    assert cpus_of(on, "a") == cpus_of(on, "b") == cpus("0-2")
    assert cpus_of(on, "s") == cpus("3-7")


def test_a_named_pool_has_one_core_at_least() -> None:
    """Of two threads here."""
    on = node(two_nodes())
    assert on.create(request("a", cpu=in_pool("batch"))).cpus == cpus("0,8")


def test_pools_keep_their_cpus() -> None:
    """Others come and go without a move; what a pool gains or gives back are single CPUs."""
    on = node(eight())
    on.create(request("a", 2000, cpu=in_pool("a")))
    on.create(request("b", 3000, cpu=in_pool("b")))
    on.create(request("c", 1000, cpu=in_pool("a")))
    assert (cpus_of(on, "a"), cpus_of(on, "b")) == (cpus("0-1,5"), cpus("2-4"))
    on.remove("c")
    assert (cpus_of(on, "a"), cpus_of(on, "b")) == (cpus("0-1"), cpus("2-4"))
    on.remove("a")
    assert cpus_of(on, "b") == cpus("2-4")


def test_dedicated_pods_take_idle_cpus_first() -> None:
    """So that named pools do not have to move."""
    on = node(eight())
    on.create(request("a", 2000, cpu=in_pool("a")))
    assert on.create(request("d", 4000, DEDICATED)).cpus == cpus("2-5")
    assert cpus_of(on, "a") == cpus("0-1")


def test_pools_shrink_in_proportion_when_cpus_go_away() -> None:
    """Each keeps one CPU at least, share as well."""
    on = node(machine(cores_per_l3=8))
    on.create(request("a", 4000, cpu=in_pool("a")))
    on.create(request("b", 2000, cpu=in_pool("b")))
    on.create(request("s", 2000))
    on.replug(machine(cores_per_l3=8, offline=[0, 1, 2, 3]))
    assert [len(cpus_of(on, pod)) for pod in "abs"] == [2, 1, 1]
    assert cpus_of(on, "b") < cpus("4-5")


def test_pools_share_all_there_is_when_there_is_not_one_cpu_for_each() -> None:
    """The last resort is everything, not an arbitrary winner."""
    on = node(machine(cores_per_l3=4))
    for pod in ("a", "b", "s"):
        on.create(request(pod, cpu=in_pool("share" if pod == "s" else pod)))
    on.replug(machine(cores_per_l3=4, offline=[0, 1]))
    assert [cpus_of(on, pod) for pod in "abs"] == [cpus("2-3")] * 3
    on.replug(machine(cores_per_l3=4))
    assert len({cpus_of(on, pod) for pod in "abs"}) == 3


@pytest.mark.parametrize(
    "pool", ["reserve", "reclaim", "dedicated", "system", "system-net", "share-NUMA", "share-NUMA0"]
)
def test_the_allocators_own_pools_cannot_be_named(pool: str) -> None:
    """The refusal names the annotation and what is allowed."""
    with pytest.raises(BadRequest, match=f"katalyst.kubewharf.io/cpu_enhancement: cpuset_pool '{pool}'.*is allowed"):
        node(eight()).create(request("a", cpu=in_pool(pool)))


def test_a_refused_pool_name_reads_well() -> None:
    """One sentence and a remedy."""
    with pytest.raises(BadRequest) as refused:
        node(eight()).create(request("a", cpu=in_pool("reclaim")))
    assert str(refused.value) == (
        "katalyst.kubewharf.io/cpu_enhancement: cpuset_pool 'reclaim' is not a pool for shared_cores"
        " (any name is allowed but reserve, reclaim, dedicated and those that start with system or share-NUMA)"
    )


def test_it_says_why() -> None:
    """The pool, its size, where it is and what is promised."""
    on = node(two_nodes())
    assert (
        on.create(request("a", 1500)).why == "pool share has 16 CPUs on NUMA nodes 0-1, of which 1.5 CPUs are promised"
    )


def test_one_cpu_is_enough() -> None:
    """Every level but dedicated runs on a machine with a single CPU."""
    on = node(machine(cores_per_l3=1))
    for level in (SHARED, RECLAIMED, SYSTEM):
        assert on.create(request(str(level), level=level)).cpus == cpus("0")
    with pytest.raises(DoesNotFit, match="asked 1 CPU for dedicated_cores; free by NUMA node: 0: 0; largest that"):
        on.create(request("d", 1000, DEDICATED))
