"""The example's answers, one by one and for any pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from example_device import FpgaAllocator, create
from example_device.allocator import RESOURCE
from hypothesis import given
from hypothesis import strategies as st

from qrm.allocator import (
    BadRequest,
    Changes,
    ConfigError,
    ContainerKey,
    ContainerKind,
    DoesNotFit,
    Quantities,
    ResourceRequest,
    TopologyHint,
)
from qrm.allocator.testing import Harness, machine, request
from qrm.cpuset import NodeSet

TWO_AND_ONE = {"fpga0": 0, "fpga1": 0, "fpga2": 1}


def ask(pod: str, count: int, *, container: str = "main", kind: ContainerKind = ContainerKind.MAIN) -> ResourceRequest:
    return replace(request(pod, container=container), quantities={RESOURCE: count} if count else {}, kind=kind)


def node(devices: dict[str, int] | None = None, *, sockets: int = 2) -> Harness:
    return Harness(create({"devices": TWO_AND_ONE if devices is None else devices}), machine(sockets=sockets))


def hints(harness: Harness, asked: ResourceRequest) -> list[tuple[str, bool]]:
    return [(str(hint.nodes), hint.preferred) for hint in harness.allocator.hints(asked, harness.state)]


def test_the_fullest_node_that_has_enough_comes_first() -> None:
    """Best fit: one FPGA comes from node 1, where nothing is left over."""
    harness = node()
    assert hints(harness, ask("a", 1)) == [("1", True), ("0", True), ("0-1", False)]
    assert harness.create(ask("a", 1)).device == "fpga2"
    assert hints(harness, ask("b", 1)) == [("0", True)]


def test_all_nodes_together_are_preferred_where_no_node_could_ever_do() -> None:
    """Two fit on one node, if not now; three never do."""
    harness = node()
    assert hints(harness, ask("a", 2)) == [("0", True), ("0-1", False)]
    assert hints(harness, ask("a", 3)) == [("0-1", True)]
    harness.create(ask("a", 1), choice=1)
    assert hints(harness, ask("b", 2)) == [("0-1", False)]


def test_an_allocation_says_what_the_container_is_told_and_what_it_counts_for() -> None:
    """Devices by name, nodes, amounts, environment, annotation and the reason."""
    held = node().create(ask("a", 3))
    assert (held.pool, held.device, held.nodes) == ("fpga", "fpga0,fpga1,fpga2", NodeSet([0, 1]))
    assert held.amounts == {RESOURCE: {0: 2, 1: 1}}
    assert held.envs == {"EXAMPLE_FPGA_DEVICES": held.device}
    assert held.annotations == {"example.com/fpga-devices": held.device}
    assert held.why == "2 on NUMA node 0 and 1 on NUMA node 1: fpga0,fpga1,fpga2"


def test_spread_over_few_nodes() -> None:
    """The nodes with the most free ones are used first."""
    harness = node({"a": 0, "b": 1, "c": 1, "d": 2, "e": 2, "f": 2}, sockets=3)
    assert harness.create(ask("a", 5)).device == "b,c,d,e,f"


def test_a_refusal_carries_the_numbers() -> None:
    """Asked, free by NUMA node, the largest that would fit; also for a hint whose nodes have too little."""
    harness = node()
    harness.create(ask("a", 1))
    with pytest.raises(DoesNotFit, match="fpga: asked 3; free by NUMA node: 0: 2; largest that would fit: 2"):
        harness.create(ask("b", 3))
    with pytest.raises(DoesNotFit, match="fpga: asked 2; free by NUMA node: none; largest that would fit: 0"):
        harness.allocator.allocate(ask("b", 2), TopologyHint(NodeSet([1]), preferred=True), harness.state)


def test_less_than_nothing_is_a_bad_request() -> None:
    """The message names the resource and the value."""
    with pytest.raises(BadRequest, match=r"example\.com/fpga is -1"):
        node().create(ask("a", -1))


def test_who_asks_for_nothing_has_no_preference_and_holds_nothing() -> None:
    """Even where there are no FPGAs at all."""
    for harness in (node(), node({})):
        assert hints(harness, ask("a", 0)) == [("0-1", True)]
        hint = TopologyHint(NodeSet([0]), preferred=True)
        assert harness.allocator.allocate(ask("a", 0), hint, harness.state) == Changes({})


def test_a_container_stays_on_its_devices() -> None:
    """Restarted as it was, smaller, or larger as long as its node has more."""
    harness = node()
    assert harness.create(ask("a", 1), choice=1).device == "fpga0"
    assert harness.restart("a").device == "fpga0"
    assert hints(harness, ask("a", 2))[0] == ("0", True)
    assert harness.create(ask("a", 2)).device == "fpga0,fpga1"
    assert harness.create(ask("a", 1)).device == "fpga0"


def test_an_init_containers_devices_go_to_its_pod_and_to_nobody_else() -> None:
    """After it has exited, and back to it when the whole pod starts again."""
    harness = node({"fpga0": 0})
    first = ask("a", 1, container="init", kind=ContainerKind.INIT)
    harness.create(first)
    with pytest.raises(DoesNotFit):
        harness.create(ask("a", 1))
    harness.exit("a", "init")
    with pytest.raises(DoesNotFit):
        harness.create(ask("b", 1))
    assert harness.create(ask("a", 1)).device == "fpga0"
    with pytest.raises(DoesNotFit):
        harness.create(ask("a", 1, container="side"))
    harness.exit("a")
    assert harness.create(first).device == "fpga0"


def test_what_there_is() -> None:
    """By node; what an exited container holds is not free, and nodes that the machine lacks do not count."""
    harness = node({**TWO_AND_ONE, "far": 7})
    harness.create(ask("a", 1))
    harness.exit("a")
    assert harness.quantities() == Quantities(allocatable={0: 2, 1: 1}, free={0: 2, 1: 0})
    harness.remove("a")
    assert harness.quantities().free == {0: 2, 1: 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": {}}, "unknown field `device`"),
        ({"devices": {"fpga0": "0"}}, "Expected `int`, got `str`"),
        ({"devices": {"fpga0": -1}}, "Expected `int` >= 0"),
        ({"devices": {"a,b": 0}}, "matching regex"),
    ],
)
def test_unusable_settings_are_refused(settings: dict[str, object], message: str) -> None:
    """With what is wrong, and how to write it."""
    with pytest.raises(ConfigError, match=message) as caught:
        create(settings)
    assert "devices = { fpga0 = 0" in str(caught.value)


Step = tuple[Literal["create", "exit", "remove"], str, str, int, int]
STEPS: st.SearchStrategy[Step] = st.tuples(
    st.sampled_from(("create", "create", "exit", "remove")),
    st.sampled_from(("a", "b", "c")),
    st.sampled_from(("init", "main", "side")),
    st.integers(1, 4),
    st.integers(0, 2),
)


@given(st.lists(st.integers(0, 3), max_size=6), st.integers(1, 3), st.lists(STEPS, max_size=15))
def test_any_pods(nodes: list[int], sockets: int, steps: list[Step]) -> None:
    """The harness checks the contract; no FPGA is in two running containers, and a refusal tells the truth."""
    harness = node({f"fpga{number}": where for number, where in enumerate(nodes)}, sockets=sockets)
    for what, pod, container, count, choice in steps:
        known = ContainerKey(pod, container) in harness.holdings
        if what == "create":
            create_one(harness, pod, container, count, choice)
        elif what == "exit" and known:
            harness.exit(pod, container)
        elif what == "remove":
            harness.remove(pod)
        in_use = [name for held in harness.holdings.values() if held.running for name in names(held.allocation.device)]
        assert len(in_use) == len(set(in_use))


def create_one(harness: Harness, pod: str, container: str, count: int, choice: int) -> None:
    """As many as asked, on one node if that can be; refused only where fewer are left."""
    kind = ContainerKind.INIT if container == "init" else ContainerKind.MAIN
    before, quantities = dict(harness.holdings), harness.quantities()
    try:
        held = harness.create(ask(pod, count, container=container, kind=kind), choice=choice)
    except DoesNotFit:
        assert harness.holdings == before
        assert sum(quantities.free.values()) < count
        return
    where = {name: node for name, node in devices_of(harness).items() if name in names(held.device)}
    assert len(where) == count
    assert held.nodes == NodeSet(where.values())
    assert sum(held.amounts[RESOURCE].values()) == count
    if choice == 0 and not any(key.pod_uid == pod for key in before):
        assert (len(held.nodes) == 1) is (max(quantities.free.values()) >= count)


def devices_of(harness: Harness) -> dict[str, int]:
    assert isinstance(harness.allocator, FpgaAllocator)
    return dict(harness.allocator.devices)


def names(device: str) -> list[str]:
    return device.split(",")
