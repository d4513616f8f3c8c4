"""How amounts are divided among NUMA nodes."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st
from qrm_memory.ground import hugepages_name
from qrm_memory.requested import page_size
from qrm_memory.spread import Entry, balance, portions
from qrm_memory.wording import quantity


@given(st.integers(0, 100), st.dictionaries(st.integers(0, 5), st.integers(0, 30), min_size=1), st.sampled_from((1, 2)))
def test_portions_add_up_and_do_not_exceed_their_weights(amount: int, weights: dict[int, int], step: int) -> None:
    """Unless there is more than all weights together."""
    weights = {node: weight * step for node, weight in weights.items()}
    parts = portions(amount * step, weights, step)
    assert sum(parts.values()) == amount * step
    assert all(part > 0 and part % step == 0 for part in parts.values())
    if amount * step <= sum(weights.values()):
        assert all(part <= weights[node] for node, part in parts.items())


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    """Pods on up to four nodes, which had something else before."""
    found = []
    for number in range(draw(st.integers(0, 5))):
        before = draw(st.dictionaries(st.integers(0, 3), st.integers(1, 8), max_size=3))
        found.append(Entry(str(number), draw(st.integers(1, 15)), draw(st.integers(0, 12)), before))
    return found


@given(entries(), st.lists(st.integers(0, 20), min_size=4, max_size=4))
def test_no_node_is_promised_twice_if_that_is_possible(pods: list[Entry], sizes: list[int]) -> None:
    """It is possible if what is asked for within each set of nodes does not exceed it (Hall's theorem)."""
    capacity = dict(enumerate(sizes))
    parts = balance(pods, capacity, 1)
    for pod in pods:
        assert sum(parts[pod.uid].values()) == pod.amount
        assert all(pod.zone >> node & 1 and part > 0 for node, part in parts[pod.uid].items())
    sets = chain.from_iterable(combinations(range(4), count) for count in range(1, 5))
    masks = [sum(1 << node for node in some) for some in sets]
    feasible = all(
        sum(pod.amount for pod in pods if not pod.zone & ~mask)
        <= sum(size for node, size in capacity.items() if mask >> node & 1)
        for mask in masks
    )
    used = {node: sum(each.get(node, 0) for each in parts.values()) for node in capacity}
    if feasible:
        assert all(used[node] <= capacity[node] for node in capacity)
    again = [Entry(pod.uid, pod.zone, pod.amount, parts[pod.uid]) for pod in pods]
    assert balance(again, capacity, 1) == parts


def test_names_of_pages() -> None:
    """As Kubernetes spells them."""
    for name, size in (("hugepages-2Mi", 2 << 20), ("hugepages-1Gi", 1 << 30), ("hugepages-64Ki", 64 << 10)):
        assert page_size(name) == size
        assert hugepages_name(size) == name
    assert [page_size(f"hugepages-{wrong}") for wrong in ("", "x", "0", "1.5")] == [0, 0, 0, 0]
    assert page_size("memory") == 1


def test_readable_bytes() -> None:
    """What is free is rounded down, what is asked for up."""
    assert [quantity(each << 29) for each in (0, 1, 2, 11)] == ["0", "512Mi", "1Gi", "5.5Gi"]
    assert (quantity((1 << 30) + 1), quantity((1 << 30) + 1, up=True)) == ("1Gi", "1.01Gi")
    assert (quantity(1023), quantity(1023, up=True)) == ("1023", "1023")
