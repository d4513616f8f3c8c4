"""Tells the runtime a running container's new cpuset."""

from __future__ import annotations

from enum import StrEnum

import grpc
import structlog

from qrm.cpuset import CPUSet
from qrm.enforcement.channel import CallError
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


class Pusher:
    """Sends cpusets to containers."""

    def __init__(self, runtime: RuntimeClient, metrics: Metrics) -> None:
        self._runtime = runtime
        self._metrics = metrics

    async def push(self, container_id: str, cpus: CPUSet) -> Outcome:
        """Make `container_id` run on `cpus`. An empty set would mean "unchanged" in CRI and is refused here.

        A failure is logged and counted, never raised: who asked decides what it means.
        """
        if not cpus:
            raise ValueError("an empty cpuset cannot be pushed")
        outcome = Outcome.APPLIED
        try:
            await self._runtime.update(container_id, cri.LinuxContainerResources(cpuset_cpus=str(cpus)))
        except CallError as error:
            outcome = Outcome.GONE if _is_gone(error) else Outcome.FAILED
            log.warning("runtime refused", id=container_id, cpus=str(cpus), outcome=outcome, error=error.details)
        self._metrics.pushes.labels(str(outcome)).inc()
        return outcome


def _is_gone(error: CallError) -> bool:
    if error.code is grpc.StatusCode.NOT_FOUND:
        return True
    return error.code is grpc.StatusCode.UNKNOWN and any(text in error.details for text in _GONE_TEXTS)
