"""One of our allocators as a QRM plugin, for Katalyst's kubelet or for another qrm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message

from qrm.allocation.remote.allocations import to_wire_allocation
from qrm.allocation.remote.calls import REGISTRATION, RESOURCE_PLUGIN
from qrm.allocation.remote.convert import KIND, VERSION, from_wire_hint, from_wire_request, to_wire_hint
from qrm.allocation.remote.errors import PluginError
from qrm.allocation.remote.shelf import Shelf
from qrm.allocation.remote.sockets import appear, bind_name, vanish
from qrm.allocation.remote.stock import held_amounts, stock
from qrm.allocator import MEMORY, Allocator, BadRequest, ContainerKey, Holding, QosLevel, ResourceRequest, TopologyHint
from qrm.errors import QrmError
from qrm.pods.declared import CPU
from qrm.topology.machine import Machine
from qrm.wire import plugin_registration_pb2 as registration
from qrm.wire import resource_plugin_pb2 as wire

log = structlog.get_logger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
_Answer = Callable[[Any], Message]


class Service:
    """The answers of a plugin, as functions from message to message."""

    def __init__(self, shelf: Shelf, default: QosLevel) -> None:
        self.shelf = shelf
        self._default = default

    @property
    def resource(self) -> str:
        """What it allocates."""
        return self.shelf.allocator.resource

    def hints(self, message: wire.ResourceRequest) -> wire.ResourceHintsResponse:
        """GetTopologyHints. Nowhere is an error, since an empty list would mean anywhere."""
        offered = self.shelf.hints(self._request(message))
        reply = wire.ResourceHintsResponse(
            **_about(message), labels=message.labels, annotations=message.annotations, resource_name=self.resource
        )
        reply.resource_hints[self.resource].hints.extend(map(to_wire_hint, offered))
        return reply

    def allocate(self, message: wire.ResourceRequest) -> wire.ResourceAllocationResponse:
        """Allocate."""
        request = self._request(message)
        hint = self._hint(message)
        allocation = self.shelf.allocate(request, hint)
        log.info("allocated", pod=str(request.pod), container=request.container, what=allocation.why)
        reply = wire.ResourceAllocationResponse(
            **_about(message), labels=message.labels, annotations=message.annotations, resource_name=self.resource
        )
        found = to_wire_allocation(self.resource, allocation, hint)
        reply.allocation_result.resource_allocation[self.resource].CopyFrom(found)
        return reply

    def remove_pod(self, message: wire.RemovePodRequest) -> wire.RemovePodResponse:
        """RemovePod."""
        self.shelf.remove_pod(message.pod_uid)
        return wire.RemovePodResponse()

    def allocations(self, _: wire.GetResourcesAllocationRequest) -> wire.GetResourcesAllocationResponse:
        """GetResourcesAllocation: of all containers, as it is now."""
        reply = wire.GetResourcesAllocationResponse()
        for key, held in self.shelf.holdings.items():
            if key.container:
                found = to_wire_allocation(self.resource, held.allocation)
                containers = reply.pod_resources[key.pod_uid].container_resources
                containers[key.container].resource_allocation[self.resource].CopyFrom(found)
        return reply

    def held(self, message: wire.GetTopologyAwareResourcesRequest) -> wire.GetTopologyAwareResourcesResponse:
        """GetTopologyAwareResources; an error for a container that holds nothing, as Katalyst's plugins have it."""
        held = self.shelf.holdings.get(ContainerKey(message.pod_uid, message.container_name))
        if held is None or not message.container_name:
            raise BadRequest(f"pod {message.pod_uid!r} has no container {message.container_name!r} here")
        pod = held.request.pod
        reply = wire.GetTopologyAwareResourcesResponse(pod_uid=pod.uid, pod_name=pod.name, pod_namespace=pod.namespace)
        found = reply.container_topology_aware_resources
        found.container_name = message.container_name
        for resource, each in held_amounts(self.resource, held.allocation, self.shelf.machine).items():
            found.allocated_resources[resource].CopyFrom(each)
        return reply

    def stock(
        self, _: wire.GetTopologyAwareAllocatableResourcesRequest
    ) -> wire.GetTopologyAwareAllocatableResourcesResponse:
        """GetTopologyAwareAllocatableResources."""
        reply = wire.GetTopologyAwareAllocatableResourcesResponse()
        quantities = self.shelf.allocator.allocatable(self.shelf.state)
        reply.allocatable_resources[self.resource].CopyFrom(stock(self.resource, quantities, self.shelf.machine))
        return reply

    def options(self, _: wire.Empty) -> wire.ResourcePluginOptions:
        """GetResourcePluginOptions, as Katalyst's own plugins answer."""
        return wire.ResourcePluginOptions(with_topology_alignment=True, need_reconcile=self.resource in (CPU, MEMORY))

    def pre_start(self, _: wire.PreStartContainerRequest) -> wire.PreStartContainerResponse:
        """PreStartContainer: nothing to do."""
        return wire.PreStartContainerResponse()

    def info(self, _: registration.InfoRequest) -> registration.PluginInfo:
        """GetInfo; without an endpoint it is the socket that was asked."""
        return registration.PluginInfo(type=KIND, name=self.resource, supported_versions=[VERSION])

    def registered(self, message: registration.RegistrationStatus) -> registration.RegistrationStatusResponse:
        """NotifyRegistrationStatus."""
        if message.plugin_registered:
            log.info("registered", resource=self.resource)
        else:
            log.error("registration refused", resource=self.resource, error=message.error)
        return registration.RegistrationStatusResponse()

    def _request(self, message: wire.ResourceRequest) -> ResourceRequest:
        if message.resource_name not in ("", self.resource):
            raise BadRequest(f"this is the plugin for {self.resource}, not for {message.resource_name}")
        return from_wire_request(message, self._default)

    def _hint(self, message: wire.ResourceRequest) -> TopologyHint | None:
        if not message.HasField("hint") or not message.hint.nodes:
            return None
        try:
            return from_wire_hint(message.hint, self.shelf.machine)
        except PluginError as error:
            raise BadRequest(f"the hint: {error.message}", hint=error.hint) from None


