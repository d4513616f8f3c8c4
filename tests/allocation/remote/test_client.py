"""What the client makes of the answers, the silence and the nonsense of a plugin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from qrm.allocation.remote.client import Amount, Options, Part, Plugin, Stock, Timeouts
from qrm.allocation.remote.errors import PluginError, PluginUnavailable
from qrm.allocator import BadRequest, ContainerKey, DoesNotFit, PodIdentity, QosLevel, TopologyHint
from qrm.allocator.testing import machine, request
from qrm.cpuset import CPUSet, NodeSet
from qrm.wire import resource_plugin_pb2 as wire
from tests.allocation.remote.fake import HANGS, Fails, FakePlugin
from tests.support import until

NODE = machine(sockets=2, cores_per_l3=4)
ASKED = request("p", 2000, QosLevel.DEDICATED)
ALIGNED = Options(alignment=True, pre_start=True)
SILENT = Timeouts(1.5, 1.6)
"""How long to wait for who does not answer."""
FULL = Fails(grpc.StatusCode.UNKNOWN, "not enough cpus: 2 of 8")


@asynccontextmanager
async def plugin(
    folder: Path, options: Options = ALIGNED, timeouts: Timeouts | None = None, **answers: object
) -> AsyncIterator[tuple[Plugin, FakePlugin]]:
    async with FakePlugin(folder / "p.sock", dict(answers)) as fake:
        made = Plugin("cpu", str(fake.path), options, lambda: NODE, timeouts=timeouts or Timeouts(60.0, 60.0))
        try:
            yield made, fake
        finally:
            await made.close()


def hints(*offered: wire.TopologyHint, resource: str = "cpu") -> wire.ResourceHintsResponse:
    reply = wire.ResourceHintsResponse()
    reply.resource_hints[resource].hints.extend(offered)
    return reply


def allocated(**by_resource: wire.ResourceAllocationInfo) -> wire.ResourceAllocation:
    return wire.ResourceAllocation(resource_allocation=by_resource)


def cpus(text: str) -> wire.ResourceAllocationInfo:
    return wire.ResourceAllocationInfo(oci_property_name="CpusetCpus", allocation_result=text)


async def test_hints_in_order(tmp_path: Path) -> None:
    offered = hints(wire.TopologyHint(nodes=[1], preferred=True), wire.TopologyHint(nodes=[0, 1]))
    async with plugin(tmp_path, GetTopologyHints=offered) as (it, fake):
        assert await it.hints(ASKED) == [
            TopologyHint(NodeSet((1,)), preferred=True),
            TopologyHint(NodeSet((0, 1)), preferred=False),
        ]
    sent = wire.ResourceRequest.FromString(fake.calls[-1][1])
    assert (sent.pod_uid, dict(sent.resource_requests), sent.HasField("hint")) == ("p", {"cpu": 2.0}, False)


@pytest.mark.parametrize("reply", [hints(), wire.ResourceHintsResponse(), hints(resource="memory")])
async def test_an_empty_list_is_no_preference(tmp_path: Path, reply: wire.ResourceHintsResponse) -> None:
    async with plugin(tmp_path, GetTopologyHints=reply) as (it, _):
        assert await it.hints(ASKED) is None


async def test_without_alignment_nobody_is_asked(tmp_path: Path) -> None:
    async with plugin(tmp_path, Options()) as (it, fake):
        assert await it.hints(ASKED) is None
        await it.pre_start(PodIdentity("p", "ns", "p"), "c")
        assert fake.calls == []


async def test_allocation_with_what_comes_with_it(tmp_path: Path) -> None:
    limit = wire.ResourceAllocationInfo(oci_property_name="MemoryLimitInBytes", allocation_result="4096")
    reply = wire.ResourceAllocationResponse(allocation_result=allocated(cpu=cpus("4-5"), knob=limit))
    async with plugin(tmp_path, Allocate=reply) as (it, fake):
        found = await it.allocate(ASKED, TopologyHint(NodeSet((1,)), preferred=True))
    assert found["cpu"].allocation.exclusive == CPUSet((4, 5))
    assert found["cpu"].oci == {"cpuset_cpus": "4-5"}
    assert found["knob"].oci == {"memory_limit_in_bytes": 4096}
    assert list(wire.ResourceRequest.FromString(fake.calls[-1][1]).hint.nodes) == [1]


async def test_a_container_that_is_left_alone(tmp_path: Path) -> None:
    async with plugin(tmp_path, Allocate=wire.ResourceAllocationResponse()) as (it, _):
        assert await it.allocate(ASKED, None) == {}


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        (FULL, DoesNotFit, r"^cpu plugin: not enough cpus: 2 of 8$"),
        (Fails(grpc.StatusCode.INVALID_ARGUMENT, "no such pool"), BadRequest, r"^cpu plugin: no such pool$"),
        (Fails(grpc.StatusCode.INTERNAL, "bug"), PluginError, r"plugin cpu \(.*p.sock\) refused \w+: bug"),
        (Fails(grpc.StatusCode.UNIMPLEMENTED, "no"), PluginError, "refused"),
        (Fails(grpc.StatusCode.UNAVAILABLE, "going"), PluginUnavailable, "going"),
        (HANGS, PluginUnavailable, r"did not answer \w+ within 1.5 s"),
        (b"\xff\xff", PluginError, r"2 bytes that are no \w+"),
    ],
)
async def test_failures(tmp_path: Path, failure: object, kind: type[Exception], text: str) -> None:
    timeouts = SILENT if failure is HANGS else None
    async with plugin(tmp_path, timeouts=timeouts, GetTopologyHints=failure, Allocate=failure) as (it, _):
        for ask in (it.hints(ASKED), it.allocate(ASKED, None)):
            with pytest.raises(kind, match=text):
                await ask


@pytest.mark.parametrize(
    "ask",
    [
        lambda it: it.remove_pod("p"),
        lambda it: it.resources_allocation(),
        lambda it: it.topology_aware_resources("p", "c"),
        lambda it: it.topology_aware_allocatable(),
        lambda it: it.ask_options(),
        lambda it: it.pre_start(PodIdentity("p", "ns", "p"), "c"),
    ],
)
async def test_refusals_that_are_not_about_room(tmp_path: Path, ask: Callable[[Plugin], Awaitable[object]]) -> None:
    names = ("RemovePod", "GetResourcesAllocation", "GetTopologyAwareResources", "GetResourcePluginOptions")
    more = ("GetTopologyAwareAllocatableResources", "PreStartContainer")
    async with plugin(tmp_path, ALIGNED, None, **dict.fromkeys((*names, *more), FULL)) as (it, _):
        with pytest.raises(PluginError, match="not enough cpus"):
            await ask(it)


async def test_a_plugin_that_hangs_costs_only_its_caller(tmp_path: Path) -> None:
    async with plugin(tmp_path, GetTopologyHints=HANGS, RemovePod=wire.RemovePodResponse()) as (it, fake):
        hanging = asyncio.ensure_future(it.hints(ASKED))
        await until(lambda: bool(fake.calls))
        await it.remove_pod("q")
        assert not hanging.done()
        await fake.server.stop(None)
        with pytest.raises(PluginUnavailable):
            await hanging


async def test_nobody_there(tmp_path: Path) -> None:
    it = Plugin("cpu", str(tmp_path / "gone.sock"), ALIGNED, lambda: NODE)
    with pytest.raises(PluginUnavailable, match="is not there to answer Allocate"):
        await it.allocate(ASKED, None)
    await it.close()
    with pytest.raises(PluginUnavailable, match="has been closed"):
        await it.remove_pod("p")


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (cpus("8"), "CPUs 8 are not online"),
        (cpus(""), "CpusetCpus is empty"),
        (wire.ResourceAllocationInfo(oci_property_name="Cpus", allocation_result="0"), "no OCI property 'Cpus'"),
    ],
)
async def test_answers_that_cannot_be_used_name_the_plugin(
    tmp_path: Path, held: wire.ResourceAllocationInfo, text: str
) -> None:
    reply = wire.ResourceAllocationResponse(allocation_result=allocated(cpu=held))
    async with plugin(tmp_path, Allocate=reply) as (it, _):
        with pytest.raises(PluginError, match=rf"plugin cpu \(.*\) answered Allocate with cpu: .*{text}"):
            await it.allocate(ASKED, None)


async def test_hints_for_nodes_that_do_not_exist(tmp_path: Path) -> None:
    async with plugin(tmp_path, GetTopologyHints=hints(wire.TopologyHint(nodes=[2]))) as (it, _):
        with pytest.raises(PluginError, match=r"answered GetTopologyHints with NUMA nodes \[2\]"):
            await it.hints(ASKED)


async def test_what_all_hold(tmp_path: Path) -> None:
    reply = wire.GetResourcesAllocationResponse()
    reply.pod_resources["p"].container_resources["main"].CopyFrom(allocated(cpu=cpus("0")))
    reply.pod_resources["q"].container_resources["main"].CopyFrom(allocated(cpu=cpus("1")))
    async with plugin(tmp_path, GetResourcesAllocation=reply) as (it, _):
        found = await it.resources_allocation({ASKED.key: ASKED})
    assert str(found[ASKED.key]["cpu"].allocation.exclusive) == "0"
    assert str(found[ContainerKey("q", "main")]["cpu"].allocation.exclusive) == ""


async def test_what_there_is(tmp_path: Path) -> None:
    place = wire.TopologyAwareQuantity(resource_value=1.5, node=1, name="eth0", type="NIC", topology_level=wire.SOCKET)
    reply = wire.GetTopologyAwareAllocatableResourcesResponse()
    reply.allocatable_resources["cpu"].aggregated_allocatable_quantity = 1.5
    reply.allocatable_resources["cpu"].topology_aware_allocatable_quantity_list.append(place)
    reply.allocatable_resources["cpu"].aggregated_capacity_quantity = 2.0
    held = wire.GetTopologyAwareResourcesResponse()
    held.container_topology_aware_resources.allocated_resources["cpu"].aggregated_quantity = 1.0
    async with plugin(tmp_path, GetTopologyAwareAllocatableResources=reply, GetTopologyAwareResources=held) as (it, _):
        assert await it.topology_aware_allocatable() == {
            "cpu": Stock(Amount(1500, (Part("socket", 1, 1500, "eth0", "NIC"),)), Amount(2000))
        }
        assert await it.topology_aware_resources("p", "c") == {"cpu": Amount(1000)}
        assert await it.ask_options() == Options(alignment=True)
