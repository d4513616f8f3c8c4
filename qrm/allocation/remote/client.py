"""A plugin as qrm sees it: typed calls over its socket, every answer checked against the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import Message

from qrm.allocation.remote.allocations import RemoteAllocation, from_wire_allocation
from qrm.allocation.remote.calls import RESOURCE_PLUGIN, call
from qrm.allocation.remote.convert import from_wire_amount, from_wire_hint, to_wire_pod_request, to_wire_request
from qrm.allocation.remote.errors import PluginError, PluginRefused
from qrm.allocator import BadRequest, ContainerKey, DoesNotFit, PodIdentity, ResourceRequest, TopologyHint
from qrm.enforcement.channel import open_channel
from qrm.topology.machine import Machine
from qrm.wire import resource_plugin_pb2 as wire

MAX_MESSAGE = 64 << 20
"""Bytes of an answer; the allocations of a thousand containers are far below one."""

Reply = TypeVar("Reply", bound=Message)


@dataclass(frozen=True, slots=True)
class Options:
    """What a plugin says about itself."""

    pre_start: bool = False
    """It wants to be told before each container's start."""
    alignment: bool = False
    """It has NUMA nodes to prefer."""
    reconcile: bool = False
    """Its allocations change without being asked."""

    @classmethod
    def of(cls, message: wire.ResourcePluginOptions) -> Options:
        """The options in `message`."""
        return cls(message.pre_start_required, message.with_topology_alignment, message.need_reconcile)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait for an answer; the protocol's own values."""

    call: float = 10.0
    pre_start: float = 30.0


@dataclass(frozen=True, slots=True)
class Part:
    """An amount of a resource at one place."""

    level: str
    """`numa` or `socket`."""
    node: int
    amount: int
    """In our unit (CPU: millicores)."""
    name: str = ""
    """The object that provides it, such as a NIC."""
    kind: str = ""
    """What this object is, such as `NIC`."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of a resource, in all and by place."""

    total: int = 0
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Stock:
    """How much there is of a resource for containers, and how much at all."""

    allocatable: Amount = field(default_factory=Amount)
    capacity: Amount = field(default_factory=Amount)


