"""What a dedicated pod holds, and how its containers divide it."""

from __future__ import annotations

import pytest

from qrm.allocator import ContainerKey, CpuEnhancement, DoesNotFit
from qrm.allocator.testing import machine, request
from tests.plugins.qrm_cpu.nodes import DEDICATED, SHARED, cpus, eight, node, two_nodes


def test_a_whole_request_gets_cpus_of_its_own() -> None:
    """The container's CPUs are exclusive, and so are its pod's."""
    on = node(eight())
    held = on.create(request("a", 3000, DEDICATED, pod_millis=3000))
    assert (held.pool, held.cpus, held.exclusive) == ("dedicated", cpus("0-2"), cpus("0-2"))
    assert on.holdings[ContainerKey("a", "")].allocation.exclusive == cpus("0-2")


def test_the_pods_total_is_taken_at_once() -> None:
    """Room for the containers that are still to come is set aside with the first one."""
    on = node(eight())
    on.create(request("a", 2000, DEDICATED, pod_millis=4500))
    assert on.holdings[ContainerKey("a", "")].allocation.exclusive == cpus("0-4")


def test_a_pod_of_unknown_size_grows_with_each_container() -> None:
    """Without a total the pod has what its containers need."""
    on = node(eight())
    on.create(request("a", 2000, DEDICATED))
    second = on.create(request("a", 3000, DEDICATED, container="second"))
    assert second.exclusive == cpus("2-4")
    assert on.holdings[ContainerKey("a", "")].allocation.exclusive == cpus("0-4")


def test_the_total_does_not_count_where_the_level_is_the_nodes_default() -> None:
    """The pod's other containers are planned as shared, so their part of the total is not taken."""
    on = node(eight())
    on.create(request("a", 2000, DEDICATED, pod_millis=4500, by_default=True))
    assert on.holdings[ContainerKey("a", "")].allocation.exclusive == cpus("0-1")
    assert on.create(request("a", 2500, SHARED, container="side", by_default=True)).cpus == cpus("2-7")


def test_a_second_container_does_not_steal_from_the_first() -> None:
    """Their CPUs are disjoint, and the first one keeps its own."""
    on = node(eight())
    first = on.create(request("a", 2000, DEDICATED, pod_millis=4000))
    second = on.create(request("a", 2000, DEDICATED, container="second", pod_millis=4000))
    assert (first.exclusive, second.exclusive) == (cpus("0-1"), cpus("2-3"))
    assert on.holdings[ContainerKey("a", "main")].allocation == first


def test_app_containers_reuse_the_cpus_of_exited_init_containers() -> None:
    """They run one after the other, so the pod is no bigger than the biggest of them."""
    on = node(eight())
    init = on.create(request("a", 4000, DEDICATED, container="init"))
    on.exit("a", "init")
    main = on.create(request("a", 3000, DEDICATED))
    assert main.exclusive < init.exclusive
    assert on.holdings[ContainerKey("a", "")].allocation.exclusive == init.exclusive


def test_an_exited_containers_cpus_are_taken_last() -> None:
    """What nobody claims comes first, because the exited container may come back."""
    on = node(eight())
    on.create(request("a", 2000, DEDICATED, pod_millis=4000))
    on.exit("a")
    assert on.create(request("a", 2000, DEDICATED, container="second", pod_millis=4000)).exclusive == cpus("2-3")
    assert on.restart("a").exclusive == cpus("0-1")


def test_a_container_whose_cpus_were_reused_gets_others() -> None:
    """A restart never takes CPUs from a running container of the same pod."""
    on = node(eight())
    on.create(request("a", 2000, DEDICATED))
    on.exit("a")
    assert on.create(request("a", 2000, DEDICATED, container="second")).exclusive == cpus("0-1")
    assert on.restart("a").exclusive == cpus("2-3")


def test_a_sidecar_runs_on_what_the_others_leave() -> None:
    """It has no CPUs of its own, and never runs outside of its pod's."""
    on = node(eight())
    on.create(request("a", 2000, DEDICATED, pod_millis=2500))
    side = on.create(request("a", 500, DEDICATED, container="side", pod_millis=2500))
    assert (side.pool, side.cpus, side.exclusive) == ("dedicated", cpus("2"), cpus(""))


def test_a_sidecar_shares_where_nothing_is_left() -> None:
    """A request of nothing needs no CPU more."""
    on = node(eight())
    on.create(request("a", 2000, DEDICATED, pod_millis=2000))
    assert on.create(request("a", 0, DEDICATED, container="side", pod_millis=2000)).cpus == cpus("0-1")


