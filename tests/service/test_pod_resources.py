"""podresources v1: the messages, byte for byte where kubelet's readers depend on it, and the socket."""

from __future__ import annotations

import asyncio
import stat
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import grpc.aio
import pytest
from google.protobuf.message import Message

from qrm.allocator import (
    NET_EGRESS,
    Allocation,
    ContainerKey,
    ContainerKind,
    PodIdentity,
    QosLevel,
    Quantities,
    ResourceRequest,
)
from qrm.allocator.testing import machine, request
from qrm.cpuset import CPUSet, NodeSet
from qrm.ledger.record import Mark, Record
from qrm.service.pod_resources import PREFIX, allocatable, list_pods, pod_resources_socket
from qrm.wire import pod_resources_pb2 as wire
from tests.support import UnderTest, dedicated, pod, refused, under_test

FOUR = machine(sockets=2, cores_per_l3=2)
"""CPUs 0-1 on NUMA node 0, 2-3 on node 1."""
FPGA = "example.com/fpga"
Reply = TypeVar("Reply", bound=Message)


def record(
    asked: ResourceRequest, created: float = 0.0, *, running: bool = True, mark: Mark = Mark.NONE, **held: Allocation
) -> Record:
    """A line of the ledger; `held` by resource, FPGAs as `fpga` and a NIC as `nic`."""
    names = {"fpga": FPGA, "nic": NET_EGRESS}
    allocations = {names.get(name, name): allocation for name, allocation in held.items()}
    return Record(asked.key, asked, "s", allocations=allocations, running=running, mark=mark, created=created)


def cpu(cpus: str, *, own: bool = False, nodes: str = "0") -> Allocation:
    held = CPUSet.parse(cpus)
    return Allocation("x", held, exclusive=held if own else CPUSet(), nodes=NodeSet.parse(nodes))


def only(*records: Record) -> wire.ContainerResources:
    """The container of the one pod there is."""
    (told,) = list_pods(records, FOUR)
    (container,) = told.containers
    return container


def amounts(container: wire.ContainerResources) -> dict[str, tuple[float, dict[int, float]]]:
    """By resource: all of it, and what is where."""
    return {
        each.resource_name: (
            each.aggregated_quantity,
            {part.node: part.resource_value for part in each.topology_aware_quantity_list},
        )
        for each in container.resources
    }


def sub(number: int, content: bytes | str) -> bytes:
    """A field of bytes, text or a message, on the wire."""
    raw = content.encode() if isinstance(content, str) else content
    assert number < 16
    assert len(raw) < 128
    return bytes([number << 3 | 2, len(raw)]) + raw


def small(number: int, value: int) -> bytes:
    """A field with a number below 128, on the wire."""
    return bytes([number << 3, value])


def double(number: int, value: float) -> bytes:
    return bytes([number << 3 | 1]) + struct.pack("<d", value)


def test_devices_are_what_kubelets_readers_expect_on_the_wire() -> None:
    """Pod 1, 2, 3; container 1, 2; device 1, 2, 3; topology 1 and node 1 inside it; the annotations are Katalyst's."""
    held = Allocation("fpga", nodes=NodeSet([1]), device="f0,f1", amounts={FPGA: {1: 2}})
    (told,) = list_pods([record(request("p"), fpga=held)], FOUR)
    device = sub(1, FPGA) + sub(2, "f0") + sub(2, "f1") + sub(3, sub(1, small(1, 1)))
    annotation = sub(15, sub(1, "katalyst.kubewharf.io/qos_level") + sub(2, "shared_cores"))
    pod_resources = sub(1, "p") + sub(2, "test") + sub(3, sub(1, "main") + sub(2, device)) + annotation
    assert told.SerializeToString() == pod_resources
    assert wire.GetPodResourcesResponse(pod_resources=told).SerializeToString()[:1] == b"\x0a"
    assert wire.ListPodResourcesResponse(pod_resources=[told]).SerializeToString()[:1] == b"\x0a"


def test_cpus_and_memory_are_what_kubelets_readers_expect_on_the_wire() -> None:
    """CPUs packed at 3, memory at 4 with type, size and topology; Katalyst's resources at 15, one number further."""
    memory = Allocation("x", nodes=NodeSet([1]), amounts={"memory": {1: 64}})
    container = only(record(request("p", 2000), cpu=cpu("2-3", own=True, nodes="1"), memory=memory))

    def resource(name: str, value: float) -> bytes:
        part = double(1, value) + small(2, 1)
        return sub(1, name) + small(3, 1) + double(4, value) + double(5, value) + sub(6, part) + sub(7, part)

    assert container.SerializeToString() == (
        sub(1, "main")
        + sub(3, bytes([2, 3]))
        + sub(4, sub(1, "memory") + small(2, 64) + sub(3, sub(1, small(1, 1))))
        + sub(15, resource("cpu", 2))
        + sub(15, resource("memory", 64))
    )


