"""The allocator's settings, and what they reserve."""

from __future__ import annotations

import pytest
from qrm_cpu import create

from qrm.allocator import ConfigError
from qrm.allocator.testing import machine, request
from qrm.cpuset import CPUSet
from qrm.topology.machine import Machine
from tests.plugins.qrm_cpu.nodes import SYSTEM, cpus, node, two_nodes


def reserve(where: Machine, reserved: object) -> CPUSet:
    return node(where, reserved=reserved).quantities().pools.get("reserve", CPUSet())


def test_nothing_is_reserved_by_default() -> None:
    """Without settings every usable CPU is for containers."""
    assert node(two_nodes()).quantities().allocatable == {0: 8000, 1: 8000}


def test_a_list_is_reserved_as_it_is() -> None:
    """CPUs that the machine does not have are left out."""
    assert reserve(two_nodes(), "0,8,99") == cpus("0,8")


@pytest.mark.parametrize(
    ("number", "expected"),
    [(1, "0"), (2, "0,8"), (3, "0,4,8"), (4, "0,4,8,12"), (6, "0-1,4,8-9,12")],
)
def test_a_number_is_taken_as_whole_cores_from_each_node_in_turn(number: int, expected: str) -> None:
    """Lowest ids first; only the last core may be split."""
    assert reserve(two_nodes(), number) == cpus(expected)


@pytest.mark.parametrize("reserved", [99, "0-4096"])
def test_the_last_core_is_never_reserved(reserved: object) -> None:
    """Containers must run somewhere, whatever the settings say."""
    assert reserve(two_nodes(), reserved) == cpus("0-6,8-14")


def test_a_machine_with_one_cpu_has_no_reserve() -> None:
    """Its only CPU is for everybody."""
    assert reserve(machine(cores_per_l3=1), 1) == cpus("")


def test_isolated_cpus_are_left_alone() -> None:
    """Not even system containers run on CPUs that the kernel keeps free."""
    held = node(machine(cores_per_l3=4, isolated=[3])).create(request("a", level=SYSTEM))
    assert held.cpus == cpus("0-2")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"reserved": "0-"},
            (
                "cpu: reserved = '0-' is not usable: '0-' is not a list of ids: '0-'"
                ' (write a CPU list such as "0,32" or a number of CPUs such as 2)'
            ),
        ),
        (
            {"reserved": -1},
            (
                "cpu: reserved = -1 is not usable: Expected `int` >= 0"
                ' (write a CPU list such as "0,32" or a number of CPUs such as 2)'
            ),
        ),
        (
            {"reclaim_min": 0},
            "cpu: reclaim_min = 0 is not usable: Expected `int` >= 1 (write a number of CPUs, 1 or more)",
        ),
        (
            {"reclaim_overlap": "no"},
            "cpu: reclaim_overlap = 'no' is not usable: Expected `bool`, got `str` (write true or false)",
        ),
        (
            {"reclaim": 3},
            (
                "cpu: reclaim = 3 is not usable: Object contains unknown field `reclaim`"
                " (the settings of cpu are reserved, reclaim_overlap, reclaim_min)"
            ),
        ),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    """The message names the field, the value and the remedy."""
    with pytest.raises(ConfigError) as refused:
        create(settings)
    assert str(refused.value) == message
