"""Our own calls to the container runtime, typed. What kubelet calls never passes here."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf import json_format
from google.protobuf.message import Message

from qrm.cpuset import CPUSet, NodeSet
from qrm.enforcement.channel import CallError
from qrm.enforcement.texts import lenient
from qrm.errors import ParseError
from qrm.wire import cri_pb2 as cri

SERVICE = "/runtime.v1.RuntimeService/"
TIMEOUT = 30.0
"""Seconds for one of our calls; kubelet allows two minutes for its own."""
MAX_MESSAGE = 64 << 20
"""Bytes of the longest reply. The runtime itself ends at 16 MiB; the margin costs nothing."""

_RETIRED = "this process has retired, another one serves"

Reply = TypeVar("Reply", bound=Message)


@dataclass(frozen=True, slots=True)
class SandboxDetails:
    """What a verbose PodSandboxStatus tells besides the status."""

    status: cri.PodSandboxStatus
    pid: int
    """Of the pod's first process; 0 where there is none, or the runtime does not tell."""
    netns: str
    """The path of its network namespace; "" for the host's."""


@dataclass(frozen=True, slots=True)
class ContainerDetails:
    """What a verbose ContainerStatus tells besides the status; parts that a runtime leaves out are empty."""

    status: cri.ContainerStatus
    pid: int
    """0 unless it runs."""
    cpus: CPUSet
    """The cpuset in the runtime's own spec; empty for none."""
    mems: NodeSet
    """The memory nodes there; empty for none."""
    asked: cri.LinuxContainerResources
    """The resources as they were at creation."""
    unified: Mapping[str, str]
    """The cgroup v2 files in the runtime's own spec."""


class RuntimeClient:
    """Typed calls over one channel. Every method raises CallError for any status but OK."""

    def __init__(self, channel: grpc.aio.Channel, timeout: float = TIMEOUT) -> None:
        self._channel = channel
        self._timeout = timeout
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._retired = False

    async def retire(self, seconds: float) -> None:
        """Make no more calls: they fail as if the runtime were away. Those under way may end, within `seconds`."""
        self._retired = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)

    async def version(self) -> cri.VersionResponse:
        """The runtime's name and version."""
        return await self._call("Version", cri.VersionRequest(version="0.1.0"), cri.VersionResponse)

    async def list_containers(self, sandbox_id: str = "") -> Sequence[cri.Container]:
        """All containers, or those of one sandbox."""
        request = cri.ListContainersRequest()
        if sandbox_id:
            request.filter.pod_sandbox_id = sandbox_id
        return (await self._call("ListContainers", request, cri.ListContainersResponse)).containers

    async def list_sandboxes(self) -> Sequence[cri.PodSandbox]:
        """All sandboxes."""
        return (await self._call("ListPodSandbox", cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse)).items

    async def sandbox_config(self, sandbox_id: str) -> cri.PodSandboxConfig:
        """What a sandbox was created with, as far as the runtime tells."""
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        reply = await self._call("PodSandboxStatus", request, cri.PodSandboxStatusResponse)
        config = cri.PodSandboxConfig(
            metadata=reply.status.metadata, labels=reply.status.labels, annotations=reply.status.annotations
        )
        told = _part(_info(reply.info), "config", "linux")
        config.linux.cgroup_parent = _text(told, "cgroup_parent")
        config.linux.resources.CopyFrom(_resources(_part(told, "resources")))
        return config

    async def sandbox(self, sandbox_id: str) -> SandboxDetails:
        """What a sandbox's process and network are."""
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        reply = await self._call("PodSandboxStatus", request, cri.PodSandboxStatusResponse)
        info = _info(reply.info)
        pid = _pid(info)
        return SandboxDetails(reply.status, pid, _netns(reply.status, info, pid))

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Undo a RunPodSandbox: stop and remove."""
        stop = cri.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self._call("StopPodSandbox", stop, cri.StopPodSandboxResponse)
        remove = cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self._call("RemovePodSandbox", remove, cri.RemovePodSandboxResponse)

    async def container(self, container_id: str) -> ContainerDetails:
        """Everything about one container."""
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
        reply = await self._call("ContainerStatus", request, cri.ContainerStatusResponse)
        info = _info(reply.info)
        spec = _part(info, "runtimeSpec", "linux", "resources")
        asked = _part(info, "config", "linux", "resources")
        cpu = _part(spec, "cpu")
        try:
            cpus, mems = CPUSet.parse(_text(cpu, "cpus")), NodeSet.parse(_text(cpu, "mems"))
        except ParseError:
            cpus, mems = CPUSet(), NodeSet()
        unified = {str(key): str(value) for key, value in _part(spec, "unified").items()}
        return ContainerDetails(reply.status, _pid(info), cpus, mems, _resources(asked), unified)

    async def update(self, container_id: str, resources: cri.LinuxContainerResources) -> None:
        """Change a container's resources; zero and empty fields stay as they are."""
        request = cri.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
        await self._call("UpdateContainerResources", request, cri.UpdateContainerResourcesResponse)

    async def _call(self, method: str, request: Message, reply: type[Reply]) -> Reply:
        if self._retired:
            raise CallError(grpc.StatusCode.UNAVAILABLE, _RETIRED)
        call = self._channel.unary_unary(
            SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=partial(lenient, reply),
        )
        self._calls += 1
        self._idle.clear()
        try:
            answer: Reply = await call(request, timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            raise CallError.of(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._retired and task is not None and not task.cancelling():  # by the channel, which was closed
                raise CallError(grpc.StatusCode.UNAVAILABLE, _RETIRED) from None
            raise
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()
        return answer


def _netns(status: cri.PodSandboxStatus, info: dict[str, Any], pid: int) -> str:
    """The path in the runtime's own spec, else the one of the pod's first process; "" for host networking."""
    namespaces = _part(info, "runtimeSpec", "linux").get("namespaces")
    listed = [each for each in namespaces if isinstance(each, dict)] if isinstance(namespaces, list) else []
    paths = [_text(each, "path") for each in listed if each.get("type") == "network"]
    if paths and paths[0]:
        return paths[0]
    if status.linux.namespaces.options.network == cri.NamespaceMode.NODE or not pid:
        return ""
    return f"/proc/{pid}/ns/net"


def _info(info: Mapping[str, str]) -> dict[str, Any]:
    """Containerd's verbose JSON; an empty one where the runtime has none. Other runtimes' may have any shape."""
    try:
        parsed = json.loads(info.get("info", "{}"))
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _part(whole: object, *keys: str) -> dict[str, Any]:
    """The object at `keys`; an empty one where there is none."""
    for key in keys:
        whole = whole.get(key) if isinstance(whole, dict) else None
    return whole if isinstance(whole, dict) else {}


def _text(part: Mapping[str, Any], key: str) -> str:
    found = part.get(key)
    return found if isinstance(found, str) else ""


def _pid(info: Mapping[str, Any]) -> int:
    found = info.get("pid")
    return found if isinstance(found, int) and found > 0 else 0


def _resources(told: dict[str, Any]) -> cri.LinuxContainerResources:
    """The resources in containerd's JSON, which spells the fields as the protocol does."""
    made = cri.LinuxContainerResources()
    with contextlib.suppress(json_format.ParseError):
        json_format.ParseDict(told, made, ignore_unknown_fields=True)
    return made
