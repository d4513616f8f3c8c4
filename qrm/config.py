"""The configuration file: TOML, checked as a whole, every setting with its unit, default and reason.

`systemd/qrm.toml` is the same as a commented file. An unknown key or a wrong value is an error that names it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct, field

from qrm.errors import ConfigError

Level = Literal["dedicated_cores", "shared_cores", "reclaimed_cores", "system_cores"]
Positive = Annotated[float, Meta(gt=0, le=86400)]
"""Seconds."""


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all sections: immutable, and a key that it does not know is an error."""


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
    allowed_uid: int | None = None
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
    allocators: dict[str, dict[str, Any]] = field(default_factory=lambda: {"cpu": {}})
    """Which allocators are used, by their entry-point name, each with its own settings."""


RELOADABLE = ("qos", "upkeep", "log")
"""The sections that SIGHUP applies; the others need a restart."""


def load(path: Path) -> Config:
    """Read and check the file at `path`.

    Raises:
        ConfigError: it cannot be read, is not TOML (with the line), or a value is wrong (with its field).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", hint="name an existing file with --config") from error
    return parse(text, str(path))


def parse(text: str, source: str = "configuration") -> Config:
    """Check TOML `text`; `source` names it in errors. Raises ConfigError as `load` does."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {error}") from error
    try:
        config = msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        located = _located(str(error), values)
        raise ConfigError(f"{source}: {located}", hint="qrm.toml documents every setting") from error
    if config.metrics.listen:
        split_address(config.metrics.listen)
    _check(config)
    return config


def _check(config: Config) -> None:
    """What no type can say."""
    paths = {
        "shim.socket": config.shim.socket,
        "shim.admin_socket": config.shim.admin_socket,
        "shim.pod_resources_socket": config.shim.pod_resources_socket,
        "state.directory": config.state.directory,
        **{f"host.{name}": getattr(config.host, name) for name in config.host.__struct_fields__},
    }
    for name, path in paths.items():
        if not path.startswith("/"):
            raise ConfigError(f"{name} = {path!r}: not an absolute path", hint="write one that begins with /")
    if str(socket_path(config.runtime.endpoint)) in (config.shim.socket, config.shim.admin_socket):
        raise ConfigError(
            f"runtime.endpoint = {config.runtime.endpoint!r}: that is a socket of qrm itself",
            hint="name the container runtime's, such as unix:///run/containerd/containerd.sock",
        )
    if "cpu" not in config.allocators and "cpu" not in config.plugins.required:
        raise ConfigError("allocators: cpu is missing", hint="write [allocators.cpu], with or without settings in it")
    for name in ("directory", "registration_socket"):
        if (path := getattr(config.plugins, name)) and not path.startswith("/"):
            raise ConfigError(f"plugins.{name} = {path!r}: not an absolute path", hint="write one that begins with /")


def _located(message: str, values: dict[str, Any]) -> str:
    """Msgspec's message with the field, as it is written in the file, and its value in front."""
    found = re.fullmatch(r"(?P<what>.*?) - at `\$\.?(?P<where>.*)`", message, re.DOTALL)
    if found is None:
        return message
    value: Any = values
    for key in found["where"].split("."):
        value = value.get(key) if isinstance(value, dict) else None
    shown = "" if value is None or isinstance(value, dict) else f" = {value!r}"
    return f"{found['where']}{shown}: {_choices(found['where']) or found['what']}"


def _choices(where: str) -> str:
    """What may stand at `section.key`, where that is one of a few words."""
    kind: Any = Config
    for key in where.split("."):
        kind = get_type_hints(kind).get(key) if isinstance(kind, type) else None
    return f"must be one of {', '.join(get_args(kind))}" if get_origin(kind) is Literal else ""


def split_address(text: str) -> tuple[str, int]:
    """HOST:PORT as a pair; IPv6 hosts stand in brackets. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(
            f"metrics.listen: {text!r} is not HOST:PORT", hint='for example "127.0.0.1:9317", "" for none'
        )
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - an empty host means all of them, as elsewhere


def socket_path(endpoint: str) -> Path:
    """The path behind `unix:///path`, `unix:/path` or `/path`; raises ConfigError for anything else."""
    path = endpoint.removeprefix("unix://") if endpoint.startswith("unix://") else endpoint.removeprefix("unix:")
    if not path.startswith("/"):
        raise ConfigError(f"runtime.endpoint: {endpoint!r} is not a unix socket", hint="write unix:///path/to.sock")
    return Path(path)
