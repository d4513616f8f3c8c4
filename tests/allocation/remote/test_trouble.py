"""A plugin in trouble costs its own pods what the table of docs/fail-policy.md says, and other pods no time."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from qrm.allocation.remote.annotations import HELD
from qrm.allocation.remote.client import Timeouts
from qrm.allocator import ContainerKey, QosLevel
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.demo.pods import Pod
from qrm.ledger.record import Mark
from qrm.service import doctor
from qrm.service.serve import running
from qrm.wire import resource_plugin_pb2 as wire
from tests.allocation.remote.fake import FakePlugin, info
from tests.support import PATIENCE, UnderTest, config, dedicated, pod, until, wait_ready

FPGA = "example.com/fpga"
PLUGIN_SECONDS = 4.0
"""How long this node waits at least for the answer of a plugin that hangs; usually 10."""
SLOWER = 10
"""By how much creations may slow down by themselves, since others use the machine too."""
QUICK = 15
"""Pods whose creation is measured at a time."""


def answer(**fields: Any) -> bytes:
    """What Allocate answers: one FPGA, and `fields` of the allocation."""
    reply = wire.ResourceAllocationResponse()
    held = wire.ResourceAllocationInfo(is_scalar_resource=True, allocated_quantity=1, **fields)
    reply.allocation_result.resource_allocation[FPGA].CopyFrom(held)
    return reply.SerializeToString()


GOOD = answer(topology_assignments={0: 1})

Trouble = Callable[["Fpga"], Awaitable[bytes]]


@dataclass
class Fpga(FakePlugin):
    """A plugin for an extended resource; `trouble` is what becomes of Allocate once `released`."""

    trouble: Trouble | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody is in the middle of Allocate."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.answers |= {
            "GetInfo": info(FPGA),
            "GetTopologyHints": wire.ResourceHintsResponse(),
            "GetResourcesAllocation": wire.GetResourcesAllocationResponse(),
            "RemovePod": wire.RemovePodResponse(),
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        if handler_call_details.method.endswith("/Allocate"):
            return grpc.unary_unary_rpc_method_handler(self.allocate)
        return super().service(handler_call_details)

    async def allocate(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        self.asked.set()
        await self.released.wait()
        return GOOD if self.trouble is None else await self.trouble(self)


async def dies(plugin: Fpga) -> bytes:
    """The server is closed under the call, as the kernel does when a process ends."""
    plugin.tasks.append(asyncio.create_task(plugin.server.stop(None)))
    await asyncio.sleep(3600)
    return b""


async def hangs(_: Fpga) -> bytes:
    """No answer, ever."""
    await asyncio.sleep(3600)
    return b""


def says(text: bytes) -> Trouble:
    """An answer that cannot be used."""

    async def trouble(_: Fpga) -> bytes:
        return text

    return trouble


TROUBLES: dict[str, tuple[Trouble, str]] = {
    "dies": (dies, "is not there to answer Allocate"),
    "hangs": (hangs, "did not answer Allocate within {seconds:g} s"),
    "garbage": (says(b"\xff garbage \xff"), "bytes that are no ResourceAllocationResponse"),
    "no such cpu": (
        says(answer(annotations={HELD: '{"v": 1, "cpus": "999"}'})),
        "CPUs 999 are not online",
    ),
    "no such cpu, by its cpuset": (
        says(answer(oci_property_name="CpusetCpus", allocation_result="999")),
        "CPUs 999 are not online",
    ),
    "no such node": (says(answer(topology_assignments={7: 1})), "NUMA nodes [7] do not exist here"),
    "unknown property": (
        says(answer(oci_property_name="Unified", allocation_result="1")),
        "there is no OCI property 'Unified'",
    ),
    "no number": (
        says(answer(oci_property_name="CpuShares", allocation_result="many")),
        "CpuShares is 'many', which is no 64-bit number",
    ),
}
"""What goes wrong in Allocate, and what the pod is told."""


@asynccontextmanager
async def with_fpga(folder: Path, trouble: Trouble | None) -> AsyncIterator[tuple[UnderTest, Fpga]]:
    """A node that allocates CPUs itself, and the plugin."""
    (folder / "plugins").mkdir()
    more = f'[plugins]\ndirectory = "{folder}/plugins"\n'
    async with FakeRuntime(folder, pod_updates=True) as fake:
        settings = config(folder, fake.endpoint, more=more)
        async with (
            Fpga(folder / "plugins/fpga.sock", trouble=trouble) as plugin,
            running(settings) as node,
            KubeletClient(f"unix://{settings.shim.socket}") as kubelet,
        ):
            node.crew._timeouts = Timeouts(call=PATIENCE)
            node.context.budget_seconds = 2 * PATIENCE
            await wait_ready(node)
            assert node.registry is not None
            plugins = node.registry.plugins
            await until(lambda: FPGA in plugins and plugins[FPGA].state == "registered")
            yield UnderTest(node, kubelet, fake, settings), plugin
            plugin.released.set()


def wanting(asking: Pod) -> Pod:
    """`asking`, with an FPGA for its container c0."""
    return replace(asking, annotations={**asking.annotations, "qrm.io/resources": f'{{"c0": {{"{FPGA}": "1"}}}}'})


async def quick(under: UnderTest, name: str) -> list[float]:
    """The seconds that the creation of each of some pods took, which want no FPGA; they are gone afterwards."""
    seconds = []
    for number in range(QUICK):
        each = pod(f"{name}{number}") if number % 2 else dedicated(f"{name}{number}", 1)
        sandbox = await under.kubelet.run_pod(each)
        begun = time.perf_counter()
        await under.kubelet.create_container(sandbox, each, each.containers[0])
        seconds.append(time.perf_counter() - begun)
        await under.kubelet.stop_pod(sandbox)
        await under.kubelet.remove_pod(sandbox)
    return seconds


async def creation(under: UnderTest, asking: Pod) -> asyncio.Task[str]:
    """The creation of a pod's container, under way."""
    sandbox = await under.kubelet.run_pod(asking)
    return asyncio.create_task(under.kubelet.create_container(sandbox, asking, asking.containers[0]))


