"""CPUs that come and go, and containers that ran before there was an allocator."""

from __future__ import annotations

from qrm.allocator import Allocation, ContainerKey, CpuEnhancement, State
from qrm.allocator.testing import Harness, machine, request
from qrm.cpuset import CPUSet, NodeSet
from tests.plugins.qrm_cpu.nodes import DEDICATED, RECLAIMED, SHARED, SYSTEM, cpus, eight, node, two_nodes


def cpus_of(on: Harness, pod: str, container: str = "main") -> CPUSet:
    return on.holdings[ContainerKey(pod, container)].allocation.cpus


def ran_before(on: Harness, pod: str, where: str, *, own: bool = False, millis: int = 0) -> None:
    """Adds a container that has been on these CPUs."""
    held = cpus(where)
    exclusive = held if own else CPUSet()
    nodes = on.machine.nodes_of(held)
    asked = request(pod, millis or 1000 * len(held), DEDICATED if own else SHARED)
    on.adopt(asked, Allocation("dedicated" if own else "share", held, exclusive=exclusive, nodes=nodes))


def test_exclusive_cpus_that_went_offline_are_replaced() -> None:
    """By others nearby; the rest stays."""
    on = node(machine(sockets=2, cores_per_l3=4))
    on.create(request("d", 2000, DEDICATED))
    on.replug(machine(sockets=2, cores_per_l3=4, offline=[1]))
    assert cpus_of(on, "d") == cpus_of(on, "d", "") == cpus("0,2")


def test_without_replacement_the_container_keeps_the_rest() -> None:
    """It gets back what it asked for as soon as that is there."""
    on = node(machine(cores_per_l3=4))
    on.create(request("d", 3000, DEDICATED))
    on.replug(machine(cores_per_l3=4, offline=[1]))
    assert cpus_of(on, "d") == cpus("0,2")
    on.replug(machine(cores_per_l3=4))
    assert cpus_of(on, "d") == cpus("0-2")


def test_the_pod_with_the_lowest_uid_is_served_first() -> None:
    """So that it does not depend on the order in which the ledger tells."""
    on = node(machine(cores_per_l3=6))
    on.create(request("b", 2000, DEDICATED))
    on.create(request("a", 2000, DEDICATED))
    on.replug(machine(cores_per_l3=6, offline=[0, 2]))
    assert (cpus_of(on, "a"), cpus_of(on, "b")) == (cpus("3-4"), cpus("1"))


def test_a_bound_pod_gets_replacements_on_its_node_only() -> None:
    """Its memory is there."""
    on = node(two_nodes())
    on.create(request("d", 8000, DEDICATED, numa_binding=True))
    on.replug(machine(sockets=2, cores_per_l3=4, threads=2, offline=[1]))
    assert cpus_of(on, "d") == cpus("0,2-3,8-11")


def test_a_bound_pod_that_lost_all_its_cpus_gets_others() -> None:
    """Far from its memory is better than not at all."""
    on = node(machine(sockets=2, cores_per_l3=4))
    on.create(request("d", 2000, DEDICATED, numa_binding=True))
    on.replug(machine(sockets=2, cores_per_l3=4, offline=[0, 1, 2, 3]))
    assert cpus_of(on, "d") == cpus("4-5")


def test_a_container_that_lost_all_its_cpus_runs_where_share_does() -> None:
    """Where no others are to be had; nothing is exclusive to it then, until some are."""
    on = node(machine(cores_per_l3=4))
    on.create(request("s", 2000))
    on.create(request("d", 2000, DEDICATED))
    on.replug(machine(cores_per_l3=4, offline=[0, 1]))
    assert cpus_of(on, "d") == cpus_of(on, "s") == cpus("2-3")
    assert not on.holdings[ContainerKey("d", "main")].allocation.exclusive
    on.remove("s")
    assert cpus_of(on, "d") == cpus("2")


def test_a_stranded_container_makes_room_like_share() -> None:
    """It runs on CPUs that the next dedicated pod may get."""
    on = node(machine(cores_per_l3=3))
    ran_before(on, "old", "2", own=True)
    on.create(request("s", 2000))
    on.replug(machine(cores_per_l3=3, offline=[2]))
    assert cpus_of(on, "old") == cpus("0-1")
    on.remove("s")
    assert on.create(request("d", 1000, DEDICATED)).cpus == cpus("0")
    assert cpus_of(on, "old") == cpus("1")


def test_a_pod_is_not_refused_because_its_nodes_have_gone() -> None:
    """What it asks for made sense when it came."""
    on = node(machine(sockets=2, cores_per_l3=4))
    on.create(request("d", 2000, DEDICATED, numa_binding=True, numa_ids="0"))
    on.replug(machine(sockets=2, cores_per_l3=4, offline=[0, 1, 2, 3]))
    assert on.restart("d").cpus == cpus("4-5")


