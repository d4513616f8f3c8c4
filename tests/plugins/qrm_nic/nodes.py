"""Machines with NICs, short requests, and a node on which each answer is checked against the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from qrm_nic import create

from qrm.allocator import (
    NET_EGRESS,
    NET_INGRESS,
    Allocation,
    Changes,
    ContainerKey,
    DoesNotFit,
    Holding,
    MemoryEnhancement,
    NetworkEnhancement,
    PodIdentity,
    Qos,
    QosLevel,
    ResourceRequest,
    State,
)
from qrm.allocator.testing import machine
from qrm.cpuset import NodeSet
from qrm.errors import QrmError
from qrm.topology.machine import Machine, Nic

Answer = TypeVar("Answer")


def eth(number: int, node: int | None = None, speed: int | None = 1000, *, up: bool = True) -> Nic:
    """The NIC eth<number>."""
    return Nic(f"eth{number}", speed, node, up)


def two_nodes(*nics: Nic) -> Machine:
    """Two sockets of one NUMA node each."""
    return replace(machine(sockets=2), nics=nics)


def ask(
    pod: str,
    egress: int = 0,
    ingress: int | None = None,
    *,
    container: str = "main",
    namespace: str | None = None,
    restricted: bool = False,
    numa_ids: str | None = None,
) -> ResourceRequest:
    """A container's ask; `ingress` None leaves it to the egress."""
    quantities = {NET_EGRESS: egress} if egress else {}
    if ingress is not None:
        quantities[NET_INGRESS] = ingress
    qos = Qos(
        level=QosLevel.DEDICATED if numa_ids else QosLevel.SHARED,
        memory=MemoryEnhancement(numa_binding=numa_ids is not None),
        network=NetworkEnhancement(namespace, restricted),
        numa_ids=None if numa_ids is None else NodeSet.parse(numa_ids),
    )
    return ResourceRequest(PodIdentity(pod, "test", pod), container, qos=qos, quantities=quantities)


def mbit(allocation: Allocation) -> tuple[int, int]:
    """What an allocation counts for, egress and ingress."""
    egress, ingress = (sum(allocation.amounts.get(name, {}).values()) for name in (NET_EGRESS, NET_INGRESS))
    return egress, ingress


@dataclass
class Node:
    """A node with the NIC allocator: pods come, change and go; what a step returns is what the container holds."""

    machine: Machine
    settings: Mapping[str, object] = field(default_factory=dict)
    holdings: dict[ContainerKey, Holding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.allocator = create(self.settings)

    @property
    def state(self) -> State:
        """What the allocator sees."""
        return State(self.machine, dict(self.holdings))

    def hints(self, asked: ResourceRequest) -> list[tuple[str, bool]]:
        """The hints, short; each must be servable on its nodes, or anywhere if it is not preferred."""
        hints = self.twice(lambda state: self.allocator.hints(asked, state))
        assert len({hint.nodes for hint in hints}) == len(hints) > 0
        for hint in hints:
            served = self.twice(lambda state, hint=hint: self.allocator.allocate(asked, hint, state))  # type: ignore[misc]
            for allocation in served.allocations.values():
                assert allocation.nodes <= hint.nodes
        return [(str(hint.nodes), hint.preferred) for hint in hints]

    def create(self, asked: ResourceRequest, on: str | None = None) -> Allocation:
        """Creates, restarts or resizes a container, on the NUMA nodes `on` or else on its best hint."""
        self.hints(asked)
        hint = self.allocator.hints(asked, self.state)[0]
        hint = hint if on is None else replace(hint, nodes=NodeSet.parse(on))
        changes = self.twice(lambda state: self.allocator.allocate(asked, hint, state)).allocations
        assert changes.keys() in (set(), {asked.key, asked.pod_key})
        for key, allocation in changes.items():
            self.holdings[key] = Holding(asked, allocation)
        self.settle()
        return changes.get(asked.key, Allocation(""))

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

    def remove(self, pod: str, container: str | None = None) -> None:
        """Takes the container away, or the pod with all of them."""
        gone = [key for key in self.holdings if key.pod_uid == pod and container in (None, key.container)]
        for key in gone:
            del self.holdings[key]
        self.settle()

    def settle(self) -> Changes:
        """Applies what is due; asked again, nothing is left."""
        changes = self.twice(self.allocator.settle)
        for key, allocation in changes.allocations.items():
            assert allocation.device == self.holdings[key].allocation.device
            self.holdings[key] = replace(self.holdings[key], allocation=allocation)
        assert self.twice(self.allocator.settle) == Changes({})
        return changes

    def of_pod(self, pod: str) -> tuple[int, int]:
        """What the pod as a whole holds."""
        return mbit(self.holdings[ContainerKey(pod, "")].allocation)

    def free(self) -> Mapping[int, int]:
        """What is free by NUMA node."""
        return self.twice(self.allocator.allocatable).free

    def twice(self, question: Callable[[State], Answer]) -> Answer:
        """The answer, which must not depend on what was asked before nor on the order of the holdings."""
        turned = State(self.machine, dict(reversed(self.holdings.items())))
        told: list[Answer | str] = []
        for allocator_state in (self.state, turned):
            try:
                told.append(question(allocator_state))
            except QrmError as refused:
                told.append(str(refused))
        assert told[0] == told[1]
        return question(self.state)
