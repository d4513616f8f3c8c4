"""The test kit for authors of allocators: it must find what it is there to find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from qrm.allocator import (
    Allocation,
    Changes,
    ContainerKey,
    DoesNotFit,
    Quantities,
    ResourceRequest,
    State,
    TopologyHint,
)
from qrm.allocator.testing import ContractBroken, Harness, machine, request
from qrm.cpuset import CPUSet, NodeSet


@dataclass
class Scripted:
    """An allocator that answers what it is told to; without that, every container gets all CPUs."""

    resource: str = "cpu"
    answer: dict[ContainerKey, Allocation] = field(default_factory=dict)
    due: dict[ContainerKey, Allocation] = field(default_factory=dict)
    offered: list[TopologyHint] = field(default_factory=list)
    forgetful: bool = False
    calls: int = 0

    def hints(self, request: ResourceRequest, state: State) -> Sequence[TopologyHint]:
        return self.offered or [TopologyHint(state.machine.cpu_nodes, preferred=True)]

    def allocate(self, request: ResourceRequest, hint: TopologyHint, state: State) -> Changes:
        self.calls += 1
        if self.forgetful:
            return Changes({request.key: Allocation("share", CPUSet([self.calls]), nodes=NodeSet([0]))})
        if not hint.nodes:
            raise DoesNotFit("not there")
        everywhere = Allocation("share", state.machine.online, nodes=state.machine.cpu_nodes)
        return Changes({request.key: everywhere} | self.answer)

    def settle(self, state: State) -> Changes:
        return Changes(self.due)

    def allocatable(self, state: State) -> Quantities:
        return Quantities({}, {})


FOUR = machine(cores_per_l3=4)
A, B = request("a"), request("b")
LINE = ContainerKey("a", "")


def on(cpus: str, *, own: str = "", nodes: str = "0") -> Allocation:
    return Allocation("x", CPUSet.parse(cpus), exclusive=CPUSet.parse(own), nodes=NodeSet.parse(nodes))


def test_a_good_allocator_passes() -> None:
    """What it allocates is remembered, and gone with its pod."""
    harness = Harness(Scripted(), FOUR)
    assert harness.create(A).cpus == CPUSet.parse("0-3")
    harness.restart("a")
    harness.resize("a", 500)
    assert harness.holdings[A.key].request.cpu_millis == 500
    harness.remove("a")
    assert harness.holdings == {}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({A.key: on("")}, "has no CPUs"),
        ({A.key: on("3-4")}, "is on CPUs that are not online: 4"),
        ({A.key: on("0", own="1")}, "does not run on its exclusive CPUs 1"),
        ({A.key: on("0", nodes="")}, "which is not on NUMA nodes"),
        ({A.key: on("0", own="0")}, "runs on CPU 0, which is exclusive to a"),
        ({A.key: on("0", own="0"), B.key: on("0", own="0")}, "CPU 0 is exclusive to"),
        ({A.key: on("0", own="0"), LINE: on("1", own="1"), B.key: on("2")}, "has CPUs for itself that its pod has not"),
        ({A.key: on("0"), ContainerKey("c", "main"): on("0")}, "which did not ask"),
        ({A.key: on("0", nodes="0,1")}, "was answered with"),
    ],
)
def test_bad_allocations_are_found(answer: dict[ContainerKey, Allocation], message: str) -> None:
    """Each message names the container and the CPUs."""
    allocator = Scripted()
    harness = Harness(allocator, FOUR)
    harness.create(B)
    allocator.answer = answer
    with pytest.raises(ContractBroken, match=message):
        harness.create(A)


def test_containers_of_one_pod_that_have_the_same_cpus_are_found() -> None:
    """Unless one of them has exited."""
    allocator = Scripted()
    harness = Harness(allocator, FOUR)
    side = request("a", container="side")
    allocator.answer = {A.key: on("0", own="0")}
    harness.create(A)
    allocator.answer = {side.key: on("0", own="0")}
    with pytest.raises(ContractBroken, match="both have 0 for themselves"):
        harness.create(side)
    harness.exit("a", "side")


def test_an_allocator_with_a_memory_is_found() -> None:
    """Asked twice, it answers differently."""
    with pytest.raises(ContractBroken, match="the same state was answered differently"):
        Harness(Scripted(forgetful=True), FOUR).create(A)


def test_a_hint_that_cannot_be_served_is_found() -> None:
    """Although it is not the one that is taken."""
    hints = [TopologyHint(NodeSet([0]), preferred=True), TopologyHint(NodeSet(), preferred=False)]
    with pytest.raises(ContractBroken, match="was offered and is refused: not there"):
        Harness(Scripted(offered=hints), FOUR).create(A)


def test_an_allocator_that_never_settles_is_found() -> None:
    """It has something to change every time that it is asked."""
    allocator = Scripted()
    harness = Harness(allocator, FOUR)
    harness.create(A)
    allocator.due = {A.key: on("0")}
    with pytest.raises(ContractBroken, match="not settled"):
        harness.exit("a")


def test_allocations_for_nobody_are_found() -> None:
    """Settling changes what is held, it does not add to it."""
    allocator = Scripted()
    harness = Harness(allocator, FOUR)
    allocator.due = {A.key: on("0")}
    with pytest.raises(ContractBroken, match="which hold nothing"):
        harness.settle()


def test_machines_have_any_shape() -> None:
    """Uneven L3 domains, second threads behind all first ones, gaps in the ids, nodes without CPUs."""
    made = machine(
        sockets=2,
        l3_per_node=2,
        cores_per_l3=[2, 1],
        threads=2,
        memory_only=1,
        cpu_stride=100,
        node_stride=4,
        offline=[0],
        isolated=[300],
    )
    assert made.online == CPUSet(range(100, 1200, 100))
    assert made.offline == CPUSet([0])
    assert made.isolated == CPUSet([300])
    assert dict(made.cores) == {
        100: CPUSet([100, 700]),
        200: CPUSet([200, 800]),
        300: CPUSet([300, 900]),
        400: CPUSet([400, 1000]),
        500: CPUSet([500, 1100]),
        600: CPUSet([600]),
    }
    assert list(made.l3_domains.values()) == [
        CPUSet([100, 600, 700]),
        CPUSet([200, 800]),
        CPUSet([300, 400, 900, 1000]),
        CPUSet([500, 1100]),
    ]
    assert {number: str(node.cpus) for number, node in made.nodes.items()} == {
        0: "100,200,600,700,800",
        4: "300,400,500,900,1000,1100",
        8: "",
    }
    assert [made.socket_of(number) for number in made.nodes] == [0, 1, None]
    assert made.nodes[0].distances == {0: 10, 4: 20, 8: 20}
