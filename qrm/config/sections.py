"""The sections of the configuration file, every setting with its unit, default and reason.

`systemd/qrm.toml` is the same as a commented file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from qrm.config.base import Level, Positive, Section
from qrm.config.isolation import (
    IoCostSection,
    IsolationSection,
    NetworkSection,
    Profile,
    RdtSection,
)


class RuntimeSection(Section, frozen=True):
    """The container runtime behind the shim."""

    endpoint: str = "unix:///run/containerd/containerd.sock"
    """Its CRI socket; a path, unix:PATH or unix://PATH."""


class ShimSection(Section, frozen=True):
    """The side that kubelet sees."""

    socket: str = "/run/qrm/qrm.sock"
    """Where kubelet connects (--container-runtime-endpoint). Mode 0600 in a directory of mode 0700."""
    admin_socket: str = "/run/qrm/admin.sock"
    """Where the qrm command connects; mode 0600."""
    pod_resources_socket: str = "/run/qrm/pod-resources.sock"
    """Where agents read who holds what, as from kubelet's PodResources (v1, with Katalyst's fields); mode 0600."""
    max_message_bytes: Annotated[int, Meta(ge=4 << 20, le=(1 << 31) - 1)] = 16 << 20
    """The largest message in bytes of a call that qrm looks at; larger ones pass unseen. kubelet and containerd end at
    16 MiB themselves. What qrm does not look at has no limit."""
    budget_seconds: Positive = 10.0
    """How long qrm may think about one call before its fail policy applies; kubelet waits for 120 s."""
    drain_seconds: Positive = 120.0
    """How long calls may go on in a process that has been replaced; kubelet waits for 120 s, and for StopContainer as
    long as the pod's grace period on top."""


class StateSection(Section, frozen=True):
    """What survives a restart."""

    directory: str = "/var/lib/qrm"
    """Holds the ledger. Must be on a local file system: it is fsynced at each change."""


class QosSection(Section, frozen=True):
    """Pods that say nothing about their QoS."""

    default_level: Level = "shared_cores"
    """The level of a pod without the annotation katalyst.kubewharf.io/qos_level (Katalyst: shared_cores)."""
    guaranteed_whole_cpus: Literal["shared_cores", "dedicated_cores"] = "shared_cores"
    """The level of whole-CPU containers in Guaranteed pods without the annotation. dedicated_cores gives them what
    kubelet's static CPU manager gives."""


class KubeletSection(Section, frozen=True):
    """kubelet's pod list, which has what CRI does not carry: memory and extended requests, container kinds."""

    pods_url: str = ""
    """Such as https://127.0.0.1:10250/pods, or http://127.0.0.1:10255/pods (the read-only port, which any process on
    the node can bind while kubelet does not); empty: kubelet is not asked."""
    token_file: str = ""
    """A bearer token, read anew each time; https only. Its user needs get on nodes/proxy (nodes/pods from 1.33)."""
    certificate_file: str = ""
    """A client certificate, PEM."""
    key_file: str = ""
    """Its key; empty where it is in the same file."""
    ca_file: str = ""
    """The CA of kubelet's serving certificate; empty: the system's."""
    skip_verification: bool = False
    """Trust any certificate."""
    budget_seconds: Positive = 0.5
    """How long one container may wait for kubelet in all."""
    max_age_seconds: Positive = 30.0
    """How old a list may be that is answered from; a pod's requests can change (Katalyst: 30 s)."""


class PluginsSection(Section, frozen=True):
    """Allocators in other processes that speak Katalyst's QRM protocol (resourceplugin.v1alpha1)."""

    directory: str = ""
    """Where they put their sockets, such as /var/lib/kubelet/plugins_registry; empty: nobody looks."""
    registration_socket: str = ""
    """Where they register themselves, such as /var/lib/kubelet/resource-plugins/kubelet.sock; empty: nowhere."""
    allowed_uid: Annotated[int, Meta(ge=0, le=(1 << 32) - 2)] | None = None
    """Whose plugins are taken besides root's."""
    required: tuple[str, ...] = ()
    """Resources that must come from a plugin, such as cpu where [allocators.cpu] is left out: without it, requests for
    them fail as the fail table says."""
    original_names: bool = True
    """Ask with the pod's own resource names, as Katalyst's kubelet; its plugins since 2026 want the mapped ones."""


class TopologySection(Section, frozen=True):
    """How close to each other the resources of a container have to be, on machines with several NUMA nodes."""

    policy: Literal["none", "best-effort", "restricted", "single-numa-node", "numeric"] = "best-effort"
    """As kubelet's --topology-manager-policy; numeric is Katalyst's."""
    scope: Literal["container", "pod"] = "container"
    """As kubelet's --topology-manager-scope: whether containers of a pod may be on different NUMA nodes."""
    aligned: tuple[str, ...] = ("cpu", "memory")
    """For the numeric policy: the resources that must be on the same NUMA nodes."""


class UpkeepSection(Section, frozen=True):
    """The loops that keep ledger, runtime and kernel in agreement."""

    drift_seconds: Positive = 10.0
    """How often the cgroups are compared with the ledger (kubelet's CPU manager reconciles at the same pace)."""
    uncertain_seconds: Positive = 60.0
    """How long a creation with an unknown outcome keeps its CPUs while the runtime does not list the container."""


class MetricsSection(Section, frozen=True):
    """Prometheus."""

    listen: str = "127.0.0.1:9317"
    """HOST:PORT of the metrics page; empty switches it off."""


class LogSection(Section, frozen=True):
    """The log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """What is left out below it."""
    format: Literal["logfmt", "json", "console"] = "logfmt"
    """One event a line as key=value, as JSON, or coloured for a terminal."""


class HostSection(Section, frozen=True):
    """Where the kernel's file systems are mounted; other values are for simulated nodes."""

    sysfs: str = "/sys"
    """Topology is read here."""
    proc: str = "/proc"
    """Processes' cgroups are read here."""
    cgroup: str = "/sys/fs/cgroup"
    """The cgroup mount: v2 itself, or the folder of v1 hierarchies."""


class Config(Section, frozen=True):
    """The whole file."""

    runtime: RuntimeSection = field(default_factory=RuntimeSection)
    shim: ShimSection = field(default_factory=ShimSection)
    state: StateSection = field(default_factory=StateSection)
    qos: QosSection = field(default_factory=QosSection)
    kubelet: KubeletSection = field(default_factory=KubeletSection)
    plugins: PluginsSection = field(default_factory=PluginsSection)
    topology: TopologySection = field(default_factory=TopologySection)
    upkeep: UpkeepSection = field(default_factory=UpkeepSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    log: LogSection = field(default_factory=LogSection)
    host: HostSection = field(default_factory=HostSection)
    isolation: IsolationSection = field(default_factory=IsolationSection)
    profiles: dict[str, Profile] = field(default_factory=dict)
    """By QoS level or by a name of their own, which a pod chooses with the annotation qrm.io/profile."""
    rdt: RdtSection = field(default_factory=RdtSection)
    io_cost: IoCostSection = field(default_factory=IoCostSection)
    network: NetworkSection = field(default_factory=NetworkSection)
    allocators: dict[str, dict[str, Any]] = field(default_factory=lambda: {"cpu": {}})
    """Which allocators are used, by their entry-point name, each with its own settings."""


RELOADABLE = ("qos", "upkeep", "log")
"""The sections that SIGHUP applies; the others need a restart."""
