"""The CPU allocator's own rules, as checks of a state; what every allocator must keep is in `qrm.allocator.testing`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from qrm.allocator import ContainerKey, Holding, QosLevel, State
from qrm.cpuset import CPUSet, NodeSet
from qrm.topology.machine import Machine

DEDICATED = "dedicated"


def broken_rules(state: State, reserve: CPUSet, *, hotplug: bool = False) -> Iterator[str]:
    """What is wrong with `state`.

    With `hotplug` the reserve may have moved onto CPUs that are held, and the last CPU of a pool or pod may have gone.
    """
    pooled = pooled_cpus(state, reserve)
    for key, held in state.holdings.items():
        if held.adopted:
            continue
        if not (hotplug and held.allocation.pool == DEDICATED):
            yield from _outside(state.machine, reserve, key, held) if pooled else ()
            yield from _bound_outside(state, pooled, key, held)
        if held.allocation.exclusive and not key.container:
            yield from _exclusive_intruders(state, key, held)
    yield from _scattered_pools(state.holdings)
    yield from _overlapping_pools(state, pooled)


def broken_promises(state: State, reserve: CPUSet) -> Iterator[str]:
    """What pods were promised and do not have; hotplug breaks promises, nothing else does."""
    bound = _bound_pools(state)
    floating = len(pooled_cpus(state, reserve) - CPUSet.union(bound.values()))
    asked = sum(
        held.request.cpu_millis
        for key, held in state.holdings.items()
        if key.container
        and held.request.qos.level is QosLevel.SHARED
        and held.allocation.pool not in (*bound, DEDICATED)
    )
    if asked > floating * 1000:
        yield f"floating shared containers were promised {asked} millicores and have {floating} CPUs"
    for key, held in state.holdings.items():
        promised = held.request.cpu_millis if key.container else held.request.pod_cpu_millis
        if held.allocation.pool in bound and len(held.allocation.cpus) * 1000 < promised:
            yield f"{key} was promised {promised} millicores and has {held.allocation.cpus}"
        if held.request.qos.level is QosLevel.DEDICATED:
            yield from _not_as_asked(state.machine, key, held)


def _not_as_asked(machine: Machine, key: ContainerKey, held: Holding) -> Iterator[str]:
    """Dedicated CPUs that are too few, or not in the form that was asked for."""
    millis, cpu, own = held.request.cpu_millis, held.request.qos.cpu, held.allocation.exclusive
    if key.container and millis % 1000 == 0 and len(own) * 1000 < millis:
        yield f"{key} asked for {millis} millicores and has {own}"
    if cpu.full_pcpus_pairing and any(0 < len(core & own) < len(core) for core in machine.cores.values()):
        yield f"{key} has parts of cores: {own}"
    if cpu.distribute_evenly_across_numa and not key.container:
        numbers = {len(machine.nodes[node].cpus & own) for node in held.allocation.nodes}
        if len(numbers) > 1:
            yield f"{key} does not have the same number of CPUs on each NUMA node: {own}"


def pooled_cpus(state: State, reserve: CPUSet) -> CPUSet:
    """What is neither isolated, reserved nor held exclusively."""
    exclusive = CPUSet.union(held.allocation.exclusive for held in state.holdings.values())
    return state.machine.online - state.machine.isolated - reserve - exclusive


def _bound_pools(state: State) -> Mapping[str, CPUSet]:
    """The pools that are bound to a NUMA node."""
    pools = {held.allocation.pool: held.allocation.cpus for held in state.holdings.values() if not held.adopted}
    return {pool: cpus for pool, cpus in pools.items() if "-NUMA" in pool}


def _overlapping_pools(state: State, pooled: CPUSet) -> Iterator[str]:
    """Pools that share CPUs although there is one for each."""
    ours = {
        held.allocation.pool: held.allocation.cpus
        for held in state.holdings.values()
        if not held.adopted and held.allocation.pool not in (DEDICATED, "reclaim", "system")
    }
    bound = _bound_pools(state)
    tight = {
        number
        for number, node in state.machine.nodes.items()
        if sum(pool.endswith(f"-NUMA{number}") for pool in bound) > len(node.cpus & pooled)
    }
    floating = pooled - CPUSet.union(bound.values())
    if tight or len(floating) <= len(ours.keys() - bound.keys() - {"share"}):
        return
    for one, other in combinations(sorted(ours), 2):
        if not ours[one].isdisjoint(ours[other]):
            yield f"pools {one} ({ours[one]}) and {other} ({ours[other]}) overlap"


def _outside(machine: Machine, reserve: CPUSet, key: ContainerKey, held: Holding) -> Iterator[str]:
    """Containers on isolated or reserved CPUs."""
    allocation = held.allocation
    if not (allocation.cpus - allocation.exclusive).isdisjoint(machine.isolated):
        yield f"{key} runs on isolated CPUs"
    if allocation.pool != "system" and not allocation.cpus.isdisjoint(reserve):
        yield f"{key} of pool {allocation.pool} runs on reserved CPUs {allocation.cpus & reserve}"


def _bound_outside(state: State, pooled: CPUSet, key: ContainerKey, held: Holding) -> Iterator[str]:
    """NUMA-bound containers that are on too many nodes, or on the wrong ones."""
    qos, nodes = held.request.qos, held.allocation.nodes
    if not qos.memory.numa_binding or qos.level is QosLevel.SYSTEM:
        return
    if qos.level is QosLevel.DEDICATED:
        number = len(state.machine.cpu_nodes) if qos.memory.numa_exclusive else 1
        if qos.numa_ids is not None and not nodes <= qos.numa_ids:
            yield f"{key} asked for NUMA nodes {qos.numa_ids} and is on {nodes}"
        if qos.numa_ids is None and len(nodes) > (qos.numa_number or number):
            yield f"{key} is bound to {qos.numa_number or number} NUMA nodes and is on {nodes}"
    elif "-NUMA" in held.allocation.pool:
        node = int(held.allocation.pool.rpartition("-NUMA")[2])
        if nodes != NodeSet([node]) and not pooled.isdisjoint(state.machine.nodes[node].cpus):
            yield f"{key} of pool {held.allocation.pool} is on NUMA nodes {nodes}"
    elif held.allocation.pool == "reclaim" and len(nodes) > 1:
        yield f"{key} is a bound reclaimed container on NUMA nodes {nodes}"


def _exclusive_intruders(state: State, key: ContainerKey, line: Holding) -> Iterator[str]:
    """Others on the NUMA nodes that a pod has for itself, except system containers on their reserved CPUs."""
    if not line.request.qos.memory.numa_exclusive:
        return
    for other, held in state.holdings.items():
        allocation = held.allocation
        alien = other.pod_uid != key.pod_uid and not held.adopted and allocation.pool != "system"
        if alien and not allocation.nodes.isdisjoint(line.allocation.nodes):
            yield f"{other} is on a NUMA node that {key} has for itself"


def _scattered_pools(holdings: Mapping[ContainerKey, Holding]) -> Iterator[str]:
    """Pools whose members do not all run on the same CPUs."""
    found: dict[str, CPUSet] = {}
    for key, held in holdings.items():
        pool, cpus = held.allocation.pool, held.allocation.cpus
        if pool == DEDICATED or held.adopted or (pool == "reclaim" and held.request.qos.memory.numa_binding):
            continue
        if found.setdefault(pool, cpus) != cpus:
            yield f"pool {pool} is {found[pool]} for some and {cpus} for {key}"
