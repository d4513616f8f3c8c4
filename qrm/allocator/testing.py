"""A test kit for authors of allocators: machines of any shape, short requests, and a harness that checks the contract.

Nothing here needs more than qrm itself; how inputs are generated is left to the tests that use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from qrm.allocator.api import Allocation, Allocator, Changes, Holding, Quantities, State, TopologyHint
from qrm.cpuset import CPUSet, NodeSet
from qrm.errors import DoesNotFit, QrmError
from qrm.pods.model import (
    ContainerKey,
    CpuEnhancement,
    MemoryEnhancement,
    PodIdentity,
    Qos,
    QosLevel,
    ResourceRequest,
)
from qrm.topology.machine import CPU, LOCAL_DISTANCE, Machine, NumaNode

Answer = TypeVar("Answer")

CPU_RESOURCE = "cpu"
REMOTE_DISTANCE = 20
"""What most firmware gives for another NUMA node."""
NODE_MEMORY = 8 << 30
"""Bytes of each NUMA node."""


class ContractBroken(AssertionError):
    """An allocator's answer is not what `qrm.allocator` promises; the message says how."""


def machine(
    *,
    sockets: int = 1,
    nodes_per_socket: int = 1,
    l3_per_node: int = 1,
    cores_per_l3: int | Sequence[int] = 4,
    threads: int = 1,
    memory_only: int = 0,
    cpu_stride: int = 1,
    node_stride: int = 1,
    offline: Iterable[int] = (),
    isolated: Iterable[int] = (),
) -> Machine:
    """A machine whose CPUs are numbered as usual: the first threads of all cores, then the second ones.

    Args:
        sockets: How many there are.
        nodes_per_socket: NUMA nodes with CPUs in each socket.
        l3_per_node: L3 domains in each NUMA node.
        cores_per_l3: Cores in each L3 domain; a sequence is gone through again and again, for uneven machines.
        threads: Threads of each core.
        memory_only: NUMA nodes without CPUs, behind the others.
        cpu_stride: The step from one CPU id to the next.
        node_stride: The step from one NUMA node id to the next.
        offline: CPUs that are not online. A NUMA node may lose all of its CPUs.
        isolated: CPUs that the kernel keeps free.
    """
    sizes = [cores_per_l3] if isinstance(cores_per_l3, int) else cores_per_l3
    domains = range(sockets * nodes_per_socket * l3_per_node)
    domain_of = [domain for domain in domains for _ in range(sizes[domain % len(sizes)])]
    present = CPUSet(cpu_stride * number for number in range(len(domain_of) * threads))
    gone = CPUSet(offline) & present
    core_of = {cpu: cpu // cpu_stride % len(domain_of) for cpu in present - gone}
    siblings = _grouped(core_of, lambda core: core)
    in_l3 = _grouped(core_of, lambda core: domain_of[core])
    in_socket = _grouped(core_of, lambda core: domain_of[core] // (nodes_per_socket * l3_per_node))
    cpus = {
        cpu: CPU(
            id=cpu,
            core=_first(siblings[core]),
            siblings=siblings[core],
            socket=domain_of[core] // (nodes_per_socket * l3_per_node),
            die=_first(in_socket[domain_of[core] // (nodes_per_socket * l3_per_node)]),
            l3=_first(in_l3[domain_of[core]]),
            l3_id=domain_of[core],
            node=domain_of[core] // l3_per_node * node_stride,
        )
        for cpu, core in core_of.items()
    }
    ids = [node_stride * number for number in range(sockets * nodes_per_socket + memory_only)]
    in_node = _grouped(core_of, lambda core: domain_of[core] // l3_per_node * node_stride)
    nodes = {
        number: NumaNode(
            id=number,
            cpus=in_node.get(number, CPUSet()),
            memory=NODE_MEMORY,
            hugepages={},
            distances={other: LOCAL_DISTANCE if other == number else REMOTE_DISTANCE for other in ids},
        )
        for number in ids
    }
    return Machine(cpus, nodes, offline=gone, isolated=CPUSet(isolated) & CPUSet(cpus))


def _grouped(core_of: Mapping[int, int], group: Callable[[int], int]) -> dict[int, CPUSet]:
    members: dict[int, list[int]] = {}
    for cpu, core in core_of.items():
        members.setdefault(group(core), []).append(cpu)
    return {name: CPUSet(cpus) for name, cpus in members.items()}


def _first(cpus: CPUSet) -> int:
    return next(iter(cpus))


def request(
    pod: str,
    millis: int = 0,
    level: QosLevel = QosLevel.SHARED,
    *,
    container: str = "main",
    pod_millis: int = 0,
    numa_binding: bool = False,
    numa_exclusive: bool = False,
    numa_ids: str | None = None,
    numa_number: int | None = None,
    by_default: bool = False,
    cpu: CpuEnhancement | None = None,
) -> ResourceRequest:
    """A container's ask; `pod` is its pod's uid and name, `numa_ids` is in kernel format."""
    qos = Qos(
        level=level,
        cpu=cpu or CpuEnhancement(),
        memory=MemoryEnhancement(numa_binding=numa_binding, numa_exclusive=numa_exclusive),
        numa_number=numa_number,
        numa_ids=None if numa_ids is None else NodeSet.parse(numa_ids),
        by_default=by_default,
    )
    identity = PodIdentity(uid=pod, namespace="test", name=pod)
    return ResourceRequest(identity, container, qos=qos, cpu_millis=millis, pod_cpu_millis=pod_millis)


class Harness:
    """A node with one allocator: pods come, change and go, and after each step the contract is checked.

    What a step returns is what the container holds then. A refused step raises what the allocator raised and changes
    nothing.
    """

    def __init__(self, allocator: Allocator, node: Machine) -> None:
        self.allocator = allocator
        self.machine = node
        self.holdings: dict[ContainerKey, Holding] = {}
        self._disturbed = False

    @property
    def state(self) -> State:
        """What the allocator sees."""
        return State(self.machine, dict(self.holdings))

    def create(self, asked: ResourceRequest, *, choice: int = 0) -> Allocation:
        """Creates, restarts or resizes a container on the hint number `choice`, counted around.

        All other hints are tried as well: each must be servable.
        """
        hints = self._twice(lambda state: self.allocator.hints(asked, state))
        if not hints:
            raise ContractBroken(f"no hints and no refusal for {asked}")
        offers = [self._serve(asked, hint) for hint in hints]
        self._apply(offers[choice % len(offers)], asked)
        self._check_contract()
        # Where CPUs have gone or were taken, what one container gives back may be due to another that lost some.
        if not self._disturbed:
            self.check()
        self.settle()
        return self.holdings[asked.key].allocation

    def resize(self, pod: str, millis: int, *, container: str = "main", pod_millis: int = 0) -> Allocation:
        """Tells what the pod as a whole asks for from now on, then creates the container again with its new request."""
        for key, held in self.holdings.items():
            if key.pod_uid == pod:
                told = replace(held.request, pod_cpu_millis=pod_millis)
                self.holdings[key] = replace(held, request=told)
        self.settle()
        return self.create(replace(self.holdings[ContainerKey(pod, container)].request, cpu_millis=millis))

    def restart(self, pod: str, container: str = "main") -> Allocation:
        """Lets the container exit and creates it again."""
        self.exit(pod, container)
        return self.create(self.holdings[ContainerKey(pod, container)].request)

    def exit(self, pod: str, container: str = "main") -> None:
        """Lets the container exit."""
        key = ContainerKey(pod, container)
        self.holdings[key] = replace(self.holdings[key], running=False)
        self.settle()

    def drop(self, pod: str, container: str = "main") -> None:
        """Forgets an exited container of a pod that stays."""
        del self.holdings[ContainerKey(pod, container)]
        self.settle()

    def remove(self, pod: str) -> None:
        """Takes the pod and all of its containers away."""
        self.holdings = {key: held for key, held in self.holdings.items() if key.pod_uid != pod}
        self.settle()

    def replug(self, node: Machine) -> None:
        """Goes on with the machine as it is after CPUs went offline or came online."""
        self.machine = node
        self._disturbed = True
        self.settle()

    def adopt(self, asked: ResourceRequest, allocation: Allocation) -> None:
        """Adds a container that ran before there was an allocator."""
        self.holdings[asked.key] = Holding(asked, allocation, adopted=True)
        self._disturbed = True
        self.settle()

    def settle(self) -> Changes:
        """Applies what is due; asked again, there must be nothing left."""
        changes = self._twice(self.allocator.settle)
        if unknown := changes.allocations.keys() - self.holdings.keys():
            raise ContractBroken(f"settling made allocations for {unknown}, which hold nothing")
        self._apply(changes, None)
        self.check()
        return changes

    def quantities(self) -> Quantities:
        """What the allocator says about how much there is."""
        return self._twice(self.allocator.allocatable)

    def check(self) -> None:
        """Raises ContractBroken where what is held now breaks the contract."""
        self._check_contract()
        again = self.allocator.settle(self.state).allocations
        if again:
            raise ContractBroken(f"not settled after the step: {again}")

    def _check_contract(self) -> None:
        for problem in problems(self.state, self.allocator.resource):
            raise ContractBroken(problem)

    def _serve(self, asked: ResourceRequest, hint: TopologyHint) -> Changes:
        """What is allocated on a hint that was offered."""
        try:
            changes = self._twice(lambda state: self.allocator.allocate(asked, hint, state))
        except DoesNotFit as refused:
            raise ContractBroken(f"hint {hint} was offered and is refused: {refused}") from refused
        allocation = changes.allocations.get(asked.key)
        # Where CPUs have gone or were taken, a container may have to run far from the nodes that it is bound to.
        if allocation is None or not (allocation.nodes <= hint.nodes or self._disturbed):
            raise ContractBroken(f"hint {hint} was answered with {allocation} for {asked.key}")
        return changes

    def _apply(self, changes: Changes, asked: ResourceRequest | None) -> None:
        for key, allocation in changes.allocations.items():
            if asked is not None and key in (asked.key, asked.pod_key):
                self.holdings[key] = Holding(asked, allocation)
            elif key in self.holdings:
                self.holdings[key] = replace(self.holdings[key], allocation=allocation)
            else:
                raise ContractBroken(f"an allocation for {key}, which did not ask")

    def _twice(self, ask: Callable[[State], Answer]) -> Answer:
        """The answer, after making sure that it depends on nothing but the state, and not on the order in it."""
        turned = State(self.machine, dict(reversed(self.holdings.items())))
        try:
            answer: Answer | QrmError = ask(self.state)
        except QrmError as refused:
            answer = refused
        try:
            again: Answer | QrmError = ask(turned)
        except QrmError as refused:
            again = refused
        if str(again) != str(answer) if isinstance(answer, QrmError) else again != answer:
            raise ContractBroken(f"the same state was answered differently: {answer}, {again}")
        if isinstance(answer, QrmError):
            raise answer
        return answer


def problems(state: State, resource: str) -> Iterator[str]:
    """What is wrong with the allocations of `resource` in `state`, whatever its allocator's own rules are."""
    for key, held in state.holdings.items():
        allocation = held.allocation
        if resource == CPU_RESOURCE and key.container and not allocation.cpus:
            yield f"{key} has no CPUs"
        if not allocation.cpus <= state.machine.online:
            yield f"{key} is on CPUs that are not online: {allocation.cpus - state.machine.online}"
        if not allocation.exclusive <= allocation.cpus:
            yield f"{key} does not run on its exclusive CPUs {allocation.exclusive - allocation.cpus}"
        if resource == CPU_RESOURCE and allocation.nodes != state.machine.nodes_of(allocation.cpus):
            yield f"{key} is on {allocation.cpus}, which is not on NUMA nodes {allocation.nodes}"
    yield from _intrusions(state.holdings)
    yield from _quarrels(state.holdings)


def _intrusions(holdings: Mapping[ContainerKey, Holding]) -> Iterator[str]:
    """Exclusive CPUs on which a container of another pod may run."""
    owners: dict[int, str] = {}
    for key, held in holdings.items():
        for cpu in held.allocation.exclusive:
            if owners.setdefault(cpu, key.pod_uid) != key.pod_uid:
                yield f"CPU {cpu} is exclusive to {owners[cpu]} and to {key.pod_uid}"
    for key, held in holdings.items():
        for cpu in held.allocation.cpus:
            if owners.get(cpu, key.pod_uid) != key.pod_uid:
                yield f"{key} runs on CPU {cpu}, which is exclusive to {owners[cpu]}"


def _quarrels(holdings: Mapping[ContainerKey, Holding]) -> Iterator[str]:
    """CPUs that two running containers of one pod have for themselves, or one has and its pod has not."""
    taken: dict[str, CPUSet] = {}
    for key, held in holdings.items():
        own = held.allocation.exclusive
        line = holdings.get(ContainerKey(key.pod_uid, ""))
        if line is not None and not own <= line.allocation.exclusive:
            yield f"{key} has CPUs for itself that its pod has not: {own - line.allocation.exclusive}"
        if key.container and held.running:
            before = taken.get(key.pod_uid, CPUSet())
            if not own.isdisjoint(before):
                yield f"{key} and another container of its pod both have {own & before} for themselves"
            taken[key.pod_uid] = before | own
