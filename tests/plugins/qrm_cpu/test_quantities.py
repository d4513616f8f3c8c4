"""How much there is."""

from __future__ import annotations

from qrm.allocator import CpuEnhancement
from qrm.allocator.testing import machine, request
from tests.plugins.qrm_cpu.nodes import DEDICATED, SYSTEM, cpus, node, two_nodes


def test_allocatable_is_what_containers_can_hold() -> None:
    """Neither reserved nor isolated CPUs, in millicores by NUMA node."""
    on = node(machine(sockets=2, cores_per_l3=4, isolated=[7]), reserved="0")
    assert on.quantities().allocatable == {0: 3000, 1: 3000}


def test_free_is_what_nobody_holds_and_no_pool_needs() -> None:
    """A shared request takes from the near end of share, a dedicated or named one what it has."""
    on = node(two_nodes())
    assert on.quantities().free == {0: 8000, 1: 8000}
    on.create(request("s", 1500))
    assert on.quantities().free == {0: 6000, 1: 8000}
    on.create(request("d", 4000, DEDICATED, numa_binding=True, numa_ids="1"))
    assert on.quantities().free == {0: 6000, 1: 4000}
    on.create(request("b", 3000, cpu=CpuEnhancement(cpuset_pool="batch")))
    assert sum(on.quantities().free.values()) == 7000


def test_pools_are_told() -> None:
    """All that have CPUs, by name."""
    on = node(two_nodes(), reserved="0")
    on.create(request("d", 2000, DEDICATED))
    on.create(request("n", 1000, numa_binding=True))
    on.create(request("y", 1000, SYSTEM, cpu=CpuEnhancement(cpuset_pool="net")))
    assert {pool: str(members) for pool, members in on.quantities().pools.items()} == {
        "dedicated": "1,9",
        "reclaim": "3,5-8,11,13-15",
        "reserve": "0",
        "share": "3,5-8,11,13-15",
        "share-NUMA1": "4,12",
        "system": "0,2-8,10-15",
        "system-net": "2,10",
    }


def test_share_and_reclaim_are_there_without_members() -> None:
    """And nothing else."""
    assert {*node(two_nodes()).quantities().pools} == {"share", "reclaim", "system"}
    assert node(two_nodes()).quantities().pools["share"] == cpus("0-15")