def failures(under: UnderTest, level: QosLevel, action: str, cause: str = "plugin") -> float:
    """How often the table applied, as Prometheus sees it."""
    labels = {"cause": cause, "qos": str(level), "action": action}
    return under.node.metrics.registry.get_sample_value("qrm_own_failures_total", labels) or 0.0


async def examined(under: UnderTest) -> dict[str, tuple[str, str]]:
    """What `qrm doctor` says, by feature."""
    return {each.name: (each.state, each.why) for each in (await doctor.examine(under.node)).features}


async def shown(under: UnderTest) -> str:
    """Which state of the plugin `qrm doctor` shows."""
    return (await examined(under))[f"plugin {FPGA}"][0]


async def unmanaged(under: UnderTest) -> str:
    """The id of a shared container that asked for an FPGA in vain."""
    asking = wanting(pod("shared"))
    sandbox = await under.kubelet.run_pod(asking)
    container = await under.kubelet.create_container(sandbox, asking, asking.containers[0])
    assert under.record(container).mark is Mark.UNMANAGED
    return container


@pytest.mark.parametrize("what", TROUBLES)
async def test_trouble_in_allocate_costs_its_own_pods_what_the_table_says_and_others_no_time(
    tmp_path: Path, what: str
) -> None:
    """While a dedicated and a shared pod are in the middle of Allocate, all other pods come and go as ever."""
    trouble, why = TROUBLES[what]
    async with with_fpga(tmp_path, trouble) as (under, plugin):
        begun, seconds = time.monotonic(), PATIENCE
        before = await quick(under, "before")
        own, shared = wanting(dedicated("own", 2)), wanting(pod("shared"))
        if what == "hangs":
            seconds = max(PLUGIN_SECONDS, min(SLOWER * (time.monotonic() - begun), PATIENCE))
            under.node.crew._plugins[FPGA]._timeouts = Timeouts(call=seconds)
            plugin.released.set()
        troubled = [await creation(under, own), await creation(under, shared)]
        await plugin.asked.wait()
        during = await quick(under, "during")
        assert not any(each.done() for each in troubled)
        plugin.released.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await troubled[0]
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert why.format(seconds=seconds) in str(caught.value.details())
        container = await troubled[1]
        assert under.record(container).mark is Mark.UNMANAGED
        assert under.node.book.ledger.get(ContainerKey(own.uid, "c0")) is None
        assert failures(under, QosLevel.DEDICATED, "refuse") == 1
        assert failures(under, QosLevel.SHARED, "pass") >= 1
        under.node.upkeep.count()
        assert under.node.metrics.registry.get_sample_value("qrm_unmanaged_containers") == 1
        said = await examined(under)
        assert said["all containers placed"] == ("degraded", "1 passed unmanaged; the log says why")
        after = await quick(under, "after")
        await under.settled()
        under.check()
    ratio, later = (statistics.median(each) / statistics.median(before) for each in (during, after))
    print(
        f"\n{what}: a creation took {statistics.median(before) * 1000:.2f} ms before, "
        f"{ratio:.2f} times that meanwhile, {later:.2f} times afterwards"
    )


async def test_a_dead_plugin_is_shown_by_doctor_and_a_new_one_takes_over(tmp_path: Path) -> None:
    """What passed unmanaged is placed once the plugin is back, and dedicated pods come in again."""
    async with with_fpga(tmp_path, dies) as (under, plugin):
        registry = under.node.registry
        assert registry is not None
        assert await shown(under) == "on"
        plugin.released.set()
        container = await unmanaged(under)
        await until(lambda: registry.plugins[FPGA].state == "stopped")
        assert await shown(under) == "degraded"
        async with Fpga(tmp_path / "plugins/fpga2.sock") as better:
            better.released.set()
            await until(lambda: registry.plugins[FPGA].state == "registered")
            assert registry.plugins[FPGA].endpoint == str(better.path)
            assert await shown(under) == "on"
            await under.kubelet.start_pod(wanting(dedicated("own", 2)))
            await under.node.upkeep.repair()
            assert under.record(container).mark is Mark.NONE
            assert (await examined(under))["all containers placed"][0] == "on"
            await under.settled()
            under.check()
