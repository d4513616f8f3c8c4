"""Merging the NUMA node sets that allocators offer into one that suits all of them.

kubelet's Topology Manager intersects hints, so its result can be a set that no allocator has offered. Here the result
is a set of nodes together with, for each resource, a hint that this resource has offered and that lies within the set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from qrm.allocator import DoesNotFit, TopologyHint
from qrm.cpuset import NodeSet

Hints = Mapping[str, Sequence[TopologyHint]]
"""By resource, best first."""

_MANY = 256
"""Offered sets from which on unions of two are left out: more than 8 NUMA nodes with hints of all shapes."""
_TRIED = 32
"""How many hints of each resource that is not aligned the numeric policy looks at, the best ones."""


class Policy(StrEnum):
    """How close to each other the resources of a container have to be.

    The names are those of kubelet's Topology Manager, and `numeric` Katalyst's.
    """

    NONE = "none"
    """Not at all: each resource goes where it is best."""
    BEST_EFFORT = "best-effort"
    """As far as possible."""
    RESTRICTED = "restricted"
    """On one preferred set of nodes, or not."""
    SINGLE_NUMA_NODE = "single-numa-node"
    """On one node, or not."""
    NUMERIC = "numeric"
    """Aligned resources on one set of nodes, each of the others on a part or on more of it, or not."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Where a container's resources go."""

    nodes: NodeSet
    """All nodes that are used, as far as any resource has a preference."""
    preferred: bool
    """Every resource gets a preferred hint, and all the same."""
    chosen: Mapping[str, TopologyHint]
    """The hint that each resource is to be allocated with, one of those that it offered."""


def merge(hints: Hints, policy: Policy, all_nodes: NodeSet, aligned: Iterable[str] = ("cpu", "memory")) -> Merged:
    """The best common place; the order of the resources does not matter.

    A resource that offers nothing, or whose first hint is preferred and covers `all_nodes`, has no preference and
    restricts nobody.

    Raises:
        DoesNotFit: the policy finds no place; the message names each resource and the nodes that it offered.
    """
    anywhere = TopologyHint(all_nodes, preferred=True)
    indifferent = {
        name: offered[0] if offered else anywhere
        for name, offered in hints.items()
        if not offered or _is_indifferent(offered, all_nodes)
    }
    choosy = {name: hints[name] for name in sorted(hints) if name not in indifferent}
    if not choosy:
        return Merged(all_nodes, True, indifferent)
    chosen = _choose(choosy, policy, frozenset(aligned))
    if chosen is None:
        raise DoesNotFit(_refusal(choosy, policy), hint="topology.policy decides how close resources must be")
    nodes = NodeSet.union(hint.nodes for hint in chosen.values())
    return Merged(nodes, all(hint.preferred and hint.nodes == nodes for hint in chosen.values()), indifferent | chosen)


def _is_indifferent(offered: Sequence[TopologyHint], all_nodes: NodeSet) -> bool:
    return offered[0].preferred and all_nodes <= offered[0].nodes


def _choose(hints: Hints, policy: Policy, aligned: frozenset[str]) -> dict[str, TopologyHint] | None:
    if policy is Policy.NONE:
        return {name: offered[0] for name, offered in hints.items()}
    if policy is Policy.NUMERIC:
        return _numeric(hints, aligned)
    if policy is Policy.BEST_EFFORT:
        return _best_effort(hints, aligned)
    best: tuple[tuple[int, ...], dict[str, TopologyHint]] | None = None
    for nodes in _candidates(hints, unions=False):
        chosen = _within(hints, nodes, whole=True)
        if chosen is not None and _is_exact(chosen, nodes, policy):
            cost = (len(nodes), _rank(hints, chosen), nodes.mask)
            if best is None or cost < best[0]:
                best = cost, chosen
    return best[1] if best else None


def _best_effort(hints: Hints, aligned: frozenset[str]) -> dict[str, TopologyHint] | None:
    """The closest that they come: all on one set, else the aligned ones on one, else each by itself."""
    together = {name: offered for name, offered in hints.items() if name in aligned}
    shared = _shared(together) if len(together) > 1 else []
    best: tuple[tuple[int, ...], dict[str, TopologyHint]] | None = None
    for nodes in _candidates(hints, unions=True):
        if best is not None and not best[0][0] and len(nodes) > best[0][3]:
            break  # all is as wanted, on fewer nodes than are to come
        alone = _within(hints, nodes, whole=False)
        if alone is None:
            continue
        base = next((each for each in shared if next(iter(each.values())).nodes <= nodes), {})
        for chosen in (_within(hints, nodes, whole=True), alone | base, alone):
            if chosen is not None:
                cost = (*_cost(chosen, nodes, aligned), _rank(hints, chosen), nodes.mask)
                if best is None or cost < best[0]:
                    best = cost, chosen
    return best[1] if best else None


def _candidates(hints: Hints, *, unions: bool) -> list[NodeSet]:
    """Sets worth looking at: those offered, and with `unions` two of them together, and all."""
    offered = {hint.nodes.mask for each in hints.values() for hint in each}
    masks = set(offered)
    if unions:
        if len(offered) <= _MANY:
            masks |= {first | second for first, second in combinations(sorted(offered), 2)}
        masks.add(NodeSet.union(hint.nodes for each in hints.values() for hint in each).mask)
    return [NodeSet.from_mask(mask) for mask in sorted(masks, key=lambda mask: (mask.bit_count(), mask))]


