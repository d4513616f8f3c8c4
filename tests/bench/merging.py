"""How long it takes to merge the hints of six resources, under each policy."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import combinations

from qrm.allocation.hints import Policy, merge
from qrm.allocator import DoesNotFit, TopologyHint
from qrm.cpuset import NodeSet
from tests.bench.report import Cell, Table, millis, p50, p99

_NODES = (2, 4, 8)
_RESOURCES = ("cpu", "memory", "nic", "disk", "example.com/gpu", "example.com/fpga")
_SEEDS = 12
"""Different sets of hints of each shape."""
_SECONDS, _MOST = 1.0, 240
"""A line takes about as long, and has no more samples than that; each set of hints is merged once at least."""

Hints = dict[str, list[TopologyHint]]


def merging() -> Table:
    """The table."""
    table = Table(
        f"Merging the hints of {len(_RESOURCES)} resources in ms of CPU time",
        "full: every resource offers every set of nodes, and prefers single ones. odd: each offers half of the sets by "
        f"chance, and prefers the smallest of these. {_SEEDS} sets of hints for each shape, in turns; refusals count. "
        "refused is the part of these that the policy finds no place for.",
    )
    for nodes in _NODES:
        for shape, made in _SHAPES.items():
            hints = [made(random.Random(seed), nodes) for seed in range(_SEEDS)]  # noqa: S311 - no secret
            for policy in Policy:
                table.lines.append(_line(nodes, shape, policy, hints))
    return table


def _full(dice: random.Random, nodes: int) -> Hints:
    """All sets, small ones first, and each resource's order among those of one size its own."""
    return {name: _ranked(dice, list(_sets(nodes))) for name in _RESOURCES}


def _odd(dice: random.Random, nodes: int) -> Hints:
    """Half of all sets, another half for each resource."""
    every = list(_sets(nodes))
    return {name: _ranked(dice, dice.sample(every, (len(every) + 1) // 2)) for name in _RESOURCES}


_SHAPES: dict[str, Callable[[random.Random, int], Hints]] = {"full": _full, "odd": _odd}


def _sets(nodes: int) -> Iterator[NodeSet]:
    for size in range(1, nodes + 1):
        yield from map(NodeSet, combinations(range(nodes), size))


def _ranked(dice: random.Random, sets: list[NodeSet]) -> list[TopologyHint]:
    smallest = min(map(len, sets))
    ranked = sorted(sets, key=lambda each: (len(each), dice.random()))
    return [TopologyHint(each, preferred=len(each) == smallest) for each in ranked]


def _line(nodes: int, shape: str, policy: Policy, hints: list[Hints]) -> dict[str, Cell]:
    every, samples, refused = NodeSet(range(nodes)), list[float](), 0
    ending = time.monotonic() + _SECONDS
    while len(samples) < _SEEDS or (time.monotonic() < ending and len(samples) < _MOST):
        offered = hints[len(samples) % _SEEDS]
        begun = time.thread_time()
        try:
            merge(offered, policy, every)
        except DoesNotFit:
            refused += 1
        samples.append(time.thread_time() - begun)
    return {
        "nodes": nodes,
        "hints": shape,
        "policy": policy,
        "samples": len(samples),
        "refused %": round(100 * refused / len(samples)),
        "p50": millis(p50(samples)),
        "p99": millis(p99(samples)),
        "max": millis(max(samples)),
    }