def test_a_sidecar_comes_first() -> None:
    """Its pod gets at least one CPU, and the sidecar moves over when a container with CPUs of its own comes."""
    on = node(eight())
    assert on.create(request("a", 0, DEDICATED, container="side")).cpus == cpus("0")
    main = on.create(request("a", 2000, DEDICATED))
    assert main.exclusive == cpus("0-1")
    assert on.holdings[ContainerKey("a", "side")].allocation.cpus == cpus("0-1")


def test_a_sidecar_follows_when_a_container_with_its_own_cpus_comes_or_goes() -> None:
    """What an exited container leaves is the sidecar's until it comes back."""
    on = node(eight())
    on.create(request("a", 100, DEDICATED, container="side", pod_millis=3100))
    side = ContainerKey("a", "side")
    assert on.holdings[side].allocation.cpus == cpus("0-3")
    on.create(request("a", 3000, DEDICATED, pod_millis=3100))
    assert on.holdings[side].allocation.cpus == cpus("3")
    on.exit("a")
    assert on.holdings[side].allocation.cpus == cpus("0-3")
    on.restart("a")
    assert on.holdings[side].allocation.cpus == cpus("3")


def test_a_sidecar_is_not_refused_for_want_of_a_cpu() -> None:
    """On a full node it shares its pod's CPUs."""
    on = node(eight())
    on.create(request("a", 7000, DEDICATED))
    assert on.create(request("a", 300, DEDICATED, container="side")).cpus == cpus("0-6")


def test_a_restart_keeps_the_cpus() -> None:
    """Even where others would fit better by now."""
    on = node(two_nodes())
    on.create(request("a", 2000, DEDICATED))
    before = on.create(request("b", 2000, DEDICATED))
    on.remove("a")
    assert on.restart("b") == before


def test_a_restart_keeps_the_cpus_within_the_pod() -> None:
    """Although the pod has others by now that would be picked first."""
    on = node(eight())
    on.create(request("a", 2000, DEDICATED, container="init", pod_millis=4000))
    before = on.create(request("a", 2000, DEDICATED, pod_millis=4000))
    on.exit("a", "init")
    on.drop("a", "init")
    assert on.restart("a") == before
    assert before.exclusive == cpus("2-3")


def test_a_restart_is_not_refused_because_the_pods_total_grew() -> None:
    """The container's own CPUs are still there; the pod grows when it can."""
    on = node(machine(cores_per_l3=4))
    before = on.create(request("a", 3000, DEDICATED, pod_millis=3000))
    assert on.resize("a", 3000, pod_millis=4000) == before


def test_growing_prefers_the_same_core_then_the_same_l3_domain() -> None:
    """CPU 8 is the other thread of CPU 0; 1 and 9 are the next core of its L3 domain."""
    on = node(machine(l3_per_node=2, cores_per_l3=4, threads=2))
    on.create(request("a", 1000, DEDICATED))
    assert on.resize("a", 2000).cpus == cpus("0,8")
    assert on.resize("a", 4000).cpus == cpus("0-1,8-9")


def test_shrinking_gives_back_what_is_farthest() -> None:
    """The CPUs on the other NUMA node go first, then the thread that has lost its core."""
    on = node(two_nodes())
    on.create(request("a", 11000, DEDICATED))
    assert on.resize("a", 7000).cpus == cpus("0-3,8-10")
    assert on.resize("a", 4000).cpus == cpus("0-1,8-9")
    assert on.holdings[ContainerKey("a", "")].allocation.exclusive == cpus("0-1,8-9")


def test_a_resize_that_does_not_fit_is_refused() -> None:
    """Nothing has changed then: the container keeps what it had."""
    on = node(eight())
    before = on.create(request("a", 4000, DEDICATED))
    with pytest.raises(DoesNotFit, match=r"asked 9 CPUs \(the whole pod, which has 4\)"):
        on.resize("a", 9000)
    assert on.holdings[ContainerKey("a", "main")].allocation == before


def test_a_pod_keeps_what_its_containers_have_when_it_shrinks() -> None:
    """What goes is what the forgotten init container left."""
    on = node(eight())
    on.create(request("a", 2000, DEDICATED, container="init"))
    on.create(request("a", 2000, DEDICATED))
    on.create(request("a", 300, DEDICATED, container="side"))
    pod = ContainerKey("a", "")
    assert on.holdings[pod].allocation.exclusive == cpus("0-4")
    on.exit("a", "init")
    on.drop("a", "init")
    assert on.holdings[ContainerKey("a", "main")].allocation.exclusive == cpus("2-3")
    assert len(on.holdings[pod].allocation.exclusive) == 3
    assert len(on.holdings[ContainerKey("a", "side")].allocation.cpus) == 1


