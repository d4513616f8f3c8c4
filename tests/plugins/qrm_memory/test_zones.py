"""Room in a zone: who is widened, in which order, and who is not."""

from __future__ import annotations

import pytest

from qrm.allocator import DoesNotFit, NativeQos, ResourceRequest
from qrm.topology.generate import GIB
from tests.plugins.qrm_memory.nodes import DEDICATED, RECLAIMED, SHARED, SYSTEM, Node, ask, machine

BEST_EFFORT, BURSTABLE, GUARANTEED = NativeQos.BEST_EFFORT, NativeQos.BURSTABLE, NativeQos.GUARANTEED


def shared(pod: str, gib: float, native: NativeQos = BURSTABLE, **more: object) -> ResourceRequest:
    """A shared pod with numa_binding."""
    return ask(pod, gib, SHARED, binding=True, native=native, **more)  # type: ignore[arg-type]


def dedicated(pod: str, gib: float, **more: object) -> ResourceRequest:
    """A dedicated pod with numa_binding."""
    return ask(pod, gib, DEDICATED, binding=True, **more)  # type: ignore[arg-type]


def full_node() -> Node:
    """Node 0 has all of its 8Gi asked for by pods of each kind, node 1 none."""
    node = Node(machine())
    node.create(ask("reclaimed", 1, RECLAIMED, binding=True), on="0")
    node.create(shared("best-effort", 1, BEST_EFFORT), on="0")
    node.create(shared("burstable", 1), on="0")
    node.create(shared("larger", 2), on="0")
    node.create(shared("guaranteed", 1, GUARANTEED), on="0")
    node.create(dedicated("dedicated", 2), on="0")
    return node


def wide(node: Node) -> set[str]:
    """The pods on both nodes."""
    return {key.pod_uid for key, held in node.holdings.items() if len(held.allocation.nodes) == 2}


@pytest.mark.parametrize(
    ("gib", "widened"),
    [
        (1, {"reclaimed"}),
        (2, {"reclaimed", "best-effort"}),
        (3, {"reclaimed", "best-effort", "larger"}),
        (4, {"reclaimed", "best-effort", "larger"}),
        (5, {"reclaimed", "best-effort", "larger", "burstable"}),
        (6, {"reclaimed", "best-effort", "larger", "burstable", "guaranteed"}),
    ],
)
def test_the_least_important_are_widened_first(gib: float, widened: set[str]) -> None:
    """Of equals the one that asks for most, so that few have to move."""
    node = full_node()
    node.create(dedicated("new", gib), on="0")
    assert wide(node) == widened


def test_dedicated_pods_are_never_widened() -> None:
    """What does not fit beside them is refused on this node."""
    node = full_node()
    with pytest.raises(DoesNotFit, match="largest that would fit: 6Gi"):
        node.create(dedicated("new", 7), on="0")
    assert node.hints(dedicated("new", 7)) == [("1", True)]
    assert wide(node) == set()


def test_a_node_where_nobody_has_to_move_is_better() -> None:
    """Where others lose their binding is not preferred; that reclaimed ones move is no matter."""
    node = full_node()
    assert node.hints(dedicated("new", 2)) == [("1", True), ("0", False)]
    node.create(dedicated("x", 6), on="1")
    assert node.hints(dedicated("new", 1)) == [("1", True), ("0", True)]


def test_nobody_makes_room_for_an_equal() -> None:
    """A Burstable pod widens what is reclaimed and BestEffort, and no other Burstable one."""
    node = full_node()
    node.create(shared("new", 2), on="0")
    assert wide(node) == {"reclaimed", "best-effort"}
    with pytest.raises(DoesNotFit):
        node.create(shared("newer", 1), on="0")
    node.create(shared("newest", 1, GUARANTEED), on="0")
    assert wide(node) == {"reclaimed", "best-effort", "larger"}


def test_widening_is_told_and_stays() -> None:
    """All containers of a widened pod are on its nodes, and stay there when there is room again."""
    node = Node(machine())
    node.create(shared("a", 3), on="0")
    node.create(shared("a", 3, container="side"))
    assert (
        node.create(dedicated("b", 4), on="0").why
        == "NUMA node 0, of which 2Gi was free; 1 less important pod was widened"
    )
    assert [node.nodes("a", name) for name in ("", "main", "side")] == ["0-1"] * 3
    assert node.amounts("a", "") == {0: 4, 1: 2}
    assert node.holdings[shared("a", 3).key].allocation.why == "widened to NUMA nodes 0-1 to make room for another pod"
    node.remove("b")
    node.exit("a")
    assert str(node.create(shared("a", 3)).nodes) == "0-1"


def test_widening_goes_on_until_nothing_spills() -> None:
    """What moves to the next node makes that one too full in turn."""
    node = Node(machine(sockets=2, nodes_per_socket=2))
    node.create(shared("a", 6), on="0")
    node.create(dedicated("x", 6), on="1")
    node.create(shared("b", 2, BEST_EFFORT), on="1")
    node.create(dedicated("y", 4), on="0")
    assert (node.nodes("a"), node.nodes("b"), node.nodes("x")) == ("0-1", "1-2", "1")