def test_what_there_is_is_what_readers_expect_on_the_wire() -> None:
    """CPUs at 2, memory at 3, Katalyst's resources at 15: allocatable at 4 and 5, capacity at 6 and 7."""
    small_one = replace(machine(cores_per_l3=2), nodes={0: replace(machine(cores_per_l3=2).nodes[0], memory=100)})
    told = allocatable(
        small_one,
        {
            "cpu": Quantities({0: 1000}, {0: 0}, pools={"share": CPUSet([1]), "reserve": CPUSet([0])}),
            "memory": Quantities({0: 90}, {0: 0}),
        },
    )

    def resource(name: str, usable: float, whole: float) -> bytes:
        usable_parts, whole_parts = sub(5, double(1, usable)), sub(7, double(1, whole))
        return sub(1, name) + small(3, 1) + double(4, usable) + usable_parts + double(6, whole) + whole_parts

    assert told.SerializeToString() == (
        sub(2, bytes([1]))
        + sub(3, sub(1, "memory") + small(2, 90) + sub(3, sub(1, b"")))
        + sub(15, resource("cpu", 1, 2))
        + sub(15, resource("memory", 90, 100))
    )


def test_the_question_is_what_kubelets_readers_send() -> None:
    """The pod's name at 1, its namespace at 2."""
    asked = wire.GetPodResourcesRequest.FromString(sub(1, "web") + sub(2, "default"))
    assert (asked.pod_name, asked.pod_namespace) == ("web", "default")


def test_only_exclusive_cpus_are_listed() -> None:
    """As kubelet does: nobody else may count on a pool's."""
    assert list(only(record(request("p", 500), cpu=cpu("0-3", nodes="0-1"))).cpu_ids) == []
    assert list(only(record(request("p", 2000), cpu=cpu("0-1", own=True))).cpu_ids) == [0, 1]


@pytest.mark.parametrize(
    ("asked", "held", "told"),
    [
        (request("p", 1500), cpu("0-1", own=True), {"cpu": (2.0, {0: 2.0})}),
        (request("p", 2000), cpu("1-2", own=True, nodes="0-1"), {"cpu": (2.0, {0: 1.0, 1: 1.0})}),
        (request("p", 1500), cpu("2-3", nodes="1"), {"cpu": (1.5, {1: 1.5})}),
        (request("p", 1500), cpu("0-3", nodes="0-1"), {"cpu": (1.5, {})}),
        (request("p", 1500, QosLevel.RECLAIMED), cpu("2-3", nodes="1"), {}),
    ],
)
def test_cpus_count_where_they_are(
    asked: ResourceRequest, held: Allocation, told: dict[str, tuple[float, dict[int, float]]]
) -> None:
    """Exclusive ones by node, a bound container's request on its node, a floating one's nowhere, lent ones not."""
    assert amounts(only(record(asked, cpu=held))) == told


def test_each_kind_of_memory_is_listed_by_node() -> None:
    """Memory and huge pages, in bytes."""
    held = Allocation("x", nodes=NodeSet([0, 1]), amounts={"memory": {0: 1, 1: 2}, "hugepages-2Mi": {1: 4}})
    container = only(record(request("p"), memory=held))
    found = [(each.memory_type, each.size, [node.ID for node in each.topology.nodes]) for each in container.memory]
    assert found == [("memory", 1, [0]), ("memory", 2, [1]), ("hugepages-2Mi", 4, [1])]
    assert [each.is_node_resource for each in container.resources] == [False, False]


def test_whole_devices_and_parts_of_devices_are_never_told_twice() -> None:
    """Who adds up both lists would count them twice."""
    whole = Allocation("x", nodes=NodeSet([0]), device="f0", amounts={FPGA: {0: 1}})
    part = Allocation("x", nodes=NodeSet([1]), device="eth0", amounts={NET_EGRESS: {1: 300}})
    container = only(record(request("p"), fpga=whole, nic=part))
    assert [(each.resource_name, list(each.device_ids)) for each in container.devices] == [(FPGA, ["f0"])]
    assert amounts(container) == {NET_EGRESS: (300.0, {1: 300.0})}
    assert container.resources[0].is_node_resource
    assert container.resources[0].topology_aware_quantity_list[0].name == "eth0"


