"""The state of the fake runtime and what each CRI call does to it. Nothing here waits: every call is atomic.

States, error codes and texts are containerd's, which the tests hold it to; where releases differ, `release` decides.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import grpc

from qrm.demo.fake_cgroups import CgroupRefusal, CgroupTree
from qrm.demo.fake_records import FakeContainer, FakePod
from qrm.wire import cri_pb2

_KILLED = 137
_START_FAILED = 128
_STOPS_ANYTHING = (1, 7)
"""The first release for which what is not there is stopped."""
_VERSION_2 = (2, 0)


class Refusal(Exception):
    """An error reply."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(slots=True)
class Store:
    """All pods and containers by id, in the order of their making."""

    cgroups: CgroupTree
    release: tuple[int, int]
    """Which containerd this is like: (1, 6), ..."""
    pods: dict[str, FakePod] = field(default_factory=dict)
    containers: dict[str, FakeContainer] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    """Ids that lists leave out."""
    _numbers: Iterator[int] = field(default_factory=count)

    def run_pod(self, request: cri_pb2.RunPodSandboxRequest) -> cri_pb2.RunPodSandboxResponse:
        """RunPodSandbox."""
        config = cri_pb2.PodSandboxConfig()
        config.CopyFrom(request.config)
        name = _pod_name(config.metadata)
        for other in self.pods.values():
            if other.name == name:
                raise self._reserved("sandbox", name, other.id)
        pod_id = self._new_id()
        cgroup = f"{config.linux.cgroup_parent}/{pod_id}"
        pid = self.cgroups.start(cgroup, cri_pb2.LinuxContainerResources(cpu_shares=2))
        resources = cri_pb2.LinuxContainerResources()
        resources.CopyFrom(config.linux.resources)
        self.pods[pod_id] = FakePod(
            pod_id, name, request.runtime_handler, config, cgroup, pid, time.time_ns(), resources
        )
        return cri_pb2.RunPodSandboxResponse(pod_sandbox_id=pod_id)

    def stop_pod(self, request: cri_pb2.StopPodSandboxRequest) -> cri_pb2.StopPodSandboxResponse:
        """StopPodSandbox: kills what runs in it."""
        pod = self.pods.get(request.pod_sandbox_id)
        if pod is None:
            if self.release >= _STOPS_ANYTHING:
                return cri_pb2.StopPodSandboxResponse()
            raise _not_found(f'an error occurred when try to find sandbox "{request.pod_sandbox_id}": not found')
        for container in self._containers_of(pod):
            self.exit(container, _KILLED)
        if pod.pid:
            self.cgroups.end(pod.cgroup, pod.pid)
            pod.pid = 0
        return cri_pb2.StopPodSandboxResponse()

    def remove_pod(self, request: cri_pb2.RemovePodSandboxRequest) -> cri_pb2.RemovePodSandboxResponse:
        """RemovePodSandbox: stops it first; of an unknown id there is nothing to remove."""
        pod = self.pods.get(request.pod_sandbox_id)
        if pod:
            self.stop_pod(cri_pb2.StopPodSandboxRequest(pod_sandbox_id=pod.id))
            for container in self._containers_of(pod):
                del self.containers[container.id]
            del self.pods[pod.id]
        return cri_pb2.RemovePodSandboxResponse()

    def pod_status(self, request: cri_pb2.PodSandboxStatusRequest) -> cri_pb2.PodSandboxStatusResponse:
        """PodSandboxStatus."""
        pod = self.pods.get(request.pod_sandbox_id)
        if pod is None:
            raise _not_found("an error occurred when try to find sandbox: not found")
        return pod.status(verbose=request.verbose)

    def update_pod(
        self, request: cri_pb2.UpdatePodSandboxResourcesRequest
    ) -> cri_pb2.UpdatePodSandboxResourcesResponse:
        """UpdatePodSandboxResources: is noted, and touches no cgroup."""
        pod = self.pods.get(request.pod_sandbox_id)
        if pod is None:
            raise _not_found("failed to find sandbox: not found")
        pod.resources.CopyFrom(request.resources)
        return cri_pb2.UpdatePodSandboxResourcesResponse()

    def list_pods(self, request: cri_pb2.ListPodSandboxRequest) -> cri_pb2.ListPodSandboxResponse:
        """ListPodSandbox."""
        shown = (pod for pod in self.pods.values() if pod.id not in self.hidden)
        items = [pod.item() for pod in shown if pod.meets(request.filter)]
        return cri_pb2.ListPodSandboxResponse(items=items)

    def create(self, request: cri_pb2.CreateContainerRequest) -> cri_pb2.CreateContainerResponse:
        """CreateContainer: a record only; cgroup and process come with the start."""
        pod = self.pods.get(request.pod_sandbox_id)
        if pod is None:
            raise _not_found(f'failed to find sandbox id "{request.pod_sandbox_id}": not found')
        if not pod.pid and self.release < _VERSION_2:
            raise _not_found(f"failed to get sandbox container task: no running task found: task {pod.id} not found")
        config = cri_pb2.ContainerConfig()
        config.CopyFrom(request.config)
        metadata = config.metadata
        name = f"{metadata.name}_{_pod_name(pod.config.metadata).rpartition('_')[0]}_{metadata.attempt}"
        for other in self._containers_of(pod):
            if other.name == name:
                raise self._reserved("container", name, other.id)
        resources = cri_pb2.LinuxContainerResources(oom_score_adj=config.linux.resources.oom_score_adj)
        _merge(resources, config.linux.resources)
        container_id = self._new_id()
        self.containers[container_id] = FakeContainer(
            container_id,
            pod.id,
            name,
            config,
            cgroup=f"{request.sandbox_config.linux.cgroup_parent}/{container_id}",
            created_at=time.time_ns(),
            resources=resources,
        )
        return cri_pb2.CreateContainerResponse(container_id=container_id)

    def start(self, request: cri_pb2.StartContainerRequest) -> cri_pb2.StartContainerResponse:
        """StartContainer: what cannot be started has exited."""
        container = self._container(request.container_id)
        if container.state != cri_pb2.CONTAINER_CREATED:
            state = cri_pb2.ContainerState.Name(container.state)
            raise _unknown(
                f'failed to set starting state for container "{container.id}": container is in {state} state'
            )
        container.started_at = time.time_ns()
        try:
            container.pid = self.cgroups.start(container.cgroup, container.resources)
        except CgroupRefusal as refusal:
            container.state, container.exit_code = cri_pb2.CONTAINER_EXITED, _START_FAILED
            container.finished_at = time.time_ns()
            container.reason, container.message = "StartError", f"failed to create containerd task: {refusal}"
            raise _unknown(f"failed to create containerd task: {refusal}") from refusal
        container.state = cri_pb2.CONTAINER_RUNNING
        return cri_pb2.StartContainerResponse()

    def stop(self, request: cri_pb2.StopContainerRequest) -> cri_pb2.StopContainerResponse:
        """StopContainer: a process that gets time ends with code 0; one that never ran is left as it is."""
        if request.container_id in self.containers or self.release < _STOPS_ANYTHING:
            self.exit(self._container(request.container_id), 0 if request.timeout > 0 else _KILLED)
        return cri_pb2.StopContainerResponse()

    def remove(self, request: cri_pb2.RemoveContainerRequest) -> cri_pb2.RemoveContainerResponse:
        """RemoveContainer: kills it first; of an unknown id there is nothing to remove."""
        container = self.containers.pop(request.container_id, None)
        if container:
            self.exit(container, _KILLED)
        return cri_pb2.RemoveContainerResponse()

    def update(self, request: cri_pb2.UpdateContainerResourcesRequest) -> cri_pb2.UpdateContainerResourcesResponse:
        """UpdateContainerResources: only a running container has a cgroup to change; the record changes always."""
        container = self.containers.get(request.container_id)
        if container is None:
            raise _not_found("failed to find container: not found")
        merged = cri_pb2.LinuxContainerResources()
        merged.CopyFrom(container.resources)
        _merge(merged, request.linux)
        if container.state == cri_pb2.CONTAINER_RUNNING:
            try:
                self.cgroups.apply(container.cgroup, merged)
            except CgroupRefusal as refusal:
                raise _unknown(
                    f"failed to update resources: failed to update resources: {refusal}: unknown"
                ) from refusal
        container.resources.CopyFrom(merged)
        return cri_pb2.UpdateContainerResourcesResponse()

    def status(self, request: cri_pb2.ContainerStatusRequest) -> cri_pb2.ContainerStatusResponse:
        """ContainerStatus."""
        return self._container(request.container_id).status(verbose=request.verbose)

    def list_containers(self, request: cri_pb2.ListContainersRequest) -> cri_pb2.ListContainersResponse:
        """ListContainers."""
        shown = (container for container in self.containers.values() if container.id not in self.hidden)
        items = [container.item() for container in shown if container.meets(request.filter)]
        return cri_pb2.ListContainersResponse(containers=items)

    def exec_sync(self, request: cri_pb2.ExecSyncRequest) -> cri_pb2.ExecSyncResponse:
        """ExecSync: every command succeeds in silence."""
        container = self.containers.get(request.container_id)
        if container is None:
            raise _not_found(
                f'failed to exec in container: failed to find container "{request.container_id}" in store: not found'
            )
        if container.state != cri_pb2.CONTAINER_RUNNING:
            state = cri_pb2.ContainerState.Name(container.state)
            raise _unknown(f"failed to exec in container: container is in {state} state")
        return cri_pb2.ExecSyncResponse()

    def exit(self, container: FakeContainer, code: int) -> None:
        """The container's process ends; nothing where there is none."""
        if container.state != cri_pb2.CONTAINER_RUNNING:
            return
        self.cgroups.end(container.cgroup, container.pid)
        container.state, container.pid, container.exit_code = cri_pb2.CONTAINER_EXITED, 0, code
        container.finished_at = time.time_ns()
        container.reason = "Error" if code else "Completed"

    def _container(self, container_id: str) -> FakeContainer:
        if container_id not in self.containers:
            raise _not_found(f'an error occurred when try to find container "{container_id}": not found')
        return self.containers[container_id]

    def _containers_of(self, pod: FakePod) -> list[FakeContainer]:
        return [each for each in self.containers.values() if each.sandbox_id == pod.id]

    def _reserved(self, kind: str, name: str, owner: str) -> Refusal:
        code, advice = grpc.StatusCode.UNKNOWN, ""
        if self.release >= _VERSION_2:
            code = grpc.StatusCode.FAILED_PRECONDITION
            advice = "; check if another CreateContainer request is in progress" if kind == "container" else ""
        return Refusal(code, f'failed to reserve {kind} name "{name}"{advice}: name "{name}" is reserved for "{owner}"')

    def _new_id(self) -> str:
        return hashlib.sha256(str(next(self._numbers)).encode()).hexdigest()


def _merge(into: cri_pb2.LinuxContainerResources, update: cri_pb2.LinuxContainerResources) -> None:
    """Zero and empty mean unchanged; keys of `unified` are never taken away; oom_score_adj is for the start only."""
    for descriptor, value in update.ListFields():
        if descriptor.name == "unified":
            into.unified.update(value)
        elif descriptor.name != "oom_score_adj":
            setattr(into, descriptor.name, value)
    if update.memory_limit_in_bytes and not update.memory_swap_limit_in_bytes:
        into.memory_swap_limit_in_bytes = update.memory_limit_in_bytes


def _pod_name(metadata: cri_pb2.PodSandboxMetadata) -> str:
    return f"{metadata.name}_{metadata.namespace}_{metadata.uid}_{metadata.attempt}"


def _not_found(message: str) -> Refusal:
    return Refusal(grpc.StatusCode.NOT_FOUND, message)


def _unknown(message: str) -> Refusal:
    """What containerd does not classify is UNKNOWN."""
    return Refusal(grpc.StatusCode.UNKNOWN, message)
