"""Machines with memory, short requests, and a node on which each answer is checked against the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations
from typing import TypeVar

from qrm_memory import create

from qrm.allocator import (
    MEMORY,
    Allocation,
    Changes,
    ContainerKey,
    DoesNotFit,
    Holding,
    MemoryEnhancement,
    NativeQos,
    PodIdentity,
    Qos,
    QosLevel,
    ResourceRequest,
    State,
)
from qrm.cpuset import NodeSet
from qrm.errors import QrmError
from qrm.topology.generate import GIB, Layout
from qrm.topology.machine import Machine
from tests.topology.machines import machine_of

Answer = TypeVar("Answer")

MIB = 1 << 20
DEDICATED = QosLevel.DEDICATED
SHARED = QosLevel.SHARED
RECLAIMED = QosLevel.RECLAIMED
SYSTEM = QosLevel.SYSTEM


def machine(sockets: int = 2, nodes_per_socket: int = 1, memory_only: int = 0, **more: object) -> Machine:
    """NUMA nodes of 8Gi with four CPUs each, and memory-only ones of 8Gi behind them."""
    layout = Layout(
        sockets=sockets,
        nodes_per_socket=nodes_per_socket,
        l3_per_socket=nodes_per_socket,
        cores_per_socket=4 * nodes_per_socket,
        memory_only_nodes=memory_only,
    )
    return machine_of(replace(layout, **more))  # type: ignore[arg-type]


def ask(
    pod: str,
    gib: float | None = 0,
    level: QosLevel = SHARED,
    *,
    container: str = "main",
    binding: bool = False,
    exclusive: bool = False,
    native: NativeQos = NativeQos.BURSTABLE,
    ids: str | None = None,
    number: int | None = None,
    remote: bool = False,
    cpus: int = 0,
    limit: float = 0,
    pages: Mapping[str, float] | None = None,
) -> ResourceRequest:
    """A container's ask in GiB; None asks for no memory, `pages` is by size: {"1Gi": 2}."""
    quantities = {f"hugepages-{size}": int(number * GIB) for size, number in (pages or {}).items()}
    if gib is not None:
        quantities[MEMORY] = int(gib * GIB)
    qos = Qos(
        level=level,
        memory=MemoryEnhancement(numa_binding=binding or exclusive, numa_exclusive=exclusive),
        numa_ids=None if ids is None else NodeSet.parse(ids),
        numa_number=number,
        memory_only_nodes=remote,
    )
    return ResourceRequest(
        PodIdentity(pod, "test", pod),
        container,
        qos=qos,
        native_qos=native,
        cpu_millis=1000 * cpus,
        memory_limit=int(limit * GIB),
        quantities=quantities,
    )


class Node:
    """A node with the memory allocator: pods come, change and go; a step returns what the container holds then."""

    def __init__(self, where: Machine, **settings: object) -> None:
        self.machine = where
        self.allocator = create(settings)
        self.holdings: dict[ContainerKey, Holding] = {}

    @property
    def state(self) -> State:
        """What the allocator sees."""
        return State(self.machine, dict(self.holdings))

    def hints(self, asked: ResourceRequest) -> list[tuple[str, bool]]:
        """The hints, short; each must be servable on its nodes, to which only memory-only ones are added."""
        hints = self.twice(lambda state: self.allocator.hints(asked, state))
        assert len({hint.nodes for hint in hints}) == len(hints) > 0
        remote = NodeSet(self.machine.nodes) - self.machine.cpu_nodes
        for hint in hints:
            served = self.twice(lambda state, hint=hint: self.allocator.allocate(asked, hint, state))  # type: ignore[misc]
            nodes = served.allocations[asked.key].nodes
            assert nodes <= hint.nodes | (remote if asked.qos.memory_only_nodes else NodeSet())
            assert nodes & hint.nodes
        return [(str(hint.nodes), hint.preferred) for hint in hints]

    def create(self, asked: ResourceRequest, on: str | None = None, choice: int = 0) -> Allocation:
        """Creates, restarts or resizes a container, on the NUMA nodes `on` or else on the hint number `choice`."""
        offered = self.hints(asked)
        hint = self.allocator.hints(asked, self.state)[choice % len(offered)]
        hint = hint if on is None else replace(hint, nodes=NodeSet.parse(on))
        changes = self.twice(lambda state: self.allocator.allocate(asked, hint, state)).allocations
        for key, allocation in changes.items():
            if key in (asked.key, asked.pod_key):
                self.holdings[key] = Holding(asked, allocation)
            else:
                self.holdings[key] = replace(self.holdings[key], allocation=allocation)
        assert self.settle() == Changes({}), "not settled after an allocation"
        return self.holdings[asked.key].allocation

    def refusal(self, asked: ResourceRequest) -> str:
        """Why it does not fit."""
        try:
            self.hints(asked)
        except DoesNotFit as refused:
            return str(refused)
        raise AssertionError("it fits")

    def exit(self, pod: str, container: str = "main") -> None:
        """Lets the container exit."""
        key = ContainerKey(pod, container)
        self.holdings[key] = replace(self.holdings[key], running=False)
        self.settle()

    def remove(self, pod: str) -> None:
        """Takes the pod and all of its containers away."""
        self.holdings = {key: held for key, held in self.holdings.items() if key.pod_uid != pod}
        self.settle()

    def adopt(self, asked: ResourceRequest, nodes: str) -> None:
        """Adds a container that ran before there was an allocator."""
        self.holdings[asked.key] = Holding(asked, Allocation("", nodes=NodeSet.parse(nodes)), adopted=True)

    def settle(self) -> Changes:
        """Applies what is due; asked again, nothing is left."""
        changes = self.twice(self.allocator.settle)
        for key, allocation in changes.allocations.items():
            self.holdings[key] = replace(self.holdings[key], allocation=allocation)
        assert self.twice(self.allocator.settle) == Changes({}), "not settled after settling"
        assert list(problems(self)) == []
        return changes

    def nodes(self, pod: str, container: str = "main") -> str:
        """Where the container's memory may be; an empty name is the pod as a whole."""
        return str(self.holdings[ContainerKey(pod, container)].allocation.nodes)

    def amounts(self, pod: str, container: str = "main", resource: str = MEMORY) -> dict[int, float]:
        """What it counts for, in GiB by node."""
        parts = self.holdings[ContainerKey(pod, container)].allocation.amounts.get(resource, {})
        return {node: part / GIB for node, part in parts.items()}

    def free(self) -> dict[int, float]:
        """What is free, in GiB by node."""
        return {node: amount / GIB for node, amount in self.twice(self.allocator.allocatable).free.items()}

    def twice(self, question: Callable[[State], Answer]) -> Answer:
        """The answer, which must not depend on what was asked before nor on the order of the holdings."""
        turned = State(self.machine, dict(reversed(self.holdings.items())))
        told: list[Answer | str] = []
        for state in (self.state, turned):
            try:
                told.append(question(state))
            except QrmError as refused:
                told.append(str(refused))
        assert told[0] == told[1], "the same state was answered differently"
        return question(self.state)