@asynccontextmanager
async def serve_plugin(
    allocator: Allocator,
    machine: Machine,
    directory: Path,
    *,
    default: QosLevel = QosLevel.SHARED,
    holdings: Mapping[ContainerKey, Holding] | None = None,
) -> AsyncIterator[tuple[Path, Shelf]]:
    """Serve `allocator` on `<directory>/qrm-<resource>.sock`; gives the socket's path and what is held.

    Args:
        allocator: What answers.
        machine: The machine that it allocates on.
        directory: Where kubelet's plugin watcher, or another qrm, looks for sockets.
        default: The level of pods that name none.
        holdings: What is held already.

    Raises:
        QrmError: The socket cannot be made.
    """
    path = directory / f"qrm-{allocator.resource.rpartition('/')[2]}.sock"
    shelf = Shelf(allocator, machine, holdings)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(_handlers(Service(shelf, default)))
    try:
        bound = bind_name(path)
        server.add_insecure_port(f"unix:{bound}")
        await server.start()
        mine = appear(bound, path)
    except (RuntimeError, OSError, QrmError) as error:
        await server.stop(None)
        raise QrmError(f"cannot serve on {path}: {error}") from error
    log.info("serving", resource=allocator.resource, socket=str(path))
    try:
        yield path, shelf
    finally:
        vanish(path, mine)
        await server.stop(1.0)


def _handlers(service: Service) -> tuple[grpc.GenericRpcHandler, ...]:
    """Both gRPC services; the pod-scoped calls are UNIMPLEMENTED, as those of Katalyst's plugins."""
    plugin = {
        "GetTopologyHints": _handler(service.hints, wire.ResourceRequest),
        "Allocate": _handler(service.allocate, wire.ResourceRequest),
        "RemovePod": _handler(service.remove_pod, wire.RemovePodRequest),
        "GetResourcesAllocation": _handler(service.allocations, wire.GetResourcesAllocationRequest),
        "GetTopologyAwareResources": _handler(service.held, wire.GetTopologyAwareResourcesRequest),
        "GetTopologyAwareAllocatableResources": _handler(
            service.stock, wire.GetTopologyAwareAllocatableResourcesRequest
        ),
        "GetResourcePluginOptions": _handler(service.options, wire.Empty),
        "PreStartContainer": _handler(service.pre_start, wire.PreStartContainerRequest),
    }
    watched = {
        "GetInfo": _handler(service.info, registration.InfoRequest),
        "NotifyRegistrationStatus": _handler(service.registered, registration.RegistrationStatus),
    }
    return (
        grpc.method_handlers_generic_handler(RESOURCE_PLUGIN.strip("/"), plugin),
        grpc.method_handlers_generic_handler(REGISTRATION.strip("/"), watched),
    )


def _handler(answer: _Answer, request: type[Message]) -> grpc.RpcMethodHandler[Any, Any]:
    """A method that `answer`s; between reading and writing what is held there is no await."""

    async def serve(message: Any, context: Context) -> Message:
        try:
            return answer(message)
        except BadRequest as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, error)
        except QrmError as error:
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, error)
        except Exception as error:
            log.exception("plugin failed")
            await _abort(context, grpc.StatusCode.INTERNAL, error)

    return grpc.unary_unary_rpc_method_handler(
        serve, request_deserializer=request.FromString, response_serializer=lambda reply: reply.SerializeToString()
    )


async def _abort(context: Context, code: grpc.StatusCode, error: Exception) -> NoReturn:
    await context.abort(code, str(error) or type(error).__name__)
    raise AssertionError("abort raises")


def _about(message: wire.ResourceRequest) -> dict[str, Any]:
    """The fields that an answer repeats."""
    return {
        "pod_uid": message.pod_uid,
        "pod_namespace": message.pod_namespace,
        "pod_name": message.pod_name,
        "container_name": message.container_name,
        "container_type": message.container_type,
        "container_index": message.container_index,
        "pod_role": message.pod_role,
        "pod_type": message.pod_type,
        "native_qos_class": message.native_qos_class,
    }
