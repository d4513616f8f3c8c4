"""From CRI messages to a `ResourceRequest`.

Every part of a message may be missing: crictl and tests leave out what kubelet sends. A missing message reads as an
empty one, and in CRI zero and empty mean "not said" throughout, so nothing here depends on which of the two it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from google.protobuf.unknown_fields import UnknownFieldSet

from qrm.errors import BadRequest
from qrm.pods.identity import container_name, native_qos, pod_identity
from qrm.pods.model import NativeQos, Qos, QosLevel, ResourceRequest
from qrm.pods.qos import read_qos
from qrm.units import MILLIS_PER_CPU, millis_from_quota, request_millis
from qrm.wire import cri_pb2


@dataclass(frozen=True, slots=True)
class QosDefaults:
    """The node's answer for pods without a `katalyst.kubewharf.io/qos_level`."""

    level: QosLevel = QosLevel.SHARED
    guaranteed_whole_cpus: QosLevel = QosLevel.SHARED
    """For containers that request whole CPUs in Guaranteed pods: shared_cores or dedicated_cores."""


def read_sandbox_qos(config: cri_pb2.PodSandboxConfig, defaults: QosDefaults) -> Qos:
    """What the pod says about its QoS, to refuse at RunPodSandbox what no container of it could be created with.

    Raises:
        BadRequest: As `qrm.pods.qos.read_qos`.
    """
    return read_qos(config.annotations, defaults.level)


def read_request(message: cri_pb2.CreateContainerRequest, defaults: QosDefaults) -> ResourceRequest:
    """What the container of `message` asks for.

    A pod that names no uid is known by the id of its sandbox, a container that has no name by `identity.UNNAMED`.

    Raises:
        BadRequest: As `qrm.pods.qos.read_qos`.
    """
    container, sandbox = message.config, message.sandbox_config
    in_pod = sandbox.linux.resources
    qos = read_sandbox_qos(sandbox, defaults)
    asked = with_resources(
        ResourceRequest(
            pod=pod_identity(
                {**container.labels, **sandbox.labels}, sandbox.metadata, sandbox_id=message.pod_sandbox_id
            ),
            container=container_name(container.labels, container.metadata),
            qos=qos,
            native_qos=native_qos(sandbox.linux.cgroup_parent),
            pod_cpu_millis=request_millis(in_pod.cpu_shares, in_pod.cpu_quota, in_pod.cpu_period),
        ),
        container.linux.resources,
    )
    return at_default_level(asked, sandbox.annotations, defaults)


def at_default_level(
    request: ResourceRequest, annotations: Mapping[str, str], defaults: QosDefaults
) -> ResourceRequest:
    """`request` at the level that the node gives whole CPUs in Guaranteed pods, where that applies to it."""
    if _is_promoted(request):
        return replace(request, qos=_promoted(annotations, request.qos, defaults))
    return request


def with_resources(request: ResourceRequest, resources: cri_pb2.LinuxContainerResources) -> ResourceRequest:
    """`request` with the CPU request and the limits of `resources`, which must be all that is asked now.

    The QoS stays: the level that a container got by default does not change while it lives, whatever its new size.
    """
    shares, quota, period = resources.cpu_shares, resources.cpu_quota, resources.cpu_period
    return replace(
        request,
        cpu_millis=request_millis(shares, quota, period),
        cpu_limit_millis=millis_from_quota(quota, period),
        memory_limit=max(resources.memory_limit_in_bytes, 0),
    )


def merge_asked(
    old: cri_pb2.LinuxContainerResources, new: cri_pb2.LinuxContainerResources
) -> cri_pb2.LinuxContainerResources:
    """What is asked after an update: `new` over `old`, as the runtime understands it (containerd WithResources).

    Fields of `new` that are not zero or empty replace those of `old`; `unified` is merged key by key. Fields that qrm
    does not know, such as `hugepage_limits`, are one block: that of `new` if it has any, else that of `old`. Appending
    them, as protobuf does, would make the lists grow with every update; one that is lost is only not repeated to the
    runtime, which keeps it.
    """
    merged = cri_pb2.LinuxContainerResources()
    merged.CopyFrom(old)
    if len(UnknownFieldSet(new)):
        merged.DiscardUnknownFields()
    merged.MergeFrom(new)
    return merged


def _is_promoted(request: ResourceRequest) -> bool:
    """Whether the level for whole CPUs in Guaranteed pods applies."""
    whole = request.cpu_millis >= MILLIS_PER_CPU and request.cpu_millis % MILLIS_PER_CPU == 0
    return request.qos.by_default and request.native_qos is NativeQos.GUARANTEED and whole


def _promoted(annotations: Mapping[str, str], qos: Qos, defaults: QosDefaults) -> Qos:
    """The QoS at the level for whole CPUs; `qos` unchanged where the pod's annotations make no sense at that level.

    A setting of the node must not make a pod fail whose annotations are right: what they ask for decides.
    """
    try:
        return read_qos(annotations, defaults.guaranteed_whole_cpus)
    except BadRequest:
        return qos
