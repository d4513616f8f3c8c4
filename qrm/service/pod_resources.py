"""kubelet's API podresources v1 on a socket of our own: what each container holds, by the ledger.

kubelet's own socket knows nothing of what qrm decides. Agents that read it (topology exporters, monitoring, Katalyst's)
read this one instead and need no change. Katalyst's adds up kubelet's `devices` and its own `resources`, so nothing is
in both: whole devices are in the one, parts of devices in the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from qrm.allocation.book import Book
from qrm.allocator import HUGEPAGES, MEMORY, Allocation, ContainerKind, QosLevel, Quantities
from qrm.cpuset import CPUSet
from qrm.ledger.record import CPU, Record
from qrm.pods.qos import QOS_LEVEL
from qrm.service.sockets import private_directory, private_name, publish
from qrm.topology.machine import Machine
from qrm.units import MILLIS_PER_CPU
from qrm.wire import pod_resources_pb2 as wire

PREFIX = "/v1.PodResourcesLister/"
RESERVE = "reserve"
"""The pool of CPUs that are no container's to hold."""

_PASSING = (ContainerKind.INIT, ContainerKind.EPHEMERAL)
"""kubelet lists neither: the one kind is gone before the others run, the other must not ask for anything."""
_BINARY = ((30, "Gi"), (20, "Mi"), (10, "Ki"))

ByNode = Mapping[int, float]
Context = grpc.aio.ServicerContext[Any, Any]


def list_pods(records: Iterable[Record], machine: Machine) -> list[wire.PodResources]:
    """Every pod that is in the ledger, adopted and unmanaged ones too; of two that have one name, the newer is last.

    An exited container is listed with what is reserved for it, without the CPUs on which others of its pod run now.
    """
    placed = sorted((each for each in records if not each.is_pod), key=lambda each: (each.created, each.key.container))
    pods: dict[str, list[Record]] = {}
    for record in placed:
        pods.setdefault(record.key.pod_uid, []).append(record)
    ordered = sorted(pods.values(), key=lambda each: (str(each[0].request.pod), each[-1].created))
    return [_pod(each, machine) for each in ordered]


def allocatable(machine: Machine, quantities: Mapping[str, Quantities]) -> wire.AllocatableResourcesResponse:
    """What containers can hold at all, whoever holds it now.

    `devices` is empty: an allocator says how many it has, which is in `resources`, and not what they are called.
    """
    pools = quantities[CPU].pools if CPU in quantities else {}
    assignable = CPUSet.union(pools.values()) - pools.get(RESERVE, CPUSet())
    amounts: dict[str, Mapping[int, int]] = {}
    if MEMORY in quantities:
        amounts = {MEMORY: quantities[MEMORY].allocatable, **_hugepages(machine)}
    return wire.AllocatableResourcesResponse(
        cpu_ids=assignable,
        memory=_memory(amounts),
        resources=[_countable(name, each.allocatable, machine) for name, each in sorted(quantities.items())],
    )


def _pod(records: list[Record], machine: Machine) -> wire.PodResources:
    pod, qos = records[0].request.pod, records[0].request.qos
    running = CPUSet.union(_exclusive(each) for each in records if each.running)
    return wire.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[
            _container(each, _exclusive(each) if each.running else _exclusive(each) - running, machine)
            for each in records
            if each.request.kind not in _PASSING
        ],
        annotations={QOS_LEVEL: str(qos.level)},
    )


def _exclusive(record: Record) -> CPUSet:
    return record.allocations[CPU].exclusive if CPU in record.allocations else CPUSet()


def _container(record: Record, own: CPUSet, machine: Machine) -> wire.ContainerResources:
    """What the container of `record` holds, without what is lent to it; `own` are the CPUs that are its alone."""
    held = dict(sorted(record.allocations.items()))
    memory = held[MEMORY].amounts if MEMORY in held else {}
    borrows = record.request.qos.level is QosLevel.RECLAIMED
    resources = [_cpu(record, own, machine)] if CPU in held and not borrows else []
    devices = []
    for resource, allocation in held.items():
        if _is_whole(resource, allocation):
            devices.append(_devices(resource, allocation))
        else:
            resources += [_held(name, by_node, allocation.device) for name, by_node in allocation.amounts.items()]
    return wire.ContainerResources(
        name=record.key.container, devices=devices, cpu_ids=own, memory=_memory(memory), resources=resources
    )


def _is_whole(resource: str, allocation: Allocation) -> bool:
    """Whether the allocation is of whole devices: what it counts for is how many names there are."""
    names = allocation.device.split(",") if allocation.device else []
    return bool(names) and len(names) == sum(allocation.amounts.get(resource, {}).values())


def _devices(resource: str, allocation: Allocation) -> wire.ContainerDevices:
    return wire.ContainerDevices(
        resource_name=resource, device_ids=allocation.device.split(","), topology=_topology(allocation.nodes)
    )


def _memory(amounts: Mapping[str, Mapping[int, int]]) -> Iterator[wire.ContainerMemory]:
    """Memory and huge pages, by kind and NUMA node."""
    for name, by_node in amounts.items():
        for node, size in sorted(by_node.items()):
            yield wire.ContainerMemory(memory_type=name, size=size, topology=_topology([node]))


def _topology(nodes: Iterable[int]) -> wire.TopologyInfo:
    return wire.TopologyInfo(nodes=[wire.NUMANode(ID=node) for node in nodes])