def test_an_exclusive_node_gets_what_comes_online_there() -> None:
    """Otherwise share would come to it."""
    less = machine(sockets=2, cores_per_l3=4, offline=[3])
    on = node(less)
    on.create(request("d", 2000, DEDICATED, numa_binding=True, numa_exclusive=True))
    on.create(request("s"))
    on.replug(machine(sockets=2, cores_per_l3=4))
    assert (cpus_of(on, "d"), cpus_of(on, "s")) == (cpus("0-3"), cpus("4-7"))


def test_an_exclusive_pod_whose_node_has_gone_moves_when_it_starts_again() -> None:
    """Until then it runs where share does, because taking a whole node is not for settling to decide."""
    on = node(machine(sockets=3, cores_per_l3=4))
    on.create(request("d", 2000, DEDICATED, numa_binding=True, numa_exclusive=True))
    on.replug(machine(sockets=3, cores_per_l3=4, offline=[0, 1, 2, 3]))
    assert cpus_of(on, "d") == cpus("4-11")
    assert on.restart("d").cpus == cpus("4-7")


def test_the_last_resort_is_the_reserve() -> None:
    """When all pooled CPUs have gone, share runs there, and not on anybody's exclusive CPUs."""
    on = node(eight(), reserved="0")
    on.create(request("s"))
    on.create(request("d", 6000, DEDICATED))
    on.replug(machine(cores_per_l3=8, offline=[7]))
    assert cpus_of(on, "s") == cpus("0")
    assert cpus_of(on, "d") == cpus("1-6")


def test_the_very_last_resort_is_every_usable_cpu() -> None:
    """A container without CPUs cannot run, so then it runs beside those that have them exclusively."""
    on = node(machine(cores_per_l3=2))
    on.create(request("s"))
    on.create(request("y", level=SYSTEM))
    on.create(request("d", 1000, DEDICATED))
    changes = on.allocator.settle(State(machine(cores_per_l3=2, offline=[1]), on.holdings)).allocations
    assert {key.pod_uid: allocation.cpus for key, allocation in changes.items()} == {"s": cpus("0"), "y": cpus("0")}


def test_what_ran_before_stays_where_it_is() -> None:
    """As long as nobody has these CPUs for himself, whatever pool they belong to."""
    on = node(eight(), reserved="0")
    ran_before(on, "old", "0,5", millis=500)
    on.create(request("b", 2000, cpu=CpuEnhancement(cpuset_pool="batch")))
    on.create(request("d", 2000, DEDICATED))
    assert cpus_of(on, "old") == cpus("0,5")


def test_what_ran_before_makes_room_for_exclusive_cpus() -> None:
    """Then it moves to the pool of its QoS level."""
    on = node(eight())
    ran_before(on, "old", "0-3", millis=500)
    on.create(request("d", 2000, DEDICATED))
    assert cpus_of(on, "old") == cpus("2-7")
    reclaimed = request("r", 500, RECLAIMED)
    on.adopt(reclaimed, Allocation("share", cpus("2"), nodes=NodeSet([0])))
    on.create(request("e", 2000, DEDICATED))
    assert on.holdings[reclaimed.key].allocation.pool == "reclaim"


def test_what_ran_before_on_its_own_cpus_keeps_them() -> None:
    """Even reserved ones, and nobody else is on them."""
    on = node(eight(), reserved="0")
    on.create(request("s"))
    ran_before(on, "old", "0,6", own=True)
    assert cpus_of(on, "old") == cpus("0,6")
    assert cpus_of(on, "s") == cpus("1-5,7")


def test_own_cpus_of_what_ran_before_are_replaced_like_any_others() -> None:
    """And where there are none to be had, nothing is set aside for it either."""
    on = node(eight())
    ran_before(on, "old", "6", own=True)
    on.replug(machine(cores_per_l3=8, offline=[6]))
    assert on.holdings[ContainerKey("old", "main")].allocation.exclusive == cpus("0")
    on = node(machine(cores_per_l3=2))
    ran_before(on, "old", "1", own=True)
    on.create(request("s"))
    on.replug(machine(cores_per_l3=2, offline=[1]))
    on.replug(machine(cores_per_l3=2))
    assert cpus_of(on, "s") == cpus("0-1")


def test_requests_of_what_ran_before_count() -> None:
    """It runs on CPUs that cannot be promised again."""
    on = node(eight())
    ran_before(on, "old", "0-7", millis=6000)
    assert on.quantities().free == {0: 2000}


def test_a_restart_ends_the_adoption() -> None:
    """The new container is placed like any other."""
    on = node(eight(), reserved="0")
    ran_before(on, "old", "0,5", millis=500)
    assert on.restart("old").cpus == cpus("1-7")
