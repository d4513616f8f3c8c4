"""Merging hints: policies, refusals, and properties over generated offers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrm.allocation.hints import Merged, Policy, merge
from qrm.allocator import DoesNotFit, TopologyHint
from qrm.cpuset import NodeSet

Offer = dict[str, list[TopologyHint]]
ALL = NodeSet(range(4))
STRICT = (Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE, Policy.NUMERIC)


def hint(nodes: str, *, preferred: bool = True) -> TopologyHint:
    return TopologyHint(NodeSet.parse(nodes), preferred)


def offers(**given: str) -> Offer:
    """`cpu="0 1 0-1?"`: preferred hints on 0 and on 1, and one on both that is not preferred."""
    return {
        name: [hint(each.rstrip("?"), preferred=not each.endswith("?")) for each in text.split()]
        for name, text in given.items()
    }


def merged(policy: Policy, **given: str) -> Merged:
    return merge(offers(**given), policy, ALL)


@pytest.mark.parametrize("policy", list(Policy))
def test_one_node_that_suits_all_is_taken(policy: Policy) -> None:
    """Where a preferred node is common to all, every policy takes it; of two, the lower."""
    found = merged(policy, cpu="1 2 1-2?", memory="1 2 3", nic="1")
    if policy is not Policy.NONE:
        assert (str(found.nodes), found.preferred) == ("1", True)
    assert str(merged(policy, cpu="2 3", memory="2 3").nodes) == "2"


@pytest.mark.parametrize("policy", [each for each in Policy if each is not Policy.NONE])
def test_among_equals_the_allocators_own_order_decides(policy: Policy) -> None:
    """An allocator names the node that suits it best first, by best fit for example."""
    assert str(merged(policy, cpu="2 0 1").nodes) == "2"
    assert str(merged(policy, cpu="2 0 1", memory="0 2 3").nodes) in ("0", "2")
    assert str(merged(policy, cpu="2 1 0", memory="3 2 0").nodes) == "2"


def test_without_a_policy_each_goes_where_it_is_best() -> None:
    """none aligns nothing."""
    found = merged(Policy.NONE, cpu="1", memory="2", nic="3")
    assert {name: str(each.nodes) for name, each in found.chosen.items()} == {"cpu": "1", "memory": "2", "nic": "3"}
    assert not found.preferred


def test_best_effort_comes_as_close_as_it_can() -> None:
    """No common node: the smallest set in which every resource has a hint."""
    found = merged(Policy.BEST_EFFORT, cpu="0 2", memory="1 2", nic="3 2-3?")
    assert str(found.nodes) == "2-3"
    assert not found.preferred
    assert merged(Policy.BEST_EFFORT, cpu="0", memory="1").nodes == NodeSet([0, 1])


def test_restricted_wants_one_preferred_set() -> None:
    """What only fits apart, or only where somebody does not prefer it, is refused with each resource's nodes."""
    with pytest.raises(DoesNotFit, match="cpu fits on 0; memory fits on 1 or 2"):
        merged(Policy.RESTRICTED, cpu="0", memory="1 2")
    with pytest.raises(DoesNotFit, match="restricted"):
        merged(Policy.RESTRICTED, cpu="0-1", memory="0-1?")
    assert str(merged(Policy.RESTRICTED, cpu="0-1", memory="0-1 2").nodes) == "0-1"


def test_single_numa_node_takes_one_node_or_none() -> None:
    """A common pair of nodes is not enough."""
    with pytest.raises(DoesNotFit, match="single-numa-node"):
        merged(Policy.SINGLE_NUMA_NODE, cpu="0-1", memory="0-1")
    assert str(merged(Policy.SINGLE_NUMA_NODE, cpu="0-1 1?", memory="0-1 1").nodes) == "1"


def test_numeric_aligns_some_and_nests_the_others() -> None:
    """cpu and memory on the same nodes with one preferring them, the NIC on a part of them, the GPU on more."""
    found = merged(Policy.NUMERIC, cpu="0-1 2-3", memory="0-1? 2-3?", nic="1 0-3?", gpu="0-3")
    assert {name: str(each.nodes) for name, each in found.chosen.items()} == {
        "cpu": "0-1",
        "memory": "0-1",
        "nic": "1",
        "gpu": "0-3",
    }
    with pytest.raises(DoesNotFit, match="numeric"):
        merged(Policy.NUMERIC, cpu="0", memory="1")
    with pytest.raises(DoesNotFit, match="numeric"):
        merged(Policy.NUMERIC, cpu="0-1", memory="0-1", nic="1-2")
    with pytest.raises(DoesNotFit, match="numeric"):
        merged(Policy.NUMERIC, cpu="0?", memory="0?")