def test_adopted_and_unmanaged_containers_are_listed_and_pods_own_lines_are_not() -> None:
    """Although an unmanaged one holds nothing."""
    line = replace(record(request("a"), cpu=cpu("0", own=True)), key=ContainerKey("a", ""))
    adopted = record(request("a"), mark=Mark.ADOPTED, cpu=cpu("0", own=True))
    told = list_pods([line, adopted, record(request("b"), mark=Mark.UNMANAGED)], FOUR)
    assert [(each.name, [container.name for container in each.containers]) for each in told] == [
        ("a", ["main"]),
        ("b", ["main"]),
    ]
    assert [list(each.containers[0].cpu_ids) for each in told] == [[0], []]
    assert not told[1].containers[0].resources


def test_containers_of_a_pod_are_in_the_order_of_their_creation() -> None:
    """Whatever the ledger's order is."""
    records = [record(request("a", container=name), created) for name, created in (("x", 3.0), ("z", 1.0), ("y", 2.0))]
    (told,) = list_pods(records, FOUR)
    assert [each.name for each in told.containers] == ["z", "y", "x"]


def test_init_and_ephemeral_containers_are_not_listed() -> None:
    """As in kubelet; sidecars are."""
    records = [
        record(replace(request("a", container=kind), kind=kind), number) for number, kind in enumerate(ContainerKind)
    ]
    (told,) = list_pods(records, FOUR)
    assert [each.name for each in told.containers] == ["unknown", "main", "sidecar"]


def test_an_exited_container_keeps_what_nobody_else_of_its_pod_runs_on() -> None:
    """So that no CPU is told twice, and none that is reserved is told to be free."""
    first = record(request("a", 2000, container="first"), cpu=cpu("0-1", own=True), running=False)
    second = record(request("a", 1000, container="second"), 1.0, cpu=cpu("1", own=True))
    (told,) = list_pods([first, second], FOUR)
    assert [list(each.cpu_ids) for each in told.containers] == [[0], [1]]
    assert [amounts(each) for each in told.containers] == [{"cpu": (1.0, {0: 1.0})}] * 2


def test_of_two_pods_with_one_name_the_newer_is_last() -> None:
    """A static pod that was changed has a new uid."""
    asked = request("a", 1000)
    newer = replace(asked, pod=PodIdentity("another", "test", "a"))
    records = [record(newer, 2.0, cpu=cpu("1", own=True)), record(asked, 1.0, cpu=cpu("0", own=True))]
    assert [list(each.containers[0].cpu_ids) for each in list_pods(records, FOUR)] == [[0], [1]]


def test_what_there_is_without_a_cpu_or_memory_allocator() -> None:
    """What nobody hands out is not told; an extended resource is as large as its allocator says."""
    told = allocatable(FOUR, {FPGA: Quantities({0: 2, 1: 1}, {0: 0, 1: 1})})
    assert (list(told.cpu_ids), list(told.memory), list(told.devices)) == ([], [], [])
    (fpga,) = told.resources
    assert (fpga.resource_name, fpga.is_node_resource) == (FPGA, True)
    assert (fpga.aggregated_allocatable_quantity, fpga.aggregated_capacity_quantity) == (3, 3)


def test_huge_pages_of_all_sizes_are_there_to_be_had() -> None:
    """By Kubernetes' names, in bytes, where there are any."""
    pages = {0: {2 << 20: 3, 1 << 30: 1, 64 << 10: 0}, 1: {2 << 20: 5}}
    node = replace(FOUR, nodes={number: replace(FOUR.nodes[number], hugepages=pages[number]) for number in pages})
    found = {
        (each.memory_type, each.topology.nodes[0].ID): each.size
        for each in allocatable(node, {"memory": Quantities({}, {})}).memory
    }
    assert found == {("hugepages-2Mi", 0): 6 << 20, ("hugepages-2Mi", 1): 10 << 20, ("hugepages-1Gi", 0): 1 << 30}


@pytest.fixture
async def under(tmp_path: Path) -> AsyncIterator[UnderTest]:
    async with (
        under_test(tmp_path, more="[upkeep]\ndrift_seconds = 3600\n") as made,
        pod_resources_socket(made.node.book, made.node.context.ready, tmp_path / "own" / "pods.sock"),
    ):
        yield made


