"""The allocator's settings, and what they reserve."""

from __future__ import annotations

import pytest
from qrm_nic import create

from qrm.allocator import NET_EGRESS, ConfigError
from tests.plugins.qrm_nic.nodes import Node, ask, eth, two_nodes


def test_the_resource() -> None:
    """Katalyst's name for it."""
    assert create({}).resource == NET_EGRESS == "resource.katalyst.kubewharf.io/net_bandwidth"


@pytest.mark.parametrize(
    ("settings", "egress", "ingress"),
    [
        ({}, 940, 900),
        ({"egress_ratio": 1, "ingress_ratio": 0.5}, 1000, 500),
        ({"egress_ratio": 0.0001, "ingress_ratio": 0.9999}, 0, 999),
        ({"reserved": 100}, 840, 800),
        ({"reserved": 920}, 20, 0),
        ({"reserved": 5000}, 0, 0),
    ],
)
def test_capacity_is_speed_times_ratio_less_the_reserve(settings: dict[str, object], egress: int, ingress: int) -> None:
    """Rounded down, and never below nothing."""
    node = Node(two_nodes(eth(0, 0)), settings)
    assert f"NUMA node 0: {egress} egress and {ingress} ingress;" in node.refusal(ask("a", 5000))


@pytest.mark.parametrize("percent", range(1, 101))
def test_the_ratio_is_meant_as_it_is_written(percent: int) -> None:
    """0.29 of 100 is 29, although the float nearest to 0.29 is less."""
    assert Node(two_nodes(eth(0, 0, 100)), {"egress_ratio": percent / 100}).free() == {0: percent}


def test_a_reserve_beyond_the_nic_leaves_nothing() -> None:
    """Not less than nothing, which would take from the NICs beside it."""
    node = Node(two_nodes(eth(0, 0, 100), eth(1, 0)), {"reserved": 500})
    assert node.twice(node.allocator.allocatable).allocatable == {0: 940}


@pytest.mark.parametrize(
    ("down", "namespace", "expected"),
    [
        ((), "", {0: 840, 1: 940}),
        ((0,), "", {1: 840}),
        ((), "blue", {0: 940, 1: 840}),
        ((1,), "blue", {0: 840}),
    ],
)
def test_the_system_has_its_share_of_the_first_nic(
    down: tuple[int, ...], namespace: str, expected: dict[int, int]
) -> None:
    """The first one by name that is in use, in the host's namespace if there is one."""
    nics = (eth(1, 1, up=1 not in down), eth(0, 0, up=0 not in down))
    settings = {"reserved": 100, "nics": {"eth0": {"namespace": namespace}}}
    assert Node(two_nodes(*nics), settings).free() == expected


def test_nics_in_settings_only_are_there_if_they_are_elsewhere() -> None:
    """Without a namespace it is one that was taken out."""
    said = {"eth8": {"speed": 1000, "node": 0}, "eth9": {"speed": 1000, "node": 1, "namespace": "blue"}}
    assert Node(two_nodes(), {"nics": said}).free() == {1: 940}


TABLE = "(write a table for each NIC by its name, such as [allocators.nic.nics.eth0])"
RATIO = "(write a number above 0 and up to 1, such as 0.94)"
UNKNOWN = "(write whole Mbit/s, or 0 to leave such NICs alone)"
IPV4 = "(write one address, such as 192.0.2.7)"
IPV6 = "(write one address, such as 2001:db8::7)"
SETTINGS = "(the settings of nic are egress_ratio, ingress_ratio, reserved, assume_speed, nics)"
OF_A_NIC = "(the settings of nics.eth0 are speed, node, namespace, ipv4, ipv6, netns_path, ignore)"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"egress_ratio": 0}, f"egress_ratio = 0 is not usable: Expected `float` > 0.0 {RATIO}"),
        ({"egress_ratio": 1.1}, f"egress_ratio = 1.1 is not usable: Expected `float` <= 1.0 {RATIO}"),
        ({"egress_ratio": float("nan")}, f"egress_ratio = nan is not usable: Expected `float` > 0.0 {RATIO}"),
        (
            {"reserved": -1},
            "reserved = -1 is not usable: Expected `int` >= 0 (write whole Mbit/s, 0 or more)",
        ),
        (
            {"assume_speed": "1G"},
            f"assume_speed = '1G' is not usable: Expected `int`, got `str` {UNKNOWN}",
        ),
        ({"nic": {}}, f"nic = {{}} is not usable: Object contains unknown field `nic` {SETTINGS}"),
        ({"nics": ["eth0"]}, f"nics = ['eth0'] is not usable: Expected `object`, got `array` {TABLE}"),
        ({"nics": {"eth0": "up"}}, f"nics.eth0 = 'up' is not usable: it is no table {TABLE}"),
        (
            {"nics": {"eth1": {}, "eth0": {"speed": 0}}},
            "nics.eth0.speed = 0 is not usable: Expected `int` >= 1 (write whole Mbit/s, 1 or more, such as 10000)",
        ),
        (
            {"nics": {"eth0": {"numa": 0}}},
            f"nics.eth0.numa = 0 is not usable: Object contains unknown field `numa` {OF_A_NIC}",
        ),
        (
            {"nics": {"eth0": {"ipv4": "192.0.2.0/24"}}},
            f"nics.eth0.ipv4 = '192.0.2.0/24' is not usable: Unexpected '/' in '192.0.2.0/24' {IPV4}",
        ),
        (
            {"nics": {"eth0": {"ipv6": "::g"}}},
            f"nics.eth0.ipv6 = '::g' is not usable: Only hex digits permitted in 'g' in '::g' {IPV6}",
        ),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    """The message names the field, the value and the remedy."""
    with pytest.raises(ConfigError) as refused:
        create(settings)
    assert str(refused.value) == f"nic: {message}"
