"""The same allocators, in process and behind sockets, give the same placements over 10 000 generated pods."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog

from qrm.allocation.book import Book
from qrm.allocation.hints import Policy
from qrm.allocation.planner import Alignment, Planner
from qrm.allocation.registry import load_allocators
from qrm.allocation.remote.client import Options, Plugin
from qrm.allocation.remote.crew import Crew
from qrm.allocation.remote.registry import PluginState, Standing
from qrm.allocation.remote.server import serve_plugin
from qrm.allocator import (
    MEMORY,
    NET_EGRESS,
    NET_INGRESS,
    Allocation,
    BadRequest,
    ContainerKey,
    ContainerKind,
    DoesNotFit,
    NativeQos,
    PodIdentity,
    QosLevel,
    ResourceRequest,
)
from qrm.ledger.record import Record
from qrm.ledger.store import open_ledger
from qrm.pods.qos import read_qos
from qrm.topology.generate import GIB, Layout, write_sysfs
from qrm.topology.machine import Machine, Nic
from qrm.topology.sysfs import read_machine

PODS = 10_000
BETWEEN = 500
"""Pods after which everybody's holdings are compared."""
LOOK = 25
"""Pods after which the free CPUs are counted."""
RESIDENT = 24
"""Pods from which on the oldest leaves, since reclaimed and system pods find room always."""
THREE: dict[str, dict[str, object]] = {"cpu": {}, "memory": {}, "nic": {}}
HUGE = "hugepages-2Mi"
MIB = 1 << 20
DOMAIN = "katalyst.kubewharf.io/"

FOUR_NODES = Layout(
    sockets=2,
    nodes_per_socket=2,
    l3_per_socket=2,
    cores_per_socket=8,
    threads=2,
    memory=16 * GIB,
    hugepages={2 * MIB: 1024},
    nics=(Nic("eth0", 25000, 0, up=True), Nic("eth1", 25000, 2, up=True)),
)

Held = dict[str, Allocation]
"""By resource."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Nobody reads sixty thousand lines of what plugins have allocated."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50), cache_logger_on_first_use=False)
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    root = tmp_path_factory.mktemp("sys")
    write_sysfs(FOUR_NODES, root)
    return read_machine(root)


class InProcess:
    """The allocators behind the Planner, with the book that a node keeps."""

    def __init__(self, machine: Machine, policy: Policy, folder: Path) -> None:
        self.book = Book(Planner(machine, load_allocators(THREE), Alignment(policy)), open_ledger(folder / "db")[0])

    def place(self, request: ResourceRequest) -> Held | str:
        try:
            plan = self.book.plan(request)
        except (DoesNotFit, BadRequest) as error:
            return type(error).__name__
        self.book.apply(plan.allocations, Record(request.key, request, ""))
        return dict(plan.own)

    def leave(self, uid: str) -> None:
        for record in self.book.of_pod(uid):
            self.book.drop(record.key)
        self.book.drop_pod_if_empty(uid)
        self.book.settle()

    def holdings(self) -> dict[ContainerKey, Held]:
        return {each.key: dict(each.allocations) for each in self.book.ledger if not each.is_pod}

    def requests(self) -> dict[ContainerKey, ResourceRequest]:
        return {each.key: each.request for each in self.book.ledger if not each.is_pod}

    def free_cpus(self) -> float:
        """The part of all CPUs that nobody has been promised."""
        cpu = self.book.quantities()["cpu"]
        return sum(cpu.free.values()) / sum(cpu.allocatable.values())


@dataclass
class Distant:
    """The allocators behind sockets, and what a node without allocators of its own does with them."""

    crew: Crew
    plugins: Mapping[str, Plugin]
    planner: Planner
    """Merges hints, and allocates nothing itself."""

    async def place(self, request: ResourceRequest) -> Held | str:
        try:
            plan = self.planner.plan(request, {}, await self.crew.hints(request))
            return await self.crew.allocate(request, plan.chosen)
        except (DoesNotFit, BadRequest) as error:
            return type(error).__name__

    async def leave(self, uid: str) -> None:
        await asyncio.gather(*(each.remove_pod(uid) for each in self.plugins.values()))

    async def holdings(self, requests: Mapping[ContainerKey, ResourceRequest]) -> dict[ContainerKey, Held]:
        """What the plugins hold; the NIC's, which never changes what it gave, is not part of a reconciliation."""
        found = await self.crew.reconcile(requests, frozenset())
        for key, held in (await self.plugins[NET_EGRESS].resources_allocation(requests)).items():
            found.setdefault(key, {}).update({name: each.allocation for name, each in held.items()})
        return found


@asynccontextmanager
async def distant(machine: Machine, policy: Policy, folder: Path) -> AsyncIterator[Distant]:
    async with AsyncExitStack() as stack:
        crew, plugins = Crew(lambda: machine), {}
        stack.push_async_callback(crew.close)
        for allocator in load_allocators(THREE):
            path, _ = await stack.enter_async_context(serve_plugin(allocator, machine, folder))
            plugin = Plugin(allocator.resource, str(path), Options(), lambda: machine)
            stack.push_async_callback(plugin.close)
            options = await plugin.ask_options()
            crew.changed(PluginState(plugin.resource, plugin.endpoint, Standing.REGISTERED, options=options))
            plugins[plugin.resource] = plugin
        yield Distant(crew, plugins, Planner(machine, (), Alignment(policy)))