def test_numeric_prefers_for_the_others_before_it_saves_nodes() -> None:
    """A set that the NIC prefers wins over a smaller one that it only accepts."""
    found = merged(Policy.NUMERIC, cpu="0 1-2", memory="0 1-2", nic="0? 1")
    assert str(found.chosen["nic"].nodes) == "1"
    assert str(found.chosen["cpu"].nodes) == "1-2"


def test_who_has_no_preference_restricts_nobody() -> None:
    """A preferred hint that covers the machine, or none at all, leaves the choice to the others."""
    found = merged(Policy.SINGLE_NUMA_NODE, cpu="0-3", memory="2")
    assert str(found.nodes) == "2"
    assert found.chosen["cpu"] == hint("0-3")
    assert merged(Policy.RESTRICTED, cpu="0-3").preferred
    assert merged(Policy.RESTRICTED, cpu="1", gpu="").chosen["gpu"] == hint("0-3")


node_sets = st.sets(st.integers(0, 3), min_size=1).map(NodeSet)
hint_lists = st.lists(st.builds(TopologyHint, node_sets, st.booleans()), min_size=1, max_size=8)
any_offers = st.dictionaries(st.sampled_from(["cpu", "memory", "nic", "gpu", "fpga"]), hint_lists, min_size=1)


@given(any_offers, st.sampled_from(list(Policy)))
def test_everybody_gets_a_hint_that_it_offered(given_offers: Offer, policy: Policy) -> None:
    """Nobody is ever put on a node set that it did not offer, and all of them lie within the merged set."""
    try:
        found = merge(given_offers, policy, ALL)
    except DoesNotFit:
        assert policy in STRICT
        return
    assert set(found.chosen) == set(given_offers)
    for name, chosen in found.chosen.items():
        assert chosen in given_offers[name]
        assert chosen.nodes <= found.nodes or chosen.nodes == ALL


@given(any_offers)
def test_strict_policies_keep_their_word(given_offers: Offer) -> None:
    """restricted: one set that all prefer. single-numa-node: one node. numeric: sets that are nested."""
    for policy in STRICT:
        try:
            found = merge(given_offers, policy, ALL)
        except DoesNotFit:
            continue
        choosy = [
            chosen
            for name, chosen in found.chosen.items()
            if not (given_offers[name][0].preferred and given_offers[name][0].nodes == ALL)
        ]
        if policy is Policy.RESTRICTED:
            assert all(chosen.preferred and chosen.nodes == found.nodes for chosen in choosy)
        elif policy is Policy.SINGLE_NUMA_NODE:
            assert all(len(chosen.nodes) == 1 for chosen in choosy)
        else:
            assert all(one.nodes <= two.nodes or two.nodes <= one.nodes for one in choosy for two in choosy)


@given(any_offers, st.sampled_from(list(Policy)), st.randoms())
def test_the_order_of_resources_does_not_matter(given_offers: Offer, policy: Policy, random: object) -> None:
    """The same offers in any order merge to the same result, or are refused alike."""
    names = list(given_offers)
    random.shuffle(names)  # type: ignore[attr-defined]

    def outcome(order: list[str]) -> object:
        try:
            return merge({name: given_offers[name] for name in order}, policy, ALL)
        except DoesNotFit as error:
            return str(error)

    assert outcome(names) == outcome(list(given_offers))


@given(any_offers)
def test_best_effort_never_refuses(given_offers: Offer) -> None:
    """Whatever is offered, there is a place; and a preferred common one is never passed over."""
    found = merge(given_offers, Policy.BEST_EFFORT, ALL)
    try:
        restricted = merge(given_offers, Policy.RESTRICTED, ALL)
    except DoesNotFit:
        return
    assert found.preferred
    assert found.nodes == restricted.nodes