def test_a_pod_shrinks_with_its_total_but_not_below_what_containers_have() -> None:
    """The total is the floor unless containers have more for themselves."""
    on = node(eight())
    on.create(request("a", 2000, DEDICATED, pod_millis=5000))
    pod = ContainerKey("a", "")
    assert len(on.holdings[pod].allocation.exclusive) == 5
    on.resize("a", 2000, pod_millis=3000)
    assert on.holdings[pod].allocation.exclusive == cpus("0-2")
    on.resize("a", 2000, pod_millis=1000)
    assert on.holdings[pod].allocation.exclusive == cpus("0-1")


def test_released_cpus_are_free_again() -> None:
    """What a removed pod had can be had by the next one."""
    on = node(eight())
    for name in "abcdef":
        assert on.create(request(name, 7000, DEDICATED)).cpus == cpus("0-6")
        on.remove(name)


def test_full_cores_are_rounded_up_and_it_says_so() -> None:
    """Three CPUs are two cores of two threads."""
    on = node(two_nodes())
    held = on.create(request("a", 3000, DEDICATED, cpu=CpuEnhancement(full_pcpus_pairing=True)))
    assert held.cpus == cpus("0-1,8-9")
    assert held.why == (
        "4 CPUs on NUMA node 0: 2 whole cores of L3 domain 0, best fit; 3 CPUs asked, rounded up to whole cores"
    )


def test_full_cores_pass_over_broken_ones() -> None:
    """A core of which another pod has one thread is of no use."""
    on = node(two_nodes())
    on.create(request("a", 1000, DEDICATED))
    held = on.create(request("b", 2000, DEDICATED, cpu=CpuEnhancement(full_pcpus_pairing=True)))
    assert held.cpus == cpus("1,9")


def test_the_other_thread_of_a_split_core_stays_usable() -> None:
    """The next single CPU comes from the core that is broken already."""
    on = node(two_nodes())
    on.create(request("a", 1000, DEDICATED))
    assert on.create(request("b", 1000, DEDICATED)).cpus == cpus("8")


def test_no_dedicated_pod_takes_the_last_core() -> None:
    """Share keeps one core and so reclaim is never empty, even while nobody uses them."""
    on = node(two_nodes())
    with pytest.raises(DoesNotFit, match="largest that would fit: 14"):
        on.create(request("a", 15000, DEDICATED))
    on.create(request("a", 14000, DEDICATED))
    assert on.create(request("b")).cpus == cpus("7,15")


def test_promises_to_shared_containers_are_kept() -> None:
    """What they asked for in sum is not given away, nor is the core of a named pool."""
    on = node(eight())
    on.create(request("a", 2500))
    on.create(request("b", 100, cpu=CpuEnhancement(cpuset_pool="batch")))
    with pytest.raises(DoesNotFit, match="free by NUMA node: 0: 4; largest that would fit: 4"):
        on.create(request("c", 5000, DEDICATED))
    assert on.create(request("c", 4000, DEDICATED)).cpus == cpus("1-4")
    assert on.holdings[ContainerKey("b", "main")].allocation.cpus == cpus("0")


def test_a_named_pool_moves_where_nothing_else_would_do() -> None:
    """Here the reserve has one thread of each of four cores, so that only two cores are whole."""
    on = node(machine(cores_per_l3=6, threads=2), reserved="6-9")
    on.create(request("a", 100, cpu=CpuEnhancement(cpuset_pool="batch")))
    assert on.holdings[ContainerKey("a", "main")].allocation.cpus == cpus("4,10")
    held = on.create(request("b", 4000, DEDICATED, cpu=CpuEnhancement(full_pcpus_pairing=True)))
    assert held.cpus == cpus("4-5,10-11")
    assert on.holdings[ContainerKey("a", "main")].allocation.cpus == cpus("0-1")


def test_the_other_allocations_follow() -> None:
    """Shared containers leave the CPUs that a dedicated one gets, and come back when it goes."""
    on = node(eight())
    on.create(request("s"))
    on.create(request("a", 4000, DEDICATED))
    assert on.holdings[ContainerKey("s", "main")].allocation.cpus == cpus("4-7")
    on.remove("a")
    assert on.holdings[ContainerKey("s", "main")].allocation.cpus == cpus("0-7")