def generated(dice: random.Random, number: int) -> list[ResourceRequest]:
    """The containers of one pod of any kind; some contradict the machine."""
    level = dice.choices(list(QosLevel), (5, 5, 2, 1))[0]
    bound = level is not QosLevel.SYSTEM and dice.random() < 0.4
    annotations = {f"{DOMAIN}qos_level": str(level), **({} if level is QosLevel.SYSTEM else _said(dice, level, bound))}
    qos = read_qos(annotations, QosLevel.SHARED)
    native = dice.choice([NativeQos.GUARANTEED, NativeQos.BURSTABLE, NativeQos.UNKNOWN])
    identity = PodIdentity(f"uid-{number}", "ns", f"pod-{number}")
    made = []
    for container in range(dice.choices((1, 2), (3, 1))[0]):
        limit = dice.choice([0, 64 * MIB, GIB])
        made.append(
            ResourceRequest(
                identity,
                f"c{container}",
                qos=qos,
                kind=ContainerKind.MAIN,
                native_qos=native,
                cpu_millis=_millis(dice, level),
                memory_limit=limit,
                quantities=_quantities(dice, level),
                source="annotation",
            )
        )
    return made


def _said(dice: random.Random, level: QosLevel, bound: bool) -> dict[str, str]:
    """What the pod's other annotations ask for."""
    said = {f"{DOMAIN}memory_enhancement": '{"numa_binding": "true"}'} if bound else {}
    if level is QosLevel.DEDICATED and bound and dice.random() < 0.15:
        said[f"{DOMAIN}numa_ids"] = dice.choice(["0", "3", "0-1", "9"])
    if level is QosLevel.SHARED and not bound and dice.random() < 0.3:
        said[f"{DOMAIN}cpu_enhancement"] = '{"cpuset_pool": "batch"}'
    if dice.random() < 0.2:
        said[f"{DOMAIN}network_enhancement"] = '{"topology_affinity_restricted": "true"}'
    return said


def _millis(dice: random.Random, level: QosLevel) -> int:
    if level is QosLevel.DEDICATED:
        return 1000 * dice.choice([1, 2, 2, 3, 4, 9])
    return 0 if level is QosLevel.SYSTEM else dice.choice([0, 100, 333, 1500, 4000])


def _quantities(dice: random.Random, level: QosLevel) -> dict[str, int]:
    """Memory for most, hugepages and bandwidth for some."""
    asked = {}
    if dice.random() < 0.7:
        asked[MEMORY] = dice.choice([1, MIB, 3 * GIB + 4096, 5 * GIB])
    if level is not QosLevel.RECLAIMED and dice.random() < 0.2:
        asked[HUGE] = dice.choice([2, 512, 1500]) * MIB
    if dice.random() < 0.25:
        asked[NET_EGRESS] = dice.choice([100, 5000, 12000])
        if dice.random() < 0.3:
            asked[NET_INGRESS] = 7000
    return asked


@dataclass
class Both:
    """Two nodes to which the same happens."""

    local: InProcess
    distant: Distant
    resident: list[str] = field(default_factory=list)
    """Uids of pods, oldest first."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Pods by how they fared."""

    async def arrive(self, containers: list[ResourceRequest]) -> bool:
        """A pod comes; one that is refused in part goes as a whole. Whether it is there now."""
        uid = containers[0].pod.uid
        for request in containers:
            expected, found = self.local.place(request), await self.distant.place(request)
            assert found == expected, f"{request}"
            if isinstance(expected, str):
                self.outcomes[expected] += 1
                await self._forget(uid)
                return False
        self.outcomes["placed"] += 1
        self.resident.append(uid)
        return True

    async def leave(self, place: int) -> None:
        """The pod that is `place`th oldest goes."""
        await self._forget(self.resident.pop(place))

    async def compare(self) -> None:
        """What everybody holds now."""
        assert await self.distant.holdings(self.local.requests()) == self.local.holdings()

    async def _forget(self, uid: str) -> None:
        self.local.leave(uid)
        await self.distant.leave(uid)


@pytest.mark.parametrize("policy", list(Policy))
async def test_remote_and_in_process_allocators_give_the_same_placements(
    tmp_path: Path, machine: Machine, policy: Policy
) -> None:
    """Each policy gets its share of the pods; they come to a machine that is nearly full all the time."""
    dice = random.Random(f"same {policy}")  # noqa: S311 - no secret
    free = []
    async with distant(machine, policy, tmp_path) as plugins:
        both = Both(InProcess(machine, policy, tmp_path), plugins)
        for number in range(PODS // len(Policy)):
            if not await both.arrive(generated(dice, number)) and both.resident:
                await both.leave(dice.randrange(len(both.resident)))
            if len(both.resident) > RESIDENT:
                await both.leave(0)
            if number % BETWEEN == BETWEEN - 1:
                await both.compare()
            if number % LOOK == LOOK - 1:
                free.append(both.local.free_cpus())
        both.local.book.ledger.close()
    print(f"\n{policy}: {dict(both.outcomes)}, {sum(free) / len(free):.0%} of the CPUs free on average")
    assert sum(free) / len(free) < 0.5
    assert both.outcomes["placed"] > both.outcomes["DoesNotFit"] > 0 < both.outcomes["BadRequest"]