def socket_of(under: UnderTest) -> Path:
    return Path(under.config.shim.socket).parent.parent / "own" / "pods.sock"


async def call(socket: Path, method: str, asked: Message, reply: type[Reply]) -> Reply:
    async with grpc.aio.insecure_channel(f"unix://{socket}") as channel:
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(PREFIX + method)
        return reply.FromString(await ask(asked.SerializeToString()))


async def get(socket: Path, name: str, namespace: str = "default") -> wire.PodResources:
    asked = wire.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
    return (await call(socket, "Get", asked, wire.GetPodResourcesResponse)).pod_resources


async def list_all(socket: Path) -> list[wire.PodResources]:
    return list(
        (await call(socket, "List", wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse)).pod_resources
    )


async def get_allocatable(socket: Path) -> wire.AllocatableResourcesResponse:
    nothing = wire.AllocatableResourcesRequest()
    return await call(socket, "GetAllocatableResources", nothing, wire.AllocatableResourcesResponse)


async def test_pods_are_listed_with_what_the_real_allocator_gave_them(under: UnderTest) -> None:
    """Exclusive CPUs, those of the ledger, and their number by node."""
    running = await under.kubelet.start_pod(dedicated("db", 3))
    await under.kubelet.start_pod(pod("web"))
    told = await list_all(socket_of(under))
    assert [(each.namespace, each.name, each.containers[0].name) for each in told] == [
        ("default", "db", "c0"),
        ("default", "web", "c0"),
    ]
    database, web = (each.containers[0] for each in told)
    assert str(CPUSet(database.cpu_ids)) == under.ledger_cpus(running.containers["c0"])
    assert amounts(database)["cpu"][0] == 3
    assert (list(web.cpu_ids), amounts(web)["cpu"]) == ([], (0.1, {}))
    assert dict(told[0].annotations) == {"katalyst.kubewharf.io/qos_level": "dedicated_cores"}
    await under.kubelet.end_pod(running)
    assert [each.name for each in await list_all(socket_of(under))] == ["web"]


async def test_one_pod_is_told_and_an_unknown_one_is_not_found(under: UnderTest) -> None:
    """By name and namespace, both of which have to be right."""
    await under.kubelet.start_pod(dedicated("db", 2))
    assert len((await get(socket_of(under), "db")).containers[0].cpu_ids) == 2
    for name, namespace in (("web", "default"), ("db", "other"), ("", "")):
        answer = await refused(get(socket_of(under), name, namespace))
        assert answer == f"NOT_FOUND: pod {name} in namespace {namespace} not found"


async def test_what_there_is_does_not_depend_on_who_holds_it(under: UnderTest) -> None:
    """All CPUs of the machine, since none are reserved."""
    before = await get_allocatable(socket_of(under))
    await under.kubelet.start_pod(dedicated("db", 3))
    after = await get_allocatable(socket_of(under))
    assert before == after
    assert list(after.cpu_ids) == list(range(8))
    assert after.resources[0].aggregated_allocatable_quantity == 8


async def test_pods_are_told_of_only_once_the_ledger_is_known_to_be_right(under: UnderTest, tmp_path: Path) -> None:
    """Before that nothing is better than something wrong; what the machine has is known at once."""
    ready, socket = asyncio.Event(), tmp_path / "early.sock"
    async with pod_resources_socket(under.node.book, ready, socket):
        assert (await refused(list_all(socket))).startswith("UNAVAILABLE: qrm has not compared its ledger")
        assert (await refused(get(socket, "web"))).startswith("UNAVAILABLE")
        assert (await get_allocatable(socket)).cpu_ids
        ready.set()
        assert await list_all(socket) == []


async def test_the_socket_is_its_owners_alone_and_its_folder_is_left_as_it_is(under: UnderTest, tmp_path: Path) -> None:
    """A folder that was not there is private; another one may be kubelet's."""
    assert stat.S_IMODE(socket_of(under).stat().st_mode) == 0o600
    assert stat.S_IMODE(socket_of(under).parent.stat().st_mode) == 0o700
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    async with pod_resources_socket(under.node.book, under.node.context.ready, shared / "s"):
        assert stat.S_IMODE(shared.stat().st_mode) == 0o755


async def test_a_method_of_a_later_version_is_not_implemented(under: UnderTest) -> None:
    """By the status that tells a client so."""
    nothing = wire.ListPodResourcesRequest()
    assert "UNIMPLEMENTED" in await refused(call(socket_of(under), "Watch", nothing, wire.ListPodResourcesResponse))
