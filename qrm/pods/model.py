"""What a container asks for, in plain numbers and names. All of it is immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from qrm.config import IoLimits
from qrm.cpuset import NodeSet

MEMORY = "memory"
HUGEPAGES = "hugepages-"
"""Before the page size in Kubernetes' resource names, such as hugepages-1Gi."""
NET_EGRESS = "resource.katalyst.kubewharf.io/net_bandwidth"
"""Katalyst's name; it means both directions where nothing is asked as NET_INGRESS."""
NET_INGRESS = "qrm.io/net_ingress_bandwidth"
"""Ours, since Katalyst has none; from the annotation kubernetes.io/ingress-bandwidth."""


class QosLevel(StrEnum):
    """Katalyst's QoS levels: the values of `katalyst.kubewharf.io/qos_level`."""

    DEDICATED = "dedicated_cores"
    SHARED = "shared_cores"
    RECLAIMED = "reclaimed_cores"
    SYSTEM = "system_cores"


class NativeQos(StrEnum):
    """Kubernetes' own QoS class, read from the cgroup parent; UNKNOWN where there is none to read."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"
    UNKNOWN = "Unknown"


class ContainerKind(StrEnum):
    """The role in its pod. CRI does not carry it: UNKNOWN unless a pod source tells."""

    UNKNOWN = "unknown"
    MAIN = "main"
    INIT = "init"
    SIDECAR = "sidecar"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True)
class CpuEnhancement:
    """The keys of `katalyst.kubewharf.io/cpu_enhancement`."""

    cpuset_pool: str | None = None
    numa_share: bool = True
    """False: no other NUMA-bound shared pod on the same node."""
    suppression_tolerance_rate: float | None = None
    cpu_burst_policy: str | None = None
    cpu_burst_percent: int | None = None
    cpu_burst_threshold: float | None = None
    align_by_socket: bool = False
    distribute_evenly_across_numa: bool = False
    full_pcpus_pairing: bool = False


@dataclass(frozen=True, slots=True)
class MemoryEnhancement:
    """The keys of `katalyst.kubewharf.io/memory_enhancement`."""

    numa_binding: bool = False
    numa_exclusive: bool = False
    rss_overuse_threshold: float | None = None
    oom_priority: int | None = None


@dataclass(frozen=True, slots=True)
class NetworkEnhancement:
    """The keys of `katalyst.kubewharf.io/network_enhancement`."""

    namespace_type: str | None = None
    """host_ns, host_ns_preferred, anti_host_ns or anti_host_ns_preferred."""
    topology_affinity_restricted: bool = False
    """The NIC must be on the NUMA nodes that the pod gets."""


@dataclass(frozen=True, slots=True)
class Qos:
    """What a pod's annotations say about how it wants to be treated."""

    level: QosLevel = QosLevel.SHARED
    cpu: CpuEnhancement = field(default_factory=CpuEnhancement)
    memory: MemoryEnhancement = field(default_factory=MemoryEnhancement)
    network: NetworkEnhancement = field(default_factory=NetworkEnhancement)
    numa_number: int | None = None
    numa_ids: NodeSet | None = None
    """Wins over numa_number, as in Katalyst."""
    by_default: bool = False
    """No annotation named the level: it is the node's default."""
    memory_only_nodes: bool = False
    """`qrm.io/memory_only_nodes`: memory may come from NUMA nodes without CPUs (CXL, HBM)."""
    profile: str = ""
    """`qrm.io/profile`: how it is isolated, if not as its level is; "" for that."""
    io_max: Mapping[str, IoLimits] = field(default_factory=dict)
    """`qrm.io/io_max`: limits by device, over those of the profile."""


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """Who a pod is. For static pods the uid is the hash of their manifest."""

    uid: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ContainerKey:
    """One container's place in the ledger. An empty name stands for the pod as a whole."""

    pod_uid: str
    container: str


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """One container's ask."""

    pod: PodIdentity
    container: str
    qos: Qos = field(default_factory=Qos)
    kind: ContainerKind = ContainerKind.UNKNOWN
    native_qos: NativeQos = NativeQos.UNKNOWN
    cpu_millis: int = 0
    """The CPU request in millicores; 0 for none (or for 1 or 2 millicores, which CRI cannot tell from none)."""
    cpu_limit_millis: int | None = None
    memory_limit: int = 0
    """Bytes; 0 for no limit."""
    pod_cpu_millis: int = 0
    """The request of the whole pod in millicores as its sandbox told it; 0 where it did not."""
    quantities: Mapping[str, int] = field(default_factory=dict)
    """What is asked besides CPU, by Kubernetes' resource name: `memory` and `hugepages-<size>` in bytes, NET_EGRESS and
    NET_INGRESS in Mbit/s, extended resources in their own units. What is not asked is not there."""
    pod_quantities: Mapping[str, int] = field(default_factory=dict)
    """The same for the pod as a whole, as far as the source of the requests knows its containers."""
    source: str = "cri"
    """Where the requests were learned: `annotation`, `kubelet`, or `cri` for the inversion of CRI's numbers."""

    @property
    def key(self) -> ContainerKey:
        """The container's place in the ledger."""
        return ContainerKey(self.pod.uid, self.container)

    @property
    def pod_key(self) -> ContainerKey:
        """The place of the pod as a whole in the ledger."""
        return ContainerKey(self.pod.uid, "")
