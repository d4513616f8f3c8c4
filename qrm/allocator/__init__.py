"""The API that allocator plugins are written against. Plugins import this package, `qrm.topology` and `qrm.cpuset`."""

from qrm.allocator.api import Allocation, Allocator, Changes, Holding, Quantities, State, TopologyHint
from qrm.errors import BadRequest, ConfigError, DoesNotFit
from qrm.pods.model import (
    HUGEPAGES,
    MEMORY,
    NET_EGRESS,
    NET_INGRESS,
    ContainerKey,
    ContainerKind,
    CpuEnhancement,
    MemoryEnhancement,
    NativeQos,
    NetworkEnhancement,
    PodIdentity,
    Qos,
    QosLevel,
    ResourceRequest,
)

__all__ = [
    "HUGEPAGES",
    "MEMORY",
    "NET_EGRESS",
    "NET_INGRESS",
    "Allocation",
    "Allocator",
    "BadRequest",
    "Changes",
    "ConfigError",
    "ContainerKey",
    "ContainerKind",
    "CpuEnhancement",
    "DoesNotFit",
    "Holding",
    "MemoryEnhancement",
    "NativeQos",
    "NetworkEnhancement",
    "PodIdentity",
    "Qos",
    "QosLevel",
    "Quantities",
    "ResourceRequest",
    "State",
    "TopologyHint",
]