def _within(hints: Hints, nodes: NodeSet, *, whole: bool) -> dict[str, TopologyHint] | None:
    """Each resource's best hint inside `nodes`: a preferred one (with `whole` rather all of `nodes`), and few nodes."""
    chosen = {}
    for name, offered in hints.items():
        best: tuple[tuple[bool, bool, int], TopologyHint] | None = None
        for hint in offered:
            if hint.nodes.mask & ~nodes.mask == 0:
                part = hint.nodes.mask != nodes.mask
                rank = (whole and part, not hint.preferred, hint.nodes.mask.bit_count())
                if best is None or rank < best[0]:
                    best = rank, hint
        if best is None:
            return None
        chosen[name] = best[1]
    return chosen


def _is_exact(chosen: Mapping[str, TopologyHint], nodes: NodeSet, policy: Policy) -> bool:
    """Whether all resources use exactly `nodes`: one node, or under `restricted` one set that all prefer."""
    single = policy is Policy.SINGLE_NUMA_NODE
    if single and len(nodes) != 1:
        return False
    return all(hint.nodes == nodes and (hint.preferred or single) for hint in chosen.values())


def _cost(chosen: Mapping[str, TopologyHint], nodes: NodeSet, aligned: frozenset[str]) -> tuple[int, ...]:
    """Less is better, in this order.

    Not all on one set that all prefer; resources that are not where they prefer; aligned ones apart; nodes in all;
    resources that use less than all of these; nodes summed over the resources.
    """
    apart = sum(hint.nodes != nodes for hint in chosen.values())
    unloved = sum(not hint.preferred for hint in chosen.values())
    bases = {hint.nodes for name, hint in chosen.items() if name in aligned}
    used = sum(len(hint.nodes) for hint in chosen.values())
    return (bool(apart or unloved), unloved, len(bases) > 1, len(nodes), apart, used)


def _rank(hints: Hints, chosen: Mapping[str, TopologyHint]) -> int:
    """How far down its own list each resource had to go: an allocator names the place where it loses least first."""
    return sum(hints[name].index(hint) for name, hint in chosen.items())


def _numeric(hints: Hints, aligned: frozenset[str]) -> dict[str, TopologyHint] | None:
    """Katalyst's policy: see `Policy.NUMERIC`; most preferred hints among the others win, then fewest nodes at most."""
    together = {name: offered for name, offered in hints.items() if name in aligned}
    others = {name: offered for name, offered in hints.items() if name not in aligned}
    bases = _common(together) if together else [{}]
    for unloved in range(len(others) + 1):
        best: tuple[tuple[int, ...], dict[str, TopologyHint]] | None = None
        for base in bases:
            chain = [next(iter(base.values())).nodes.mask] if base else []
            for rest in _chains(others, sorted(others), chain, unloved):
                found = base | rest
                sizes = sorted((len(hint.nodes) for hint in found.values()), reverse=True)
                cost = (*sizes, _rank(hints, found), *(found[name].nodes.mask for name in sorted(found)))
                if best is None or cost < best[0]:
                    best = cost, found
        if best is not None:
            return best[1]
    return None


def _common(hints: Hints) -> list[dict[str, TopologyHint]]:
    """The node sets that every one of these resources offers and at least one prefers."""
    return [each for each in _shared(hints) if any(hint.preferred for hint in each.values())]


def _shared(hints: Hints) -> list[dict[str, TopologyHint]]:
    """The node sets that every one of these resources offers, best first."""
    by_nodes = {name: {hint.nodes.mask: hint for hint in reversed(offered)} for name, offered in hints.items()}
    shared = set.intersection(*(set(each) for each in by_nodes.values()))
    found = [{name: each[mask] for name, each in by_nodes.items()} for mask in sorted(shared)]
    return sorted(found, key=lambda each: _merit(hints, each))


def _merit(hints: Hints, chosen: Mapping[str, TopologyHint]) -> tuple[int, ...]:
    unloved = sum(not hint.preferred for hint in chosen.values())
    return (unloved, *(len(hint.nodes) for hint in chosen.values()), _rank(hints, chosen))


def _chains(
    hints: Hints, names: Sequence[str], chain: Sequence[int], unloved: int
) -> Iterable[dict[str, TopologyHint]]:
    """A hint for each of `names`, so that of any two sets, those of `chain` among them, one contains the other.

    At most `unloved` of the hints are not preferred.
    """
    if not names:
        yield {}
        return
    name, *rest = names
    for hint in _worth_trying(hints[name]):
        left = unloved - (not hint.preferred)
        if left >= 0 and all(_nested(hint.nodes.mask, other) for other in chain):
            for others in _chains(hints, rest, [*chain, hint.nodes.mask], left):
                yield {name: hint, **others}


def _worth_trying(offered: Sequence[TopologyHint]) -> Sequence[TopologyHint]:
    """The best of a resource's hints: preferred ones first, then small ones; each node set once."""
    ranked = sorted(offered, key=lambda hint: (not hint.preferred, len(hint.nodes), hint.nodes.mask))
    return list({hint.nodes.mask: hint for hint in reversed(ranked)}.values())[::-1][:_TRIED]


def _nested(one: int, other: int) -> bool:
    return one & other in (one, other)


def _refusal(hints: Hints, policy: Policy) -> str:
    offers = "; ".join(f"{name} fits on {_listed(offered)}" for name, offered in hints.items())
    return f"no NUMA nodes suit all resources under the policy {policy}: {offers}"


def _listed(offered: Sequence[TopologyHint]) -> str:
    """The smallest sets, which is what a person wants to compare."""
    smallest = min(len(hint.nodes) for hint in offered)
    return " or ".join(str(hint.nodes) for hint in offered if len(hint.nodes) == smallest)
