"""Isolation of what runs: which values a container's line in the ledger stands for, and the loop that repairs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

import grpc
import structlog

from qrm.allocation.placements import Placements
from qrm.allocator import MEMORY
from qrm.enforcement.channel import CallError
from qrm.enforcement.isolation.containers import ContainerFiles
from qrm.enforcement.isolation.dimension import Sandbox
from qrm.enforcement.isolation.enforcer import Enforcer
from qrm.enforcement.isolation.knobs import Amounts
from qrm.enforcement.runtime import RuntimeClient
from qrm.errors import BadRequest
from qrm.ledger.record import CPU, Mark, Record
from qrm.pods.identity import pod_identity
from qrm.pods.model import ResourceRequest
from qrm.pods.qos import read_qos
from qrm.pods.request import QosDefaults
from qrm.wire import cri_pb2 as cri

log = structlog.get_logger(__name__)


def amounts(request: ResourceRequest, asked: cri.LinuxContainerResources, *, exclusive: bool = False) -> Amounts:
    """What a container has; `asked` is all that kubelet asks now, and with `exclusive` there is no quota."""
    quota = 0 if exclusive else asked.cpu_quota
    return Amounts(quota, request.quantities.get(MEMORY) or max(asked.memory_limit_in_bytes, 0))


def wanted_files(record: Record, files: ContainerFiles) -> Mapping[str, str]:
    """The cgroup files that a container of the ledger is to have; none for one that was adopted as it is."""
    if record.mark is Mark.ADOPTED or record.is_pod:
        return {}
    allocation = record.allocations.get(CPU)
    asked = cri.LinuxContainerResources.FromString(record.asked)
    has = amounts(record.request, asked, exclusive=bool(allocation and allocation.exclusive))
    try:
        return files.wanted(record.request.qos, has).files
    except BadRequest:
        return {}  # its profile has left the configuration since: it keeps what it has


class SandboxFinder:
    """Learns from the runtime what the isolation of a pod needs to know."""

    def __init__(self, runtime: RuntimeClient, files: ContainerFiles, defaults: Callable[[], QosDefaults]) -> None:
        self._runtime = runtime
        self._files = files
        self._defaults = defaults

    async def __call__(self, sandbox_id: str) -> Sandbox | None:
        """The sandbox; None where it is gone or not ready, or its annotations make no sense. Raises CallError."""
        try:
            found = await self._runtime.sandbox(sandbox_id)
        except CallError as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        status = found.status
        if status.state != cri.PodSandboxState.SANDBOX_READY:
            return None
        annotations = dict(status.annotations)
        try:
            qos = read_qos(annotations, self._defaults().level)
            profile = self._files.profile(qos)
        except BadRequest as error:
            log.warning("not isolated", sandbox=sandbox_id, error=str(error))
            return None
        pod = pod_identity(status.labels, status.metadata, sandbox_id=sandbox_id)
        return Sandbox(sandbox_id, pod, qos.level, profile, annotations, found.pid, found.netns)


class IsolationUpkeep:
    """Compares what isolates pods and containers with the kernel; each round says what it did."""

    def __init__(
        self, placements: Placements, runtime: RuntimeClient, enforcer: Enforcer, files: ContainerFiles
    ) -> None:
        self._placements = placements
        self._runtime = runtime
        self._enforcer = enforcer
        self._files = files

    async def cycle(self) -> str:
        """A round; returns a sentence on what it did, empty where nothing differed."""
        did = [f"put back {count} {name}" for name, count in (await self._containers()).items()]
        await self._enforcer.look_again()
        if self._enforcer.active:
            did += [each for each in [await self._pods()] if each]
        return ", ".join(did)

    async def _containers(self) -> Counter[str]:
        done = Counter[str]()
        for record in list(self._placements.book.ledger):
            if record.running and record.container_id and (files := wanted_files(record, self._files)):
                lock = self._placements.teller.locks.of(record.container_id)
                if not lock.locked():  # else it is being started or updated, which may take long
                    async with lock:
                        done.update(await self._files.repair(record.container_id, files))
        for name, count in done.items():
            self._placements.metrics.repairs.labels("cgroup", name).inc(count)
        return done

    async def _pods(self) -> str:
        asked = time.monotonic()
        try:
            sandboxes = await self._runtime.list_sandboxes()
            ready = [each.id for each in sandboxes if each.state == cri.PodSandboxState.SANDBOX_READY]
            return await self._enforcer.repair(ready, asked)
        except CallError as error:
            return f"the runtime does not answer: {error}"
