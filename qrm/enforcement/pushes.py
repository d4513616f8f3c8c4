"""Tells the runtime a running container's new cpuset and memory nodes."""

from __future__ import annotations

from enum import StrEnum

import grpc
import structlog

from qrm.cpuset import CPUSet, NodeSet
from qrm.enforcement.channel import CallError
from qrm.enforcement.gone_disks import let_go
from qrm.enforcement.isolation.containers import ContainerFiles
from qrm.enforcement.runtime import RuntimeClient
from qrm.metrics import Metrics
from qrm.wire import cri_pb2 as cri

log = structlog.get_logger(__name__)

_GONE_TEXTS = ("not found", "container is in CONTAINER_EXITED state", "container not running", "cgroup deleted")


class Outcome(StrEnum):
    """How a push ended."""

    APPLIED = "applied"
    GONE = "gone"
    """The container is not there any more, which is as good."""
    FAILED = "failed"
    WAITS = "waits"
    """Nothing was sent: another container has to leave these CPUs first."""


class Pusher:
    """Sends cpusets and memory nodes to containers."""

    def __init__(self, runtime: RuntimeClient, files: ContainerFiles, metrics: Metrics) -> None:
        self._runtime = runtime
        self._files = files
        self._metrics = metrics

    async def push(self, container_id: str, *, cpus: CPUSet | None = None, mems: NodeSet | None = None) -> Outcome:
        """Make `container_id` run on `cpus` and have its memory on `mems`; what is None stays.

        A failure is logged and counted, never raised: who asked decides what it means. An empty set would mean
        "unchanged" in CRI and is refused here.
        """
        if (cpus is not None and not cpus) or (mems is not None and not mems):
            raise ValueError("an empty set cannot be pushed")
        resources = cri.LinuxContainerResources(cpuset_cpus=str(cpus or ""), cpuset_mems=str(mems or ""))
        outcome = Outcome.APPLIED
        try:
            try:
                await self._update(container_id, resources)
            except CallError as error:
                if _is_gone(error) or not await let_go(error, container_id, self._runtime, self._files):
                    raise
                await self._update(container_id, resources)
        except CallError as error:
            outcome = Outcome.GONE if _is_gone(error) else Outcome.FAILED
            log.warning("runtime refused", id=container_id, cpus=str(cpus), mems=str(mems), error=error.details)
        self._metrics.pushes.labels(str(outcome)).inc()
        return outcome

    async def _update(self, container_id: str, resources: cri.LinuxContainerResources) -> None:
        async with self._files.updating(container_id, resources):
            await self._runtime.update(container_id, resources)


def _is_gone(error: CallError) -> bool:
    if error.code is grpc.StatusCode.NOT_FOUND:
        return True
    return error.code is grpc.StatusCode.UNKNOWN and any(text in error.details for text in _GONE_TEXTS)