class Plugin:
    """One registered plugin.

    Every call raises PluginUnavailable without an answer in time, and PluginError for an answer that cannot be used.

    Args:
        resource: What it allocates: `cpu`, `memory`, or an extended resource.
        endpoint: Its socket.
        options: What it says about itself.
        machine: The machine as it is now.
        timeouts: How long to wait.
        original: See `convert.to_wire_request`.
    """

    def __init__(
        self,
        resource: str,
        endpoint: str,
        options: Options,
        machine: Callable[[], Machine],
        *,
        timeouts: Timeouts | None = None,
        original: bool = True,
    ) -> None:
        self.resource = resource
        self.endpoint = endpoint
        self.options = options
        self.original = original
        self._machine = machine
        self._timeouts = timeouts or Timeouts()
        self._who = f"plugin {resource} ({endpoint})"
        self._channel = open_channel(endpoint, MAX_MESSAGE)

    async def hints(self, request: ResourceRequest) -> Sequence[TopologyHint] | None:
        """The NUMA node sets on which the request could be served, as the plugin orders them; None for no preference.

        The protocol cannot tell an empty list from none: both are no preference, and "nowhere" is an error.

        Raises:
            DoesNotFit: The plugin has no room; the message has its words.
            BadRequest: The plugin finds the request wrong in itself.
        """
        if not self.options.alignment:
            return None
        message = to_wire_request(request, self.resource, original=self.original)
        reply = await self._judged("GetTopologyHints", message, wire.ResourceHintsResponse)
        return self._offered("GetTopologyHints", reply.resource_hints)

    async def pod_hints(self, request: ResourceRequest) -> Sequence[TopologyHint] | None:
        """As `hints`, for the pod as a whole, of which `request` has the totals.

        A plugin that knows no pods, as Katalyst's own, is asked as if the pod were one container.
        """
        if not self.options.alignment:
            return None
        message = to_wire_pod_request(request, self.resource, original=self.original)
        try:
            reply = await self._judged("GetPodTopologyHints", message, wire.PodResourceHintsResponse)
        except PluginRefused:
            return await self.hints(request)
        return self._offered("GetPodTopologyHints", reply.resource_hints)

    async def allocate_for_pod(
        self, request: ResourceRequest, hint: TopologyHint | None
    ) -> Mapping[str, RemoteAllocation]:
        """What the pod as a whole gets; empty where the plugin knows no pods. Raises as `allocate`."""
        message = to_wire_pod_request(request, self.resource, hint, original=self.original)
        try:
            reply = await self._judged("AllocateForPod", message, wire.PodResourceAllocationResponse)
        except PluginRefused:
            return {}
        return self._allocations("AllocateForPod", reply.allocation_result, request)

    async def allocate(self, request: ResourceRequest, hint: TopologyHint | None) -> Mapping[str, RemoteAllocation]:
        """What the container gets, by resource: the plugin's own, and others that come with it.

        Empty where the plugin leaves the container alone, as Katalyst's do with init containers.

        Raises:
            DoesNotFit, BadRequest: As `hints`.
        """
        message = to_wire_request(request, self.resource, hint, original=self.original)
        reply = await self._judged("Allocate", message, wire.ResourceAllocationResponse)
        return self._allocations("Allocate", reply.allocation_result, request)

    async def pre_start(self, pod: PodIdentity, container: str) -> None:
        """Tell that the container is about to start, if the plugin wants to know."""
        if self.options.pre_start:
            message = wire.PreStartContainerRequest(
                pod_uid=pod.uid, pod_namespace=pod.namespace, pod_name=pod.name, container_name=container
            )
            await self._call("PreStartContainer", message, wire.PreStartContainerResponse, self._timeouts.pre_start)

    async def remove_pod(self, uid: str) -> None:
        """Tell that the pod is gone; to be repeated until it succeeds."""
        await self._call("RemovePod", wire.RemovePodRequest(pod_uid=uid), wire.RemovePodResponse)

    async def resources_allocation(
        self, requests: Mapping[ContainerKey, ResourceRequest] | None = None
    ) -> Mapping[ContainerKey, Mapping[str, RemoteAllocation]]:
        """What all containers hold now, by resource; `requests` as far as they are known."""
        asked, known = wire.GetResourcesAllocationRequest(), requests or {}
        reply = await self._call("GetResourcesAllocation", asked, wire.GetResourcesAllocationResponse)
        found = {}
        for uid, containers in reply.pod_resources.items():
            for name, held in containers.container_resources.items():
                key = ContainerKey(uid, name)
                found[key] = self._allocations(f"GetResourcesAllocation for {uid}/{name}", held, known.get(key))
        return found

    async def topology_aware_resources(self, uid: str, container: str) -> Mapping[str, Amount]:
        """What one container holds, by resource and place."""
        message = wire.GetTopologyAwareResourcesRequest(pod_uid=uid, container_name=container)
        method = "GetTopologyAwareResources"
        reply = await self._call(method, message, wire.GetTopologyAwareResourcesResponse)
        held = reply.container_topology_aware_resources.allocated_resources
        return {
            name: self._amount(method, name, each.aggregated_quantity, each.topology_aware_quantity_list)
            for name, each in held.items()
        }

    async def topology_aware_allocatable(self) -> Mapping[str, Stock]:
        """How much there is of each of the plugin's resources."""
        method = "GetTopologyAwareAllocatableResources"
        message = wire.GetTopologyAwareAllocatableResourcesRequest()
        reply = await self._call(method, message, wire.GetTopologyAwareAllocatableResourcesResponse)
        return {
            name: Stock(
                self._amount(
                    method, name, each.aggregated_allocatable_quantity, each.topology_aware_allocatable_quantity_list
                ),
                self._amount(
                    method, name, each.aggregated_capacity_quantity, each.topology_aware_capacity_quantity_list
                ),
            )
            for name, each in reply.allocatable_resources.items()
        }

    async def ask_options(self) -> Options:
        """What the plugin says about itself now."""
        return Options.of(await self._call("GetResourcePluginOptions", wire.Empty(), wire.ResourcePluginOptions))

    async def close(self) -> None:
        """Give up the connection; calls in flight raise PluginUnavailable."""
        await self._channel.close()

    async def _call(self, method: str, request: Message, reply: type[Reply], seconds: float | None = None) -> Reply:
        seconds = self._timeouts.call if seconds is None else seconds
        return await call(self._channel, self._who, RESOURCE_PLUGIN + method, request, reply, seconds=seconds)

    def _offered(self, method: str, hints: Mapping[str, wire.ListOfTopologyHints]) -> Sequence[TopologyHint] | None:
        offered = hints[self.resource].hints if self.resource in hints else ()
        machine = self._machine()
        try:
            return [from_wire_hint(each, machine) for each in offered] or None
        except PluginError as error:
            raise self._unusable(method, "", error) from None

    async def _judged(self, method: str, request: Message, reply: type[Reply]) -> Reply:
        """A call whose refusal is about the request."""
        try:
            return await self._call(method, request, reply)
        except PluginRefused as refused:
            if refused.broken:
                raise
            kind = BadRequest if refused.contradiction else DoesNotFit
            raise kind(f"{self.resource} plugin: {refused.text}") from None

    def _allocations(
        self, method: str, held: wire.ResourceAllocation, request: ResourceRequest | None
    ) -> dict[str, RemoteAllocation]:
        machine, found = self._machine(), {}
        for name, each in sorted(held.resource_allocation.items()):
            try:
                allocation = from_wire_allocation(name, each, machine, request)
            except PluginError as error:
                raise self._unusable(method, name, error) from None
            if allocation is not None:
                found[name] = allocation
        return found

    def _amount(self, method: str, name: str, total: float, parts: Sequence[wire.TopologyAwareQuantity]) -> Amount:
        try:
            return Amount(
                from_wire_amount(name, total),
                tuple(
                    Part(
                        level="socket" if part.topology_level == wire.SOCKET else "numa",
                        node=part.node,
                        amount=from_wire_amount(name, part.resource_value),
                        name=part.name,
                        kind=part.type,
                    )
                    for part in parts
                ),
            )
        except ValueError as error:
            raise self._unusable(method, name, PluginError(str(error))) from None

    def _unusable(self, method: str, resource: str, error: PluginError) -> PluginError:
        about = f"{resource}: " if resource else ""
        return PluginError(f"{self._who} answered {method} with {about}{error.message}", hint=error.hint)
