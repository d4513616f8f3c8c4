"""Reclaimed containers, which run on what others leave idle, and system containers, which run nearly everywhere."""

from __future__ import annotations

import pytest

from qrm.allocator import ContainerKey, CpuEnhancement
from qrm.allocator.testing import Harness, machine, request
from qrm.cpuset import CPUSet, NodeSet
from tests.plugins.qrm_cpu.nodes import DEDICATED, RECLAIMED, SYSTEM, cpus, eight, node, two_nodes


def cpus_of(on: Harness, pod: str) -> CPUSet:
    return on.holdings[ContainerKey(pod, "main")].allocation.cpus


def test_reclaim_is_what_share_was_not_asked_for() -> None:
    """From the end that share's members would miss least; share itself loses nothing."""
    on = node(eight(), reclaim_min=1)
    on.create(request("s", 2500))
    held = on.create(request("r", 99000, RECLAIMED))
    assert (held.pool, held.cpus) == ("reclaim", cpus("3-7"))
    assert cpus_of(on, "s") == cpus("0-7")


def test_reclaim_has_four_cpus_at_least() -> None:
    """Or what is set, or one for each NUMA node, whichever is more, as far as share has so many."""
    on = node(eight())
    on.create(request("s", 8000))
    assert on.create(request("r", level=RECLAIMED)).cpus == cpus("4-7")
    assert node(machine(sockets=6, cores_per_l3=1)).create(request("r", level=RECLAIMED)).cpus == cpus("0-5")
    assert node(machine(cores_per_l3=3)).create(request("r", level=RECLAIMED)).cpus == cpus("0-2")


def test_reclaim_shrinks_when_share_is_asked_for_more() -> None:
    """And grows again when that goes."""
    on = node(eight(), reclaim_min=1)
    on.create(request("r", level=RECLAIMED))
    on.create(request("s", 5000))
    assert cpus_of(on, "r") == cpus("5-7")
    on.remove("s")
    assert cpus_of(on, "r") == cpus("0-7")


def test_without_overlap_reclaim_has_cpus_of_its_own() -> None:
    """Share has whole cores for what was asked, reclaim the rest."""
    on = node(two_nodes(), reclaim_overlap=False)
    on.create(request("s", 2500))
    on.create(request("r", level=RECLAIMED))
    assert (cpus_of(on, "s"), cpus_of(on, "r")) == (cpus("0-1,8-9"), cpus("2-7,10-15"))


def test_without_overlap_reclaim_keeps_its_least_size_only_from_what_is_not_promised() -> None:
    """Share is rounded up to whole cores where that leaves enough, and never has less than was promised."""
    on = node(two_nodes(), reclaim_overlap=False, reclaim_min=5)
    on.create(request("s", 10500))
    on.create(request("r", level=RECLAIMED))
    assert (len(cpus_of(on, "s")), len(cpus_of(on, "r"))) == (11, 5)
    on.resize("s", 13000)
    assert (len(cpus_of(on, "s")), len(cpus_of(on, "r"))) == (13, 3)


def test_reclaim_overlaps_rather_than_being_empty() -> None:
    """Even where it has CPUs of its own otherwise."""
    on = node(eight(), reclaim_overlap=False, reclaim_min=2)
    on.create(request("s", 8000))
    assert on.create(request("r", level=RECLAIMED)).cpus == cpus("6-7")
    assert cpus_of(on, "s") == cpus("0-7")


def test_a_dedicated_pod_can_have_reclaims_own_cpus() -> None:
    """They are lent, not promised."""
    on = node(eight(), reclaim_overlap=False)
    on.create(request("r", level=RECLAIMED))
    on.create(request("d", 7000, DEDICATED))
    assert cpus_of(on, "r") == cpus("7")


def test_a_bound_reclaimed_container_has_the_part_of_one_node() -> None:
    """The one with the most to spare, and it stays there."""
    on = node(two_nodes(), reserved="4,12")
    held = on.create(request("r", 1000, RECLAIMED, numa_binding=True))
    assert (held.pool, held.cpus, held.nodes) == ("reclaim", cpus("0-3,8-11"), NodeSet([0]))
    on.create(request("q", 1500, RECLAIMED, numa_binding=True))
    assert on.create(request("p", 1000, RECLAIMED, numa_binding=True)).nodes == NodeSet([1])
    on.create(request("d", 4000, DEDICATED, numa_binding=True, numa_ids="0"))
    assert cpus_of(on, "r") == cpus("2-3,10-11")
    assert on.restart("r").nodes == NodeSet([0])


def test_a_bound_reclaimed_container_moves_when_its_node_has_nothing_left() -> None:
    """Reclaimed requests are never refused, and no allocation is ever empty."""
    on = node(two_nodes())
    on.create(request("r", 1000, RECLAIMED, numa_binding=True))
    on.create(request("d", 8000, DEDICATED, numa_binding=True, numa_ids="0"))
    assert cpus_of(on, "r") == cpus("4-7,12-15")
    on.remove("d")
    assert cpus_of(on, "r") == cpus("4-7,12-15")


def test_system_containers_run_everywhere_but_on_exclusive_cpus() -> None:
    """On reserved CPUs as well."""
    on = node(eight(), reserved="0")
    on.create(request("d", 2000, DEDICATED))
    held = on.create(request("y", 99000, SYSTEM))
    assert (held.pool, held.cpus) == ("system", cpus("0,3-7"))


def test_a_named_system_pool_is_carved_like_any_other() -> None:
    """It is called system-<name>, unless its name says so already."""
    on = node(eight())
    held = on.create(request("a", 2000, SYSTEM, cpu=CpuEnhancement(cpuset_pool="net")))
    assert (held.pool, held.cpus) == ("system-net", cpus("0-1"))
    assert on.create(request("b", 0, SYSTEM, cpu=CpuEnhancement(cpuset_pool="system-net"))).pool == "system-net"
    on.create(request("s"))
    assert cpus_of(on, "s") == cpus("2-7")


def test_a_named_system_pool_is_never_refused() -> None:
    """Where it is promised too much, all pools shrink in proportion."""
    on = node(eight())
    on.create(request("s", 8000))
    held = on.create(request("a", 8000, SYSTEM, cpu=CpuEnhancement(cpuset_pool="net")))
    assert (len(held.cpus), len(cpus_of(on, "s"))) == (4, 4)


@pytest.mark.parametrize("level", [RECLAIMED, SYSTEM])
def test_nothing_is_asked_too_much_of_those(level: object) -> None:
    """No number of CPUs is refused."""
    on = node(machine(cores_per_l3=1))
    for number in range(5):
        asked = request(f"p{number}", 9000, RECLAIMED if level is RECLAIMED else SYSTEM)
        assert on.create(asked).cpus == cpus("0")
