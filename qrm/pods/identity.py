"""Who a pod and a container are, and the pod's native QoS class, as a CRI message tells it."""

from __future__ import annotations

from collections.abc import Mapping

from qrm.pods.model import NativeQos, PodIdentity
from qrm.wire import cri_pb2

# Kubernetes k8s.io/kubelet pkg/types/labels.go; kubelet sets them over labels of the pod with the same key.
POD_NAME_LABEL = "io.kubernetes.pod.name"
POD_NAMESPACE_LABEL = "io.kubernetes.pod.namespace"
POD_UID_LABEL = "io.kubernetes.pod.uid"
CONTAINER_NAME_LABEL = "io.kubernetes.container.name"

UNNAMED = "(unnamed)"
"""The name of a container without one: no name that Kubernetes allows, and not empty, which means the whole pod."""

_POD = "pod"
_KUBEPODS = "kubepods"
_SLICE = ".slice"
_CLASSES = {"burstable": NativeQos.BURSTABLE, "besteffort": NativeQos.BEST_EFFORT}


def pod_identity(
    labels: Mapping[str, str], metadata: cri_pb2.PodSandboxMetadata, *, sandbox_id: str = ""
) -> PodIdentity:
    """The pod by its labels, for each missing one by its metadata, and where neither has a uid by `sandbox_id`."""
    return PodIdentity(
        uid=labels.get(POD_UID_LABEL) or metadata.uid or sandbox_id,
        namespace=labels.get(POD_NAMESPACE_LABEL) or metadata.namespace,
        name=labels.get(POD_NAME_LABEL) or metadata.name,
    )


def container_name(labels: Mapping[str, str], metadata: cri_pb2.ContainerMetadata) -> str:
    """The container's name by its label, else by its metadata, else `UNNAMED`; never empty."""
    return labels.get(CONTAINER_NAME_LABEL) or metadata.name or UNNAMED


def native_qos(cgroup_parent: str) -> NativeQos:
    """The class that `cgroup_parent`, the pod's cgroup, stands for; UNKNOWN for anything but a pod under kubepods.

    Both drivers' spellings, with or without a `--cgroup-root` (kubelet pkg/kubelet/cm cgroup_manager_linux.go and
    pod_container_manager_linux.go):

        /kubepods/pod<uid>                                            Guaranteed, cgroupfs
        /kubepods.slice/kubepods-pod<uid>.slice                       Guaranteed, systemd
        /kubepods/burstable/pod<uid>                                  Burstable, cgroupfs
        /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice
    """
    parts = [part for part in cgroup_parent.split("/") if part]
    if parts and parts[-1].endswith(_SLICE):
        # A slice's name spells its whole path, with "-" between the parts and "_" for a "-" in one.
        parts = parts[-1].removesuffix(_SLICE).split("-")
    match parts:
        case [*_, first, second, pod] if first == _KUBEPODS and second in _CLASSES and _is_pod(pod):
            return _CLASSES[second]
        case [*_, last, pod] if last == _KUBEPODS and _is_pod(pod):
            return NativeQos.GUARANTEED
    return NativeQos.UNKNOWN


def _is_pod(part: str) -> bool:
    return part.startswith(_POD) and part != _POD
