"""Pods as a script writes them, and the CRI messages that kubelet makes of them.

Formulas and spellings are kubelet's: pkg/kubelet/kuberuntime (kuberuntime_sandbox.go, kuberuntime_container.go,
kuberuntime_container_linux.go, labels.go), pkg/kubelet/cm/helpers_linux.go and pkg/kubelet/qos/policy.go.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from qrm.demo.image import IMAGE
from qrm.pods.model import NativeQos
from qrm.units import DEFAULT_PERIOD, MILLIS_PER_CPU, shares_from_millis
from qrm.wire import cri_pb2

MIN_QUOTA = 1000
_GUARANTEED_SCORE, _BEST_EFFORT_SCORE = -997, 1000
_LOWEST_BURSTABLE_SCORE, _HIGHEST_BURSTABLE_SCORE = 3, 999
_QOS_FOLDER = {NativeQos.GUARANTEED: "", NativeQos.BURSTABLE: "/burstable", NativeQos.BEST_EFFORT: "/besteffort"}


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container of a pod spec. Amounts are millicores and bytes; 0 stands for none given."""

    name: str
    cpu_request: int = 0
    cpu_limit: int = 0
    memory_request: int = 0
    memory_limit: int = 0
    command: tuple[str, ...] = ()
    """Empty for the image's own: sleep until SIGTERM."""
    image: str = IMAGE

    @property
    def cpu(self) -> int:
        """The request in millicores; as in the API server, a limit without a request stands for both."""
        return self.cpu_request or self.cpu_limit

    @property
    def memory(self) -> int:
        """The request in bytes; as in the API server, a limit without a request stands for both."""
        return self.memory_request or self.memory_limit


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod spec. What a pod asks of qrm stands in `annotations`, as on a cluster."""

    name: str
    containers: tuple[ContainerSpec, ...]
    namespace: str = "default"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    host_network: bool = True
    """False needs a pod network in the runtime."""

    @property
    def qos(self) -> NativeQos:
        """Kubernetes' QoS class (pkg/apis/core/v1/helper/qos)."""
        if not any((each.cpu, each.memory) != (0, 0) for each in self.containers):
            return NativeQos.BEST_EFFORT
        if all(
            each.cpu_limit and each.memory_limit and (each.cpu, each.memory) == (each.cpu_limit, each.memory_limit)
            for each in self.containers
        ):
            return NativeQos.GUARANTEED
        return NativeQos.BURSTABLE

    def cgroup(self, root: str = "") -> str:
        """The pod's cgroup in the spelling of kubelet's cgroupfs driver; `root` is its --cgroup-root."""
        return f"{root}/kubepods{_QOS_FOLDER[self.qos]}/pod{self.uid}"

    def container(self, name: str) -> ContainerSpec:
        """The container called `name`; KeyError where there is none."""
        for each in self.containers:
            if each.name == name:
                return each
        raise KeyError(name)


def sandbox_config(pod: Pod, *, cgroup_root: str = "", attempt: int = 0) -> cri_pb2.PodSandboxConfig:
    """What RunPodSandbox and each CreateContainer carry about the pod."""
    network = cri_pb2.NODE if pod.host_network else cri_pb2.POD
    return cri_pb2.PodSandboxConfig(
        metadata=cri_pb2.PodSandboxMetadata(name=pod.name, uid=pod.uid, namespace=pod.namespace, attempt=attempt),
        hostname="" if pod.host_network else pod.name,
        labels={**pod.labels, **_pod_labels(pod)},
        annotations={"kubernetes.io/config.source": "api", **pod.annotations},
        linux=cri_pb2.LinuxPodSandboxConfig(
            cgroup_parent=pod.cgroup(cgroup_root),
            security_context=cri_pb2.LinuxSandboxSecurityContext(namespace_options=_namespaces(network)),
            overhead=cri_pb2.LinuxContainerResources(),
            resources=pod_resources(pod),
        ),
    )


def container_config(pod: Pod, spec: ContainerSpec, *, attempt: int = 0) -> cri_pb2.ContainerConfig:
    """What CreateContainer carries about the container; `attempt` is how often it was restarted."""
    network = cri_pb2.NODE if pod.host_network else cri_pb2.POD
    return cri_pb2.ContainerConfig(
        metadata=cri_pb2.ContainerMetadata(name=spec.name, attempt=attempt),
        image=cri_pb2.ImageSpec(image=spec.image),
        command=[each.encode() for each in spec.command],
        labels={**_pod_labels(pod), "io.kubernetes.container.name": spec.name},
        annotations={
            "io.kubernetes.container.hash": _spec_hash(spec),
            "io.kubernetes.container.restartCount": str(attempt),
            "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            "io.kubernetes.container.terminationMessagePolicy": "File",
            "io.kubernetes.pod.terminationGracePeriod": "30",
        },
        linux=cri_pb2.LinuxContainerConfig(
            resources=container_resources(pod, spec),
            security_context=cri_pb2.LinuxContainerSecurityContext(namespace_options=_namespaces(network)),
        ),
    )


def container_resources(pod: Pod, spec: ContainerSpec) -> cri_pb2.LinuxContainerResources:
    """One container's resources, as CreateContainer and an in-place resize carry them."""
    resources = _resources(spec.cpu, spec.cpu_limit, spec.memory_limit)
    resources.oom_score_adj = _oom_score(pod, spec)
    return resources


def pod_resources(pod: Pod) -> cri_pb2.LinuxContainerResources:
    """The sums over the containers; one without a limit adds nothing, so they may be less than the pod may use."""
    return _resources(
        sum(each.cpu for each in pod.containers),
        sum(each.cpu_limit for each in pod.containers),
        sum(each.memory_limit for each in pod.containers),
    )


def _resources(cpu: int, cpu_limit: int, memory_limit: int) -> cri_pb2.LinuxContainerResources:
    quota = max(MIN_QUOTA, cpu_limit * DEFAULT_PERIOD // MILLIS_PER_CPU) if cpu_limit else 0
    return cri_pb2.LinuxContainerResources(
        cpu_period=DEFAULT_PERIOD,
        cpu_quota=quota,
        cpu_shares=shares_from_millis(cpu),
        memory_limit_in_bytes=memory_limit,
    )


def _oom_score(pod: Pod, spec: ContainerSpec) -> int:
    """The more memory a burstable container requests, the later it is killed."""
    if pod.qos is NativeQos.GUARANTEED:
        return _GUARANTEED_SCORE
    if pod.qos is NativeQos.BEST_EFFORT:
        return _BEST_EFFORT_SCORE
    score = 1000 - 1000 * spec.memory // _machine_memory()
    return min(max(score, _LOWEST_BURSTABLE_SCORE), _HIGHEST_BURSTABLE_SCORE)


@cache
def _machine_memory() -> int:
    first, *_ = Path("/proc/meminfo").read_text().splitlines()
    return int(first.removeprefix("MemTotal:").removesuffix("kB")) * 1024


def _pod_labels(pod: Pod) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": pod.name,
        "io.kubernetes.pod.namespace": pod.namespace,
        "io.kubernetes.pod.uid": pod.uid,
    }


def _namespaces(network: cri_pb2.NamespaceMode) -> cri_pb2.NamespaceOption:
    return cri_pb2.NamespaceOption(network=network, pid=cri_pb2.CONTAINER, ipc=cri_pb2.POD)


def _spec_hash(spec: ContainerSpec) -> str:
    """FNV-1a, 32 bits, of what kubelet hashes: a new one means that the container is to be replaced."""
    value = 0x811C9DC5
    for byte in json.dumps({"name": spec.name, "image": spec.image}).encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{value:x}"