def _cpu(record: Record, own: CPUSet, machine: Machine) -> wire.TopologyAwareResource:
    """CPUs of its own where they are; what it asks for of a pool on the pool's NUMA node, if that is one."""
    if _exclusive(record):
        return _held(CPU, {node.id: len(node.cpus & own) for node in machine.nodes.values() if node.cpus & own})
    asked, nodes = record.request.cpu_millis / MILLIS_PER_CPU, record.allocations[CPU].nodes
    told = _held(CPU, dict.fromkeys(nodes, asked) if len(nodes) == 1 else {})
    told.aggregated_quantity = told.original_aggregated_quantity = asked
    return told


def _held(name: str, by_node: ByNode, device: str = "") -> wire.TopologyAwareResource:
    """What a container holds, in Katalyst's terms; nothing is ever lent out of it, so that the original is the same."""
    total, parts = sum(by_node.values()), list(_parts(by_node, device))
    return wire.TopologyAwareResource(
        resource_name=name,
        is_node_resource=_is_extended(name),
        is_scalar_resource=True,
        aggregated_quantity=total,
        original_aggregated_quantity=total,
        topology_aware_quantity_list=parts,
        original_topology_aware_quantity_list=parts,
    )


def _countable(name: str, by_node: Mapping[int, int], machine: Machine) -> wire.AllocatableTopologyAwareResource:
    """What there is of a resource, in Katalyst's terms: CPUs, not millicores. Capacity is what the machine has."""
    unit = MILLIS_PER_CPU if name == CPU else 1
    usable = {node: amount / unit for node, amount in by_node.items()}
    has: ByNode = {}
    if name in (CPU, MEMORY):
        has = {node.id: len(node.cpus) if name == CPU else node.memory for node in machine.nodes.values()}
    whole = {node: max(has.get(node, 0), amount) for node, amount in usable.items()}
    return wire.AllocatableTopologyAwareResource(
        resource_name=name,
        is_node_resource=_is_extended(name),
        is_scalar_resource=True,
        aggregated_allocatable_quantity=sum(usable.values()),
        topology_aware_allocatable_quantity_list=_parts(usable),
        aggregated_capacity_quantity=sum(whole.values()),
        topology_aware_capacity_quantity_list=_parts(whole),
    )


def _parts(by_node: ByNode, device: str = "") -> Iterator[wire.TopologyAwareQuantity]:
    for node, amount in sorted(by_node.items()):
        yield wire.TopologyAwareQuantity(resource_value=amount, node=node, name=device)


def _is_extended(name: str) -> bool:
    """Whether the node's status has the resource from its plugin, and not from kubelet itself."""
    return name not in (CPU, MEMORY) and not name.startswith(HUGEPAGES)


def _hugepages(machine: Machine) -> dict[str, Mapping[int, int]]:
    """Bytes of huge pages by Kubernetes' resource name and NUMA node."""
    sizes = sorted({size for node in machine.nodes.values() for size in node.hugepages})
    return {
        f"{HUGEPAGES}{_in_binary(size)}": {
            node.id: size * node.hugepages[size] for node in machine.nodes.values() if node.hugepages.get(size)
        }
        for size in sizes
    }


def _in_binary(size: int) -> str:
    """A page size as Kubernetes writes it: "2Mi", "1Gi"."""
    return next(f"{size >> power}{unit}" for power, unit in _BINARY if size % (1 << power) == 0)


class _Lister(grpc.GenericRpcHandler):
    """The service v1.PodResourcesLister."""

    def __init__(self, book: Book, ready: asyncio.Event) -> None:
        self._book = book
        self._ready = ready
        self._methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            f"{PREFIX}List": _unary(self._list, wire.ListPodResourcesRequest),
            f"{PREFIX}GetAllocatableResources": _unary(self._allocatable, wire.AllocatableResourcesRequest),
            f"{PREFIX}Get": _unary(self._get, wire.GetPodResourcesRequest),
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._methods.get(handler_call_details.method)

    async def _list(self, _: wire.ListPodResourcesRequest, context: Context) -> wire.ListPodResourcesResponse:
        return wire.ListPodResourcesResponse(pod_resources=await self._pods(context))

    async def _allocatable(
        self, _: wire.AllocatableResourcesRequest, _context: Context
    ) -> wire.AllocatableResourcesResponse:
        return allocatable(self._book.planner.machine, self._book.quantities())

    async def _get(self, asked: wire.GetPodResourcesRequest, context: Context) -> wire.GetPodResourcesResponse:
        wanted = (asked.pod_namespace, asked.pod_name)
        pods = [each for each in await self._pods(context) if (each.namespace, each.name) == wanted]
        if not pods:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"pod {asked.pod_name} in namespace {asked.pod_namespace} not found"
            )
        return wire.GetPodResourcesResponse(pod_resources=pods[-1])

    async def _pods(self, context: Context) -> list[wire.PodResources]:
        """All pods, once it is known which of them still run."""
        if not self._ready.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "qrm has not compared its ledger with the runtime yet")
        return list_pods(self._book.ledger, self._book.planner.machine)


def _unary(method: Callable[[Any, Context], Awaitable[Message]], request: type[Message]) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        method, request_deserializer=request.FromString, response_serializer=lambda reply: reply.SerializeToString()
    )


@asynccontextmanager
async def pod_resources_socket(book: Book, ready: asyncio.Event, public: Path) -> AsyncIterator[None]:
    """Serve podresources v1 from `book` at `public`, for its owner only, while the context is open.

    Pods are told of once `ready` is set: a ledger that is behind would show CPUs as free that are in use.

    Raises:
        QrmError: the path is too long for a unix socket.
        OSError: the folder cannot be made, or not be written to.
    """
    if not public.parent.exists():
        private_directory(public.parent)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Lister(book, ready),))
    private = private_name(public)
    server.add_insecure_port(f"unix:{private}")
    await server.start()
    publish(private, public)
    try:
        yield
    finally:
        await server.stop(None)
