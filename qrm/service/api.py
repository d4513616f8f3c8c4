"""What the qrm command and the service say to each other: JSON over gRPC on the admin socket.

The structs are also what `--json` prints, so fields are only ever added. Ids are in kernel list format, CPU amounts in
millicores, memory in bytes, times in Unix seconds.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

PREFIX = "/qrm.v1.Admin/"
"""Before each method's name in the gRPC path."""


class Status(Struct, frozen=True):
    """`qrm status`."""

    version: str
    started: float
    socket: str
    runtime: str
    """Endpoint, and what answers there."""
    ready: bool
    """Whether ledger and runtime have been compared, so that containers can be placed."""
    containers: dict[str, int]
    """By QoS level; running ones."""
    unmanaged: int
    adopted: int
    pushes_due: int
    """Running containers whose new cpuset the runtime has not confirmed yet."""
    pools: dict[str, str]
    free: dict[str, int]
    """Millicores by NUMA node."""
    allocatable: dict[str, int]
    ledger: str


class Container(Struct, frozen=True):
    """One container in `qrm pods`."""

    pod: str
    """namespace/name."""
    pod_uid: str
    container: str
    id: str
    qos: str
    pool: str
    cpus: str
    exclusive: bool
    request: int
    state: str
    """running, exited, or pending."""
    mark: str
    """Empty, adopted or unmanaged."""


class Hint(Struct, frozen=True):
    """A NUMA node set that an allocator offered."""

    nodes: str
    preferred: bool


class Fact(Struct, frozen=True):
    """One value of isolation."""

    name: str
    wanted: str
    kernel: str
    """What is there now; empty where it is gone."""


class Explanation(Struct, frozen=True):
    """One container in `qrm explain`."""

    container: Container
    asked: dict[str, str]
    """What kubelet sent, field by field."""
    annotations: dict[str, str]
    """What was understood of the pod's annotations."""
    hints: dict[str, list[Hint]]
    why: dict[str, str]
    applied: str
    """The cpuset that the runtime last confirmed."""
    kernel: str
    """The cpuset in the cgroup now; empty where the container does not run."""
    cgroup: str
    created: float
    source: str = ""
    """Where the requests were learned: annotation, kubelet or cri."""
    quantities: dict[str, int] = {}
    """What is asked besides CPU, by resource name."""
    mems: str = ""
    """The NUMA nodes that its memory may be on; empty where qrm does not say."""
    kernel_mems: str = ""
    """The memory nodes in its cgroup now."""
    devices: dict[str, str] = {}
    """By resource."""
    nodes: str = ""
    """The NUMA nodes that suited all its resources when it was placed."""
    plugins: dict[str, str] = {}
    """What plugins say that it holds, by resource."""
    profile: str = ""
    """The profile by which it is isolated."""
    isolation: list[Fact] = []
    """Its cgroup files, and what its pod has of each dimension."""


class Change(Struct, frozen=True):
    """What a plan would change for one container, or for a pod as a whole (empty container name)."""

    pod: str
    container: str
    before: str
    after: str
    pool: str


class PlanRequest(Struct, frozen=True):
    """`qrm plan`: a pod as its manifest has it."""

    annotations: dict[str, str]
    containers: dict[str, int]
    """Name to request in millicores, in order of creation."""
    name: str = "planned"
    native_qos: str = "Unknown"
    namespace: str = ""
    pod: dict[str, Any] = {}
    """The manifest itself, for what is asked besides CPU; empty where there is none."""


class PlanReply(Struct, frozen=True):
    """What would happen."""

    fits: bool
    refusal: str
    """Why not, where it does not fit."""
    containers: list[Explanation]
    changes: list[Change]


class Feature(Struct, frozen=True):
    """One line of `qrm doctor`."""

    name: str
    state: str
    """on, off or degraded."""
    why: str


class Doctor(Struct, frozen=True):
    """`qrm doctor`."""

    features: list[Feature]


class CPUView(Struct, frozen=True):
    """One CPU in `qrm topology`."""

    id: int
    core: int
    l3: int
    die: int
    node: int
    socket: int
    pool: str
    """Who holds it: a pool's name, "dedicated", "reserve", "isolated", or empty."""
    pod: str
    """The pod that holds it exclusively."""


class NodeView(Struct, frozen=True):
    """One NUMA node in `qrm topology`."""

    id: int
    cpus: str
    memory: int
    hugepages: dict[str, int]
    """Page size in bytes to pages."""
    distances: dict[str, int]


class DeviceView(Struct, frozen=True):
    """A NIC or a disk in `qrm topology`."""

    name: str
    kind: str
    """nic or disk."""
    node: int | None
    detail: str


class Topology(Struct, frozen=True):
    """`qrm topology`."""

    cpus: list[CPUView]
    nodes: list[NodeView]
    devices: list[DeviceView]
    offline: str
    isolated: str


class ResetReport(Struct, frozen=True):
    """`qrm reset`."""

    containers: int
    """Running containers that got back the CPUs of the whole machine."""
    failed: list[str]
    """Containers that the runtime would not change, with its answer; then nothing was removed."""
    removed: list[str]
    """Files."""
    undone: list[str] = []
    """What was taken down of the node's isolation."""


class GiveWay(Struct, frozen=True):
    """`qrm serve --take-over`: what the running process is asked. It answers with its pid."""

    socket: str
    """Where the other process listens, beside kubelet's socket and to be renamed over it."""
