"""A client that talks to a CRI runtime the way kubelet does, without kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message

from qrm.demo.cgroups import PodCgroups
from qrm.demo.pods import ContainerSpec, Pod, container_config, sandbox_config
from qrm.errors import QrmError
from qrm.wire import cri_pb2

RUNTIME_SERVICE = "runtime.v1.RuntimeService"
IMAGE_SERVICE = "runtime.v1.ImageService"
MIN_GRACE = 2
"""Kubelet gives every container at least these seconds to end by itself."""

Reply = TypeVar("Reply", bound=Message)

# As kubelet dials (k8s.io/cri-client). Metadata has a wider limit, since grpc-go's is not as tight as grpc-core's.
CHANNEL_OPTIONS: Sequence[tuple[str, str | int]] = (
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3000),
    ("grpc.use_local_subchannel_pool", 1),
)
_CONNECT = "grpc.min_reconnect_backoff_ms"
"""How long an attempt to connect may take, in spite of its name."""


@dataclass(frozen=True, slots=True)
class RunningPod:
    """What the runtime made of a pod: its sandbox, and the container ids by name."""

    pod: Pod
    sandbox_id: str
    containers: Mapping[str, str]


class KubeletClient:
    """One connection to a CRI endpoint; an async context manager.

    Every call raises grpc.aio.AioRpcError with what the runtime answered.

    Args:
        endpoint: "unix:///path", as kubelet's --container-runtime-endpoint.
        timeout: Seconds that a call may take; kubelet's default is 120. RunPodSandbox may take twice as long,
            StopContainer and ExecSync as long as they are told to wait on top.
        cgroups: Where given, a pod's cgroup is made before its sandbox and removed after it, as kubelet does.
        connect: Seconds after which a connection must have been answered; kubelet's is 5. Who tests that a new process
            takes over, and not how fast this machine starts one, gives more.
    """

    def __init__(
        self, endpoint: str, *, timeout: float = 120.0, cgroups: PodCgroups | None = None, connect: float = 5.0
    ) -> None:
        if not endpoint.startswith("unix:///"):
            raise QrmError(f"{endpoint!r} is not a CRI endpoint", hint="write it like unix:///run/qrm/qrm.sock")
        options = (*CHANNEL_OPTIONS, (_CONNECT, round(connect * 1000)))
        self._channel = grpc.aio.insecure_channel(endpoint, options=options)
        self._timeout = timeout
        self._cgroups = cgroups
        self._cgroup_root = cgroups.cgroup_root if cgroups else ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connection; calls in flight are cancelled."""
        await self._channel.close()

    async def call(
        self,
        method: str,
        request: Message,
        reply: type[Reply],
        *,
        deadline: float | None = None,
        service: str = RUNTIME_SERVICE,
        wait: bool = False,
    ) -> Reply:
        """Any unary call by its name; the methods below are this with kubelet's arguments.

        Args:
            method: The last part of the gRPC path.
            request: What to send.
            reply: The type of the answer.
            deadline: Seconds from now; the client's timeout where not given.
            service: The first part of the gRPC path.
            wait: Wait for a runtime that does not listen, instead of failing at once as kubelet does.
        """
        rpc: grpc.aio.UnaryUnaryMultiCallable[Message, Reply] = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        seconds = self._timeout if deadline is None else deadline
        answer: Reply = await rpc(request, timeout=seconds, wait_for_ready=wait)
        return answer

    async def events(self) -> AsyncIterator[cri_pb2.ContainerEventResponse]:
        """What happens to containers, for as long as the runtime tells."""
        rpc: grpc.aio.UnaryStreamMultiCallable[Message, cri_pb2.ContainerEventResponse] = self._channel.unary_stream(
            f"/{RUNTIME_SERVICE}/GetContainerEvents",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=cri_pb2.ContainerEventResponse.FromString,
        )
        async for event in rpc(cri_pb2.GetEventsRequest()):
            yield event

    async def version(self, *, wait: bool = False) -> cri_pb2.VersionResponse:
        """What runs here, and whether it answers at all; `wait` for it after a restart."""
        return await self.call("Version", cri_pb2.VersionRequest(version="0.1.0"), cri_pb2.VersionResponse, wait=wait)

    async def has_image(self, image: str) -> bool:
        """Whether the runtime has `image`, so that it need not be pulled."""
        request = cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=image))
        reply = await self.call("ImageStatus", request, cri_pb2.ImageStatusResponse, service=IMAGE_SERVICE)
        return reply.HasField("image")

    async def run_pod(self, pod: Pod, *, attempt: int = 0) -> str:
        """Make the pod's cgroup and its sandbox; return the sandbox's id."""
        if self._cgroups:
            self._cgroups.ensure(pod)
        config = sandbox_config(pod, cgroup_root=self._cgroup_root, attempt=attempt)
        request = cri_pb2.RunPodSandboxRequest(config=config)
        reply = await self.call("RunPodSandbox", request, cri_pb2.RunPodSandboxResponse, deadline=2 * self._timeout)
        return reply.pod_sandbox_id

    async def create_container(self, sandbox_id: str, pod: Pod, spec: ContainerSpec, *, attempt: int = 0) -> str:
        """Create one container of `pod`; return its id."""
        request = cri_pb2.CreateContainerRequest(
            pod_sandbox_id=sandbox_id,
            config=container_config(pod, spec, attempt=attempt),
            sandbox_config=sandbox_config(pod, cgroup_root=self._cgroup_root),
        )
        return (await self.call("CreateContainer", request, cri_pb2.CreateContainerResponse)).container_id

    async def start_container(self, container_id: str) -> None:
        """Let a created container run."""
        request = cri_pb2.StartContainerRequest(container_id=container_id)
        await self.call("StartContainer", request, cri_pb2.StartContainerResponse)

    async def stop_container(self, container_id: str, *, grace: int = MIN_GRACE) -> None:
        """End a container: SIGTERM, and SIGKILL after `grace` seconds; 0 kills at once."""
        request = cri_pb2.StopContainerRequest(container_id=container_id, timeout=grace)
        await self.call("StopContainer", request, cri_pb2.StopContainerResponse, deadline=self._timeout + grace)

    async def remove_container(self, container_id: str) -> None:
        """Forget a container; one that runs is killed."""
        request = cri_pb2.RemoveContainerRequest(container_id=container_id)
        await self.call("RemoveContainer", request, cri_pb2.RemoveContainerResponse)

    async def update_resources(self, container_id: str, resources: cri_pb2.LinuxContainerResources) -> None:
        """Change a container's resources: `pods.container_resources` for a resize, or cpuset_cpus alone."""
        request = cri_pb2.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
        await self.call("UpdateContainerResources", request, cri_pb2.UpdateContainerResourcesResponse)

    async def update_pod_resources(self, sandbox_id: str, resources: cri_pb2.LinuxContainerResources) -> None:
        """Tell the runtime of a resized pod; older runtimes answer UNIMPLEMENTED."""
        overhead = cri_pb2.LinuxContainerResources()
        request = cri_pb2.UpdatePodSandboxResourcesRequest(
            pod_sandbox_id=sandbox_id, overhead=overhead, resources=resources
        )
        await self.call("UpdatePodSandboxResources", request, cri_pb2.UpdatePodSandboxResourcesResponse)

    async def stop_pod(self, sandbox_id: str) -> None:
        """End a sandbox and what runs in it."""
        request = cri_pb2.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self.call("StopPodSandbox", request, cri_pb2.StopPodSandboxResponse)

    async def remove_pod(self, sandbox_id: str) -> None:
        """Forget a sandbox and its containers."""
        request = cri_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self.call("RemovePodSandbox", request, cri_pb2.RemovePodSandboxResponse)

    async def pods(self, criteria: cri_pb2.PodSandboxFilter | None = None) -> list[cri_pb2.PodSandbox]:
        """The sandboxes that meet `criteria`, or all."""
        request = cri_pb2.ListPodSandboxRequest(filter=criteria)
        return list((await self.call("ListPodSandbox", request, cri_pb2.ListPodSandboxResponse)).items)

    async def containers(self, criteria: cri_pb2.ContainerFilter | None = None) -> list[cri_pb2.Container]:
        """The containers that meet `criteria`, or all, ended ones too."""
        request = cri_pb2.ListContainersRequest(filter=criteria)
        return list((await self.call("ListContainers", request, cri_pb2.ListContainersResponse)).containers)

    async def pod_status(self, sandbox_id: str, *, verbose: bool = False) -> cri_pb2.PodSandboxStatusResponse:
        """A sandbox's status; verbose adds the runtime's own view as JSON in `info["info"]`."""
        request = cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=verbose)
        return await self.call("PodSandboxStatus", request, cri_pb2.PodSandboxStatusResponse)

    async def container_status(self, container_id: str, *, verbose: bool = False) -> cri_pb2.ContainerStatusResponse:
        """A container's status; verbose adds the runtime's own view as JSON in `info["info"]`."""
        request = cri_pb2.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        return await self.call("ContainerStatus", request, cri_pb2.ContainerStatusResponse)

    async def exec_sync(self, container_id: str, command: Sequence[str], *, wait: int = 30) -> cri_pb2.ExecSyncResponse:
        """Run a command in a container, for at most `wait` seconds."""
        request = cri_pb2.ExecSyncRequest(container_id=container_id, cmd=command, timeout=wait)
        return await self.call("ExecSync", request, cri_pb2.ExecSyncResponse, deadline=self._timeout + wait)

    async def start_pod(self, pod: Pod) -> RunningPod:
        """Sandbox and containers, one after the other, as kubelet brings up a pod; a failure leaves what is there."""
        sandbox_id = await self.run_pod(pod)
        await self.pod_status(sandbox_id)
        containers = {}
        for spec in pod.containers:
            containers[spec.name] = await self.create_container(sandbox_id, pod, spec)
            await self.start_container(containers[spec.name])
        return RunningPod(pod, sandbox_id, containers)

    async def end_pod(self, running: RunningPod, *, grace: int = MIN_GRACE) -> None:
        """The way of a deleted pod: containers together, the sandbox, then all of it is forgotten, cgroup included."""
        await asyncio.gather(*(self.stop_container(each, grace=grace) for each in running.containers.values()))
        await self.stop_pod(running.sandbox_id)
        for container_id in running.containers.values():
            await self.remove_container(container_id)
        await self.remove_pod(running.sandbox_id)
        if self._cgroups:
            await asyncio.to_thread(self._cgroups.remove, running.pod)