def capacity(node: Node, resource: str) -> dict[int, int]:
    """The bytes that containers can be promised, worked out without the allocator's help."""
    sizes = {"hugepages-1Gi": GIB, "hugepages-2Mi": 2 * MIB}
    nodes = node.machine.nodes.values()
    if resource != MEMORY:
        return {each.id: sizes[resource] * each.hugepages.get(sizes[resource], 0) for each in nodes}
    if not any(each.memory for each in nodes):
        return {each.id: 1 << 62 for each in nodes}
    reserved = node.allocator.settings
    paged = {each.id: sum(size * number for size, number in each.hugepages.items()) for each in nodes}
    return {each.id: max(each.memory - paged[each.id] - reserved.reserved_on(each.id), 0) for each in nodes}


def problems(node: Node) -> Iterator[str]:
    """What is wrong with what is held, whoever came in which order."""
    with_memory = NodeSet(each.id for each in node.machine.nodes.values() if each.memory) or NodeSet(node.machine.nodes)
    near = with_memory & node.machine.cpu_nodes or with_memory
    for key, held in node.holdings.items():
        nodes = held.allocation.nodes
        if not nodes or not nodes <= with_memory:
            yield f"{key} is on {nodes}"
        if not held.request.qos.memory_only_nodes and not held.adopted and not nodes <= near:
            yield f"{key} did not ask for memory-only nodes and is on {nodes}"
        if not held.adopted and not nodes & near:
            yield f"{key} is on memory-only nodes alone: {nodes}"
        line = node.holdings.get(ContainerKey(key.pod_uid, ""))
        if is_bound(held) and line and line.allocation.nodes != nodes and not held.adopted:
            yield f"{key} is on {nodes}, its pod on {line.allocation.nodes}"
    if not any(held.adopted for held in node.holdings.values()):
        yield from _intrusions(node)
        yield from _crowds(node)


def is_bound(held: Holding) -> bool:
    """Whether it is to stay where it is."""
    qos = held.request.qos
    return qos.level is DEDICATED or (qos.level is SHARED and qos.memory.numa_binding)


def _intrusions(node: Node) -> Iterator[str]:
    for key, held in node.holdings.items():
        if held.request.qos.memory.numa_exclusive:
            for other, beside in node.holdings.items():
                if other.pod_uid != key.pod_uid and not beside.allocation.nodes.isdisjoint(held.allocation.nodes):
                    yield f"{other} is on nodes of {key}"


def _crowds(node: Node) -> Iterator[str]:
    """Nodes, and sets of nodes, to which more is bound than there is."""
    lines = [held.allocation for key, held in node.holdings.items() if not key.container]
    for resource in (MEMORY, "hugepages-1Gi", "hugepages-2Mi"):
        there = capacity(node, resource)
        parts = [(each.nodes, each.amounts.get(resource, {})) for each in lines]
        for number, size in there.items():
            if sum(part.get(number, 0) for _, part in parts) > size:
                yield f"too much {resource} is bound to node {number}: {parts}"
        ids = sorted(there)
        for some in chain.from_iterable(combinations(ids, count) for count in range(1, len(ids) + 1)):
            within = sum(sum(part.values()) for nodes, part in parts if nodes <= NodeSet(some))
            if within > sum(there[each] for each in some):
                yield f"too much {resource} is bound to nodes {some}: {parts}"
