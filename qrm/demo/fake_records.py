"""One pod and one container of the fake runtime, and the replies that show them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import Message

from qrm.wire import cri_pb2

IMAGE_ID = "sha256:" + hashlib.sha256(b"the image of the fake runtime").hexdigest()

_CPU = (
    ("shares", "cpu_shares"),
    ("quota", "cpu_quota"),
    ("period", "cpu_period"),
    ("cpus", "cpuset_cpus"),
    ("mems", "cpuset_mems"),
)
_MEMORY = (("limit", "memory_limit_in_bytes"), ("swap", "memory_swap_limit_in_bytes"))


@dataclass(slots=True)
class FakePod:
    """One sandbox. `config` is the request's, kept as it came; `pid` is 0 once it is stopped."""

    id: str
    name: str
    handler: str
    config: cri_pb2.PodSandboxConfig
    cgroup: str
    pid: int
    created_at: int
    resources: cri_pb2.LinuxContainerResources

    @property
    def state(self) -> cri_pb2.PodSandboxState:
        """Ready until it is stopped."""
        return cri_pb2.SANDBOX_READY if self.pid else cri_pb2.SANDBOX_NOTREADY

    def meets(self, wanted: cri_pb2.PodSandboxFilter) -> bool:
        """Whether a list with this filter shows it."""
        return (
            wanted.id in {"", self.id}
            and (not wanted.HasField("state") or wanted.state.state == self.state)
            and _has_labels(self.config.labels, wanted.label_selector)
        )

    def item(self) -> cri_pb2.PodSandbox:
        """It as a list shows it."""
        return cri_pb2.PodSandbox(
            id=self.id,
            metadata=self.config.metadata,
            state=self.state,
            created_at=self.created_at,
            labels=self.config.labels,
            annotations=self.config.annotations,
            runtime_handler=self.handler,
        )

    def status(self, *, verbose: bool) -> cri_pb2.PodSandboxStatusResponse:
        """The reply to PodSandboxStatus."""
        status = cri_pb2.PodSandboxStatus(
            id=self.id,
            metadata=self.config.metadata,
            state=self.state,
            created_at=self.created_at,
            labels=self.config.labels,
            annotations=self.config.annotations,
        )
        return cri_pb2.PodSandboxStatusResponse(status=status, info=self._info() if verbose else {})

    def _info(self) -> dict[str, str]:
        return _info(
            pid=self.pid,
            processStatus="running" if self.pid else "deleted",
            netNamespaceClosed=False,
            snapshotKey=self.id,
            snapshotter="native",
            runtimeHandler=self.handler,
            runtimeType="io.containerd.runc.v2",
            runtimeOptions={},
            config=_plain(self.config),
            runtimeSpec=_spec(cri_pb2.LinuxContainerResources(cpu_shares=2), self.cgroup),
            cniResult=None,
        )


@dataclass(slots=True)
class FakeContainer:
    """One container. `config` is the request's, kept as it came; updates change only `resources`."""

    id: str
    sandbox_id: str
    name: str
    config: cri_pb2.ContainerConfig
    cgroup: str
    created_at: int
    resources: cri_pb2.LinuxContainerResources
    state: cri_pb2.ContainerState = cri_pb2.CONTAINER_CREATED
    pid: int = 0
    """0 unless it runs."""
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""

    def meets(self, wanted: cri_pb2.ContainerFilter) -> bool:
        """Whether a list with this filter shows it."""
        return (
            wanted.id in {"", self.id}
            and wanted.pod_sandbox_id in {"", self.sandbox_id}
            and (not wanted.HasField("state") or wanted.state.state == self.state)
            and _has_labels(self.config.labels, wanted.label_selector)
        )

    def item(self) -> cri_pb2.Container:
        """It as a list shows it."""
        return cri_pb2.Container(
            id=self.id,
            pod_sandbox_id=self.sandbox_id,
            metadata=self.config.metadata,
            image=self.config.image,
            image_ref=IMAGE_ID,
            state=self.state,
            created_at=self.created_at,
            labels=self.config.labels,
            annotations=self.config.annotations,
        )

    def status(self, *, verbose: bool) -> cri_pb2.ContainerStatusResponse:
        """The reply to ContainerStatus."""
        status = cri_pb2.ContainerStatus(
            id=self.id,
            metadata=self.config.metadata,
            state=self.state,
            created_at=self.created_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
            exit_code=self.exit_code,
            image=self.config.image,
            image_ref=IMAGE_ID,
            reason=self.reason,
            message=self.message,
            labels=self.config.labels,
            annotations=self.config.annotations,
            resources=cri_pb2.ContainerResources(linux=self.resources),
        )
        return cri_pb2.ContainerStatusResponse(status=status, info=self._info() if verbose else {})

    def _info(self) -> dict[str, str]:
        return _info(
            sandboxID=self.sandbox_id,
            pid=self.pid,
            removing=False,
            snapshotKey=self.id,
            snapshotter="native",
            runtimeType="io.containerd.runc.v2",
            runtimeOptions={},
            config=_plain(self.config),
            runtimeSpec=_spec(self.resources, self.cgroup),
        )


def _has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in wanted.items())


def _info(**record: object) -> dict[str, str]:
    """The `info` of a verbose reply: Go's JSON of containerd's own record."""
    return {"info": json.dumps(record, separators=(",", ":"))}


def _plain(message: Message) -> dict[str, object]:
    """A message as Go's encoding/json writes it: proto names, numbers as numbers, nothing that is zero or empty."""
    result: dict[str, object] = {}
    for field, value in message.ListFields():
        if isinstance(value, Message):
            result[field.name] = _plain(value)
        elif isinstance(value, (int, str)):
            result[field.name] = value
        elif field.message_type is None:
            result[field.name] = list(value)
        else:
            # The only repeated messages in what CRI configures here are maps of strings.
            result[field.name] = dict(value)
    return result


def _spec(resources: cri_pb2.LinuxContainerResources, cgroup: str) -> dict[str, object]:
    """The part of the OCI spec that tells where a container may run and what it may use."""

    def given(names: tuple[tuple[str, str], ...]) -> dict[str, object]:
        return {oci: value for oci, cri in names if (value := getattr(resources, cri))}

    parts: dict[str, object] = {
        "devices": [{"allow": False, "access": "rwm"}],
        "memory": given(_MEMORY),
        "cpu": given(_CPU),
        "unified": dict(resources.unified),
    }
    return {
        "ociVersion": "1.0.2",
        "linux": {"resources": {name: part for name, part in parts.items() if part}, "cgroupsPath": cgroup},
    }
