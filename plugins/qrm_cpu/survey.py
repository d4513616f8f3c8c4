"""What is held: one pass over the state, sorted by pool and by dedicated pod, and what each pool has promised."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from qrm.allocator import ContainerKey, Holding, QosLevel, ResourceRequest
from qrm.units import whole_cpus

DEDICATED = "dedicated"
RECLAIM = "reclaim"
RESERVE = "reserve"
SHARE = "share"
SYSTEM = "system"

Members = Sequence[tuple[ContainerKey, Holding]]

_BOUND = re.compile(r".+-NUMA(\d+)", re.ASCII)


@lru_cache(maxsize=4096)
def node_of_pool(pool: str) -> int | None:
    """The NUMA node of a NUMA-bound pool, which is in its name; None for every other pool."""
    match = _BOUND.fullmatch(pool)
    return int(match[1]) if match else None


def pool_of_node(pool: str, node: int) -> str:
    """The name of the part of `pool` that is bound to a NUMA node."""
    return f"{pool}-NUMA{node}"


@dataclass(frozen=True, slots=True)
class Demand:
    """What the members of one pool were promised."""

    pool: str
    millis: int
    """The sum of their requests, exited containers included: they are reserved until their pod is gone."""
    sticky: int
    """The CPUs that the pool has now."""
    node: int | None = None
    """The NUMA node to which the pool is bound."""
    pods: frozenset[str] = frozenset()
    """The pods in a bound pool."""
    alone: bool = False
    """A pod in a bound pool asked for numa_share: "false"."""

    def size(self, threads: int) -> int:
        """The CPUs that the pool needs: enough for its promises, and one core of `threads` at least."""
        return max(whole_cpus(self.millis), threads)


@dataclass(frozen=True, slots=True)
class Survey:
    """All holdings in order."""

    pools: Mapping[str, Members]
    """By pool, what has no CPUs of its own."""
    pods: Mapping[str, Members]
    """By pod uid, the holdings of dedicated pods, those for the pod as a whole among them."""
    stranded: frozenset[str]
    """Those of these pods that have no CPUs, because all of them went offline."""
    exclusive: int
    """Every CPU that is held exclusively."""


def survey(holdings: Mapping[ContainerKey, Holding]) -> Survey:
    """Sorts `holdings`. This is the only loop over all of them before it is known what changes."""
    pools: dict[str, list[tuple[ContainerKey, Holding]]] = {}
    pods: dict[str, list[tuple[ContainerKey, Holding]]] = {}
    owners: set[str] = set()
    exclusive = 0
    for item in holdings.items():
        allocation = item[1].allocation
        own = allocation.exclusive.mask
        pool = allocation.pool
        if own or pool == DEDICATED:
            uid = item[0].pod_uid
            pods.setdefault(uid, []).append(item)
            if own:
                exclusive |= own
                owners.add(uid)
            continue
        if item[1].adopted and node_of_pool(pool) is None:
            pool = _nominal_pool(item[1].request)
        members = pools.get(pool)
        if members is None:
            members = pools[pool] = []
        members.append(item)
    return Survey(pools, pods, frozenset(pods.keys() - owners), exclusive)


def _nominal_pool(request: ResourceRequest) -> str:
    """The pool that an adopted container moves to if it has to; until then it is in none."""
    if request.qos.level is QosLevel.RECLAIMED:
        return RECLAIM
    return SYSTEM if request.qos.level is QosLevel.SYSTEM else SHARE


def demands(found: Survey) -> tuple[Demand, Mapping[str, Demand]]:
    """What `share` has promised, and what every pool with CPUs of its own has, by name and in the order of names."""
    carved = {}
    for pool in sorted(found.pools):
        if pool in (SHARE, RECLAIM, SYSTEM):
            continue
        node = node_of_pool(pool)
        members = found.pools[pool]
        carved[pool] = _floating(pool, members) if node is None else _bound(pool, node, members)
    return _floating(SHARE, found.pools.get(SHARE, ())), carved


def _floating(pool: str, members: Members) -> Demand:
    # The line of a pod as a whole repeats the request of one of its containers.
    millis = sum([holding.request.cpu_millis for key, holding in members if key.container])
    return Demand(pool, millis, _sticky(members))


def _bound(pool: str, node: int, members: Members) -> Demand:
    """A pod in a bound pool is promised its total or what its containers ask for, whichever is more."""
    totals: dict[str, int] = {}
    sums: dict[str, int] = {}
    for key, holding in members:
        if key.container:
            sums[key.pod_uid] = sums.get(key.pod_uid, 0) + holding.request.cpu_millis
        else:
            totals[key.pod_uid] = holding.request.pod_cpu_millis
    pods = totals.keys() | sums.keys()
    millis = sum(max(totals.get(uid, 0), sums.get(uid, 0)) for uid in pods)
    alone = any(not holding.request.qos.cpu.numa_share for _, holding in members)
    return Demand(pool, millis, _sticky(members), node, frozenset(pods), alone)


def _sticky(members: Members) -> int:
    """Adopted containers run where they ran before, which says nothing about their pool."""
    sticky, last = 0, None
    for _, holding in members:
        cpus = holding.allocation.cpus
        # Members mostly share one object.
        if cpus is not last and not holding.adopted:
            last = cpus
            sticky |= cpus.mask
    return sticky
