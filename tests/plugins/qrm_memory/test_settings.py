"""The allocator's settings, and what they reserve."""

from __future__ import annotations

import pytest
from qrm_memory import create

from qrm.allocator import ConfigError
from qrm.topology.generate import GIB
from tests.plugins.qrm_memory.nodes import MIB, Node, machine

REMEDY = ' (write a quantity such as "2Gi" for each NUMA node, or quantities by node, such as 0 = "2Gi")'


@pytest.mark.parametrize(
    ("reserved", "left"),
    [
        (0, {0: 8, 1: 8}),
        ("2Gi", {0: 6, 1: 6}),
        (GIB, {0: 7, 1: 7}),
        ({"0": "2Gi"}, {0: 6, 1: 8}),
        ({"0": GIB, "1": "0.5Gi", "7": "1Gi"}, {0: 7, 1: 7.5}),
        ("1Ti", {0: 0, 1: 0}),
    ],
)
def test_what_is_reserved_is_not_for_containers(reserved: object, left: dict[int, float]) -> None:
    """One quantity is for each node; nodes that are not there are left out."""
    node = Node(machine(), reserved=reserved)
    assert node.free() == left
    assert node.allocator.allocatable(node.state).allocatable == {each: gib * GIB for each, gib in left.items()}


def test_hugepages_are_not_memory() -> None:
    """What the kernel has set aside for them is not counted twice."""
    node = Node(machine(hugepages={GIB: 2, 2 * MIB: 512}), reserved="1Gi")
    assert node.free() == {0: 4, 1: 4}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reserved": "2 GB"}, "memory: reserved = '2 GB' is not usable: '2 GB' is not a quantity" + REMEDY),
        ({"reserved": -1}, "memory: reserved = -1 is not usable: Expected `int` >= 0" + REMEDY),
        (
            {"reserved": {"a": "1Gi"}},
            "memory: reserved = {'a': '1Gi'} is not usable: 'a' is not a NUMA node" + REMEDY,
        ),
        (
            {"reserved": {"0": None}},
            "memory: reserved = {'0': None} is not usable: Expected `int | str`, got `null`" + REMEDY,
        ),
        (
            {"reserve": "1Gi"},
            (
                "memory: reserve = '1Gi' is not usable: Object contains unknown field `reserve`"
                " (the settings of memory are reserved)"
            ),
        ),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    """The message names the field, the value and the remedy."""
    with pytest.raises(ConfigError) as refused:
        create(settings)
    assert str(refused.value) == message
