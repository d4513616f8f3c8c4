"""With the scope `pod`, plugins that know pods are asked about the pod as a whole, others as if it were a container."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import qrm_cpu
from google.protobuf.message import Message

from qrm.allocation.remote.calls import RESOURCE_PLUGIN
from qrm.allocation.remote.client import Options, Plugin
from qrm.allocation.remote.server import serve_plugin
from qrm.allocator import MEMORY, PodIdentity, ResourceRequest, TopologyHint
from qrm.cpuset import NodeSet
from qrm.topology.machine import Machine
from qrm.wire import resource_plugin_pb2 as wire
from tests.support import TWO_NODES
from tests.topology.machines import machine_of

FPGA = "example.com/fpga"
POD = ResourceRequest(
    PodIdentity("uid", "ns", "pod"), "main", cpu_millis=3000, pod_cpu_millis=3000, quantities={FPGA: 2, MEMORY: 1 << 30}
)
HINT = TopologyHint(NodeSet([1]), preferred=True)
ALIGNED = Options(pre_start=False, alignment=True, reconcile=False)


class PodPlugin(grpc.GenericRpcHandler):
    """Answers the two pod-scope calls and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: dict[str, wire.PodResourceRequest] = {}
        held = wire.ResourceAllocationInfo(allocated_quantity=2, envs={"FPGA": "f1"})
        held.topology_assignments[1] = 2
        hints = wire.PodResourceHintsResponse()
        hints.resource_hints[FPGA].hints.add(nodes=[1], preferred=True)
        allocation = wire.PodResourceAllocationResponse()
        allocation.allocation_result.resource_allocation[FPGA].CopyFrom(held)
        self.replies: Mapping[str, Message] = {"GetPodTopologyHints": hints, "AllocateForPod": allocation}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        method = handler_call_details.method.removeprefix(RESOURCE_PLUGIN)
        if method not in self.replies:
            return None

        async def answer(request: bytes, _: object) -> bytes:
            self.asked[method] = wire.PodResourceRequest.FromString(request)
            return self.replies[method].SerializeToString()

        return grpc.unary_unary_rpc_method_handler(answer)


@asynccontextmanager
async def plugin(path: Path, resource: str, machine: Machine) -> AsyncIterator[Plugin]:
    made = Plugin(resource, f"unix://{path}", ALIGNED, lambda: machine)
    try:
        yield made
    finally:
        await made.close()


async def test_a_plugin_that_knows_pods_is_asked_for_the_pod(tmp_path: Path) -> None:
    """Hints and allocation carry the pod's identity and totals, and what it allocates is taken."""
    machine = machine_of(TWO_NODES)
    pods = PodPlugin()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((pods,))
    server.add_insecure_port(f"unix:{tmp_path}/p.sock")
    await server.start()
    async with plugin(tmp_path / "p.sock", FPGA, machine) as client:
        assert await client.pod_hints(POD) == [HINT]
        held = await client.allocate_for_pod(POD, HINT)
    await server.stop(None)
    assert held[FPGA].allocation.amounts == {FPGA: {1: 2}}
    assert held[FPGA].envs == {"FPGA": "f1"}
    asked = pods.asked["AllocateForPod"]
    assert (asked.pod_uid, asked.pod_namespace, asked.pod_name, asked.resource_name) == ("uid", "ns", "pod", FPGA)
    assert dict(asked.resource_requests) == {FPGA: 2.0}
    assert list(asked.hint.nodes) == [1]
    assert not pods.asked["GetPodTopologyHints"].HasField("hint")


async def test_a_plugin_that_knows_no_pods_is_asked_as_for_a_container(tmp_path: Path) -> None:
    """Katalyst's plugins, and ours, answer UNIMPLEMENTED: hints are those of one container with the totals."""
    machine = machine_of(TWO_NODES)

    async with (
        serve_plugin(qrm_cpu.create({}), machine, tmp_path) as (path, _),
        plugin(path, "cpu", machine) as client,
    ):
        assert await client.pod_hints(POD) == await client.hints(POD)
        assert await client.allocate_for_pod(POD, None) == {}