def test_a_pod_that_grows_widens_others() -> None:
    """In place, and only others that are less important."""
    node = Node(machine())
    node.create(shared("a", 4), on="0")
    node.create(dedicated("b", 4), on="0")
    node.create(dedicated("b", 5))
    assert (node.nodes("a"), node.nodes("b")) == ("0-1", "0")
    with pytest.raises(DoesNotFit, match=r"the pod stays on NUMA node 0"):
        node.create(dedicated("b", 9))


def test_adopted_pods_are_not_moved() -> None:
    """They count where they are, even if that is too much, and nobody elsewhere is refused because of it."""
    node = Node(machine())
    node.adopt(shared("a", 9), "0")
    with pytest.raises(DoesNotFit):
        node.create(dedicated("b", 1), on="0")
    assert node.hints(dedicated("b", 7)) == [("1", True)]
    assert str(node.create(dedicated("b", 7)).nodes) == "1"
    assert node.nodes("a") == "0"
    assert node.free() == {0: 0, 1: 1}


def test_adopted_containers_that_float_leave_exclusive_nodes_only() -> None:
    """They get no other nodes."""
    node = Node(machine(sockets=3))
    node.adopt(ask("a", 1), "0-1")
    node.settle()
    assert node.nodes("a") == "0-1"
    node.create(dedicated("b", 1, exclusive=True), on="1")
    assert node.nodes("a") == "0"
    node.remove("b")
    assert node.nodes("a") == "0"


def test_what_floats_must_fit_beside_what_is_bound() -> None:
    """On all nodes together; what exited is not counted, and is let in again."""
    node = Node(machine())
    node.create(dedicated("b", 6), on="0")
    node.create(ask("a", 9))
    assert node.refusal(ask("c", 2)) == (
        "memory: asked 2Gi for shared_cores; free by NUMA node: 0: 2Gi, 1: 8Gi; largest that would fit: 1Gi;"
        " other floating containers were promised 9Gi of memory there"
    )
    assert node.refusal(dedicated("c", 2)) == (
        "memory: asked 2Gi for dedicated_cores with numa_binding; free by NUMA node: 0: 1Gi, 1: 1Gi;"
        " largest that would fit: 1Gi"
    )
    node.exit("a")
    node.create(ask("c", 2))
    node.create(ask("a", 9))
    assert node.refusal(ask("a", 10)).endswith("other floating containers were promised 2Gi of memory there")


@pytest.mark.parametrize("level", [RECLAIMED, SYSTEM])
def test_reclaimed_and_system_containers_are_never_refused(level: object) -> None:
    """Nothing is promised to what is reclaimed; what the system asks for counts."""
    node = Node(machine())
    node.create(ask("a", 16))
    assert node.hints(ask("x", 99, level)) == [("0-1", True)]  # type: ignore[arg-type]
    held = node.create(ask("x", 99, level))  # type: ignore[arg-type]
    assert (held.pool, str(held.nodes)) == ("memory", "0-1")
    assert held.why == "floats on NUMA nodes 0-1, which no pod has for itself"
    node.remove("a")
    assert (sum(node.free().values()) == 16) == (level is RECLAIMED)


def test_a_reclaimed_container_can_be_on_one_node() -> None:
    """The one with most room, with the others of its pod; on any if another resource needs it there."""
    node = Node(machine())
    node.create(dedicated("b", 5), on="0")
    assert node.hints(ask("a", 1, RECLAIMED, binding=True)) == [("1", True), ("0", True)]
    assert node.create(ask("a", 1, RECLAIMED, binding=True)).nodes.mask == 0b10
    assert node.hints(ask("a", 9, RECLAIMED, binding=True, container="side")) == [("1", True)]
    assert node.hints(ask("c", 4, RECLAIMED, binding=True, ids="0")) == [("0", True)]
    assert node.hints(ask("c", 4, RECLAIMED, binding=True, ids="7")) == [("0-1", True)]


def test_a_floating_hint_restricts_nobody() -> None:
    """Even where some nodes are exclusive or without memory, other resources may use all CPUs."""
    node = Node(machine(sockets=3))
    node.create(dedicated("b", 1, exclusive=True), on="1")
    assert node.hints(ask("a", 1)) == [("0-2", True)]
    assert node.create(ask("a", 1)).nodes.mask == 0b101


def test_hugepages_of_floating_containers_must_fit_too() -> None:
    """Over all nodes together."""
    node = Node(machine(hugepages={GIB: 2}))
    node.create(ask("a", pages={"1Gi": 3}))
    assert node.amounts("a", resource="hugepages-1Gi") == {0: 1, 1: 2}
    assert node.refusal(ask("b", pages={"1Gi": 2})) == (
        "hugepages-1Gi: asked 2Gi for shared_cores; free by NUMA node: 0: 2Gi, 1: 2Gi; largest that would fit: 1Gi;"
        " other floating containers were promised 3Gi of hugepages-1Gi there"
    )


def test_nodes_that_are_gone() -> None:
    """What floats leaves them; a bound pod without any floats, until it is planned again."""
    node = Node(machine(sockets=3))
    node.create(ask("f", 1))
    node.create(dedicated("b", 2), on="2")
    node.machine = machine(sockets=2)
    node.settle()
    assert (node.nodes("f"), node.nodes("b")) == ("0-1", "0-1")
    assert node.holdings[dedicated("b", 2).key].allocation.why == (
        "its NUMA nodes are gone; floats on NUMA nodes 0-1, which no pod has for itself"
    )
    assert node.create(dedicated("b", 2)).nodes.mask in (1, 2)
