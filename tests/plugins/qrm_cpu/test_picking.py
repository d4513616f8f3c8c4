"""Which CPUs are picked: the order of preference, on whole machines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from qrm_cpu.ground import Ground, survey_ground
from qrm_cpu.picking import far_end, grow, pick, shrink, whole_cores
from qrm_cpu.settings import Settings

from qrm.allocator.testing import machine
from qrm.topology.machine import Machine
from tests.plugins.qrm_cpu import strategies
from tests.plugins.qrm_cpu.nodes import cpus


def ground(where: Machine) -> Ground:
    return survey_ground(where, Settings())


def picked(where: Machine, free: str, count: int) -> str:
    return str(type(cpus("")).from_mask(pick(ground(where), cpus(free).mask, count)))


SOCKETS = machine(sockets=2, l3_per_node=2, cores_per_l3=2, threads=2)
"""Sockets 0-3,8-11 and 4-7,12-15; L3 domains 0-1,8-9 and 2-3,10-11 and so on."""


def test_whole_sockets_come_first() -> None:
    """An idle socket that fits within the count is taken as a whole, the rest is best fit."""
    assert picked(SOCKETS, "1-15", 9) == "4-8,12-15"


def test_a_socket_that_is_larger_than_the_count_is_no_whole_socket() -> None:
    """Then NUMA nodes, L3 domains and cores decide."""
    assert picked(SOCKETS, "0-15", 7) == "0-3,8-10"


def test_an_l3_domain_that_fits_exactly_is_best() -> None:
    """Although another one with more free CPUs comes first."""
    assert picked(machine(l3_per_node=2, cores_per_l3=[4, 3]), "0-6", 3) == "4-6"


def test_then_the_smallest_l3_domain_that_is_larger() -> None:
    """So the largest ones stay whole."""
    assert picked(machine(l3_per_node=3, cores_per_l3=[6, 4, 5]), "0-14", 3) == "6-8"


def test_then_the_largest_l3_domain_and_the_best_fit_for_the_rest() -> None:
    """As few L3 domains as possible."""
    assert picked(machine(l3_per_node=3, cores_per_l3=[3, 6, 4]), "0-12", 9) == "0-8"


def test_whole_cores_come_before_single_threads() -> None:
    """CPU 4 is the free thread of a core of which CPU 0 is taken."""
    where = machine(cores_per_l3=4, threads=2)
    assert picked(where, "1-7", 2) == "1,5"
    assert picked(where, "1-7", 3) == "1,4-5"


def test_a_single_thread_comes_from_the_core_that_is_broken_most() -> None:
    """The first core has three free threads, the second one has two, the third one is idle."""
    where = machine(cores_per_l3=3, threads=4)
    assert picked(where, "0,2-8,11", 1) == "4"


def test_ties_go_to_the_lowest_ids() -> None:
    """The same question always has the same answer."""
    assert picked(machine(sockets=2, l3_per_node=2, cores_per_l3=2), "0-7", 1) == "0"


def test_growing_goes_outwards() -> None:
    """The other thread of the core, then the L3 domain, the NUMA node, the socket, the rest."""
    where = ground(machine(sockets=2, nodes_per_socket=2, l3_per_node=2, cores_per_l3=1, threads=2))
    held, free, order = 0b1, where.online & ~0b1, []
    while free:
        more = grow(where, held, free, 1)
        order.append(more.bit_length() - 1)
        held, free = held | more, free & ~more
    assert order == [8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]


def test_the_far_end_is_where_nobody_picks_first() -> None:
    """Whole cores from the end of the last L3 domain, so that share's first CPUs have no borrower on their cores."""
    where = ground(SOCKETS)
    assert far_end(where, where.online, 3) == cpus("7,14-15").mask
    assert far_end(where, where.online, 6) == cpus("5-7,13-15").mask


@given(st.data(), strategies.machines())
def test_picking_gives_as_many_as_asked_and_nothing_else(data: st.DataObject, where: Machine) -> None:
    """Picking, growing, shrinking and taking from the end all give a part of what is there, of the right size."""
    on = ground(where)
    free = sum(1 << cpu for cpu in data.draw(st.sets(st.sampled_from(list(where.online)))))
    held = sum(1 << cpu for cpu in data.draw(st.sets(st.sampled_from(list(where.online))))) & ~free
    count = data.draw(st.integers(0, len(where.online) + 1))
    for found in (
        pick(on, free, count),
        grow(on, held, free, count),
        shrink(on, free, count),
        far_end(on, free, count),
    ):
        assert not found & ~free
        assert found.bit_count() == min(count, free.bit_count())


@given(st.data(), strategies.machines())
def test_cores_are_not_broken_without_need(data: st.DataObject, where: Machine) -> None:
    """A number of CPUs that whole cores of the same size can give is given in whole cores."""
    on = ground(where)
    free = whole_cores(on, sum(1 << cpu for cpu in data.draw(st.sets(st.sampled_from(list(where.online))))))
    sizes = {core.bit_count() for node in on.nodes for domain in node.domains for core in domain.cores if core & free}
    if len(sizes) == 1:
        count = sizes.pop() * data.draw(st.integers(0, len(where.online)))
        found = pick(on, free, count)
        assert whole_cores(on, found) == found
