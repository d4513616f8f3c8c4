"""Takes over what already runs: at the first start on a live node, after a lost ledger, and behind our back.

A container that carries our annotation gets its line back. Any other is adopted as it is: it keeps its cpuset, is never
re-judged, and only makes room where exclusive CPUs are handed out later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import grpc
import structlog

from qrm.allocation.book import Book
from qrm.allocator import MEMORY, Allocation, ContainerKey, QosLevel, ResourceRequest
from qrm.cpuset import CPUSet, NodeSet
from qrm.enforcement.channel import CallError
from qrm.enforcement.runtime import ContainerDetails, RuntimeClient
from qrm.errors import BadRequest
from qrm.ledger.annotation import KEY, Kept, read_annotation
from qrm.ledger.record import CPU, Mark, Record
from qrm.pods.model import Qos
from qrm.pods.request import QosDefaults, read_request
from qrm.units import whole_cpus
from qrm.wire import cri_pb2 as cri

log = structlog.get_logger(__name__)

DEDICATED = "dedicated"
"""The pool name of CPUs that one pod has for itself."""


class Adopter:
    """Makes records for containers that the runtime has and the ledger has not."""

    def __init__(self, book: Book, runtime: RuntimeClient) -> None:
        self._book = book
        self._runtime = runtime

    async def adopt(self, containers: Iterable[cri.Container], defaults: QosDefaults) -> int:
        """Add a record for each of `containers`, oldest first; returns how many. Nothing is flushed or told.

        One of which the runtime does not tell, or which qrm fails at, is left out, and is no matter of the others.

        Raises:
            CallError: the runtime went away in the middle.
        """
        sandboxes: dict[str, cri.PodSandboxConfig] = {}
        adopted = 0
        for container in sorted(containers, key=lambda each: (each.created_at, each.id)):
            try:
                details = await self._runtime.container(container.id)
                sandbox = sandboxes.get(container.pod_sandbox_id)
                if sandbox is None:
                    sandbox = await self._runtime.sandbox_config(container.pod_sandbox_id)
                    sandboxes[container.pod_sandbox_id] = sandbox
                if self._book.ledger.find(container.id) is None:
                    adopted += self._add(container, details, sandbox, defaults)
            except CallError as error:
                if error.runtime_away:
                    raise
                if error.code is not grpc.StatusCode.NOT_FOUND:
                    log.warning("not adopted", id=container.id, error=str(error), next="with the next round")
            except Exception:
                # The others run all the same, and nothing could be promised to anybody before they are known.
                log.exception("not adopted", id=container.id, next="with the next round")
        return adopted

    def _add(
        self,
        container: cri.Container,
        details: ContainerDetails,
        sandbox: cri.PodSandboxConfig,
        defaults: QosDefaults,
    ) -> bool:
        """Make the record; returns False for a container that a newer attempt has replaced."""
        kept = read_annotation(container.annotations.get(KEY, ""))
        request, asked = _request(container, details, sandbox, kept, defaults)
        current = self._book.ledger.get(request.key)
        if current is not None and current.attempt > container.metadata.attempt:
            return False
        record = Record(
            request.key,
            request,
            container.pod_sandbox_id,
            attempt=container.metadata.attempt,
            container_id=container.id,
            mark=Mark.NONE if kept else Mark.ADOPTED,
            asked=asked,
            created=container.created_at / 1e9,
        )
        allocation = self._allocation(request, details.cpus, kept)
        if allocation.pool == DEDICATED or request.qos.memory.numa_binding:
            self._widen_pod(record, allocation)
        others = self._others(details, kept)
        held = {CPU: allocation} | {name: other for name, other in others.items() if name in self._book.holdings()}
        applied, mems = details.cpus or self._book.planner.machine.online, details.mems or self._memory_nodes()
        self._book.put(replace(record, applied=applied, applied_mems=mems, allocations=held))
        log.info(
            "rebuilt" if kept else "adopted", pod=str(request.pod), container=request.container, cpus=str(details.cpus)
        )
        return True

    def _allocation(self, request: ResourceRequest, cpus: CPUSet, kept: Kept | None) -> Allocation:
        """What the container holds: the cpuset that it has, exclusively if that is how it came by it."""
        machine = self._book.planner.machine
        known = cpus & machine.online
        own = request.qos.level is QosLevel.DEDICATED and len(cpus) == whole_cpus(request.cpu_millis)
        pool, exclusive = (kept.pool, kept.exclusive) if kept else (DEDICATED if own else "share", own)
        if kept is not None and known in (CPUSet(), machine.online):
            # Somebody has undone it, `qrm reset` perhaps: what was promised counts.
            known = (kept.cpuset & machine.online) or known
        usable = bool(known) and pool == DEDICATED and self._is_free(known, request)
        if (exclusive or pool == DEDICATED) and not usable:
            pool, exclusive = "share", False
        known = known or machine.online
        why = "rebuilt from its annotation" if kept else "ran here before qrm came"
        held = known if exclusive else CPUSet()
        return Allocation(pool, known, exclusive=held, nodes=machine.nodes_of(known), why=why)

    def _others(self, details: ContainerDetails, kept: Kept | None) -> dict[str, Allocation]:
        """What it holds besides CPU: by its annotation, else memory where it is."""
        if kept is not None:
            return {resource: each.allocation() for resource, each in kept.others.items()}
        return {
            MEMORY: Allocation("memory", nodes=details.mems or self._memory_nodes(), why="ran here before qrm came")
        }

    def _memory_nodes(self) -> NodeSet:
        nodes = self._book.planner.machine.nodes.values()
        return NodeSet(node.id for node in nodes if node.memory)

    def _is_free(self, cpus: CPUSet, request: ResourceRequest) -> bool:
        """Whether no other pod holds any of `cpus` exclusively."""
        return all(
            record.allocations[CPU].exclusive.isdisjoint(cpus)
            for record in self._book.ledger
            if record.key.pod_uid != request.pod.uid and CPU in record.allocations
        )

    def _widen_pod(self, record: Record, allocation: Allocation) -> None:
        """What a pod holds as a whole is at least what its containers run on."""
        key = ContainerKey(record.key.pod_uid, "")
        pod = self._book.ledger.get(key)
        cpus = allocation.cpus | (pod.allocations[CPU].cpus if pod else CPUSet())
        whole = replace(allocation, cpus=cpus, nodes=self._book.planner.machine.nodes_of(cpus))
        whole = replace(whole, exclusive=cpus if allocation.pool == DEDICATED else CPUSet())
        self._book.put(Record(key, record.request, record.sandbox_id, mark=record.mark, allocations={CPU: whole}))


def _request(
    container: cri.Container,
    details: ContainerDetails,
    sandbox: cri.PodSandboxConfig,
    kept: Kept | None,
    defaults: QosDefaults,
) -> tuple[ResourceRequest, bytes]:
    """The request behind a container that exists, and kubelet's own numbers for it."""
    asked = cri.LinuxContainerResources.FromString(kept.asked_bytes) if kept else details.asked
    message = cri.CreateContainerRequest(pod_sandbox_id=container.pod_sandbox_id, sandbox_config=sandbox)
    message.config.metadata.CopyFrom(container.metadata)
    message.config.labels.update(container.labels)
    message.config.linux.resources.CopyFrom(asked)
    try:
        request = read_request(message, defaults)
    except BadRequest as error:
        # It runs already: what it says is not for us to judge.
        log.warning("annotations of a running pod ignored", container=container.id, error=str(error))
        message.sandbox_config.ClearField("annotations")
        request = replace(read_request(message, defaults), qos=Qos())
    if kept is not None:
        request = replace(request, pod_cpu_millis=kept.pod_cpu, quantities=kept.quantities)
    return request, asked.SerializeToString()
