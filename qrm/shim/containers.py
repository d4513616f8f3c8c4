"""The calls about a container that exists: update, start, stop, remove, status, and the list of them all."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import structlog

from qrm.allocation.placements import Ask, Reservation
from qrm.enforcement.channel import CallError
from qrm.enforcement.gone_disks import let_go
from qrm.enforcement.isolation.knobs import IO_MAX
from qrm.enforcement.texts import lenient, strict
from qrm.errors import BadRequest, DoesNotFit, QrmError
from qrm.ledger.record import CPU, Record
from qrm.pods.request import merge_asked, with_resources
from qrm.shim.context import Context
from qrm.shim.create import pin
from qrm.shim.exchange import Exchange, forward_ending
from qrm.shim.failpolicy import Action
from qrm.upkeep.isolation import wanted_files
from qrm.wire import cri_pb2 as cri

log = structlog.get_logger(__name__)


class ContainerCalls:
    """Their handlers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._placements = context.placements
        self._ledger = context.placements.book.ledger
        self._files = context.files

    async def update(self, exchange: Exchange) -> bytes:
        """kubelet's memory, quota and shares, our cpuset; a changed CPU request is planned anew first."""
        with self._context.refusals():
            message = strict(cri.UpdateContainerResourcesRequest, exchange.request)
        record = await self._context.record(message.container_id)
        if record is None or not record.running:
            return await exchange.forward(exchange.request)
        asked = merge_asked(cri.LinuxContainerResources.FromString(record.asked), message.linux)
        serialised = asked.SerializeToString(deterministic=True)
        reservation = await self._replan(record, asked, serialised)
        try:
            async with self._placements.teller.locks.of(message.container_id):
                record = await self._placements.teller.durable(message.container_id) or record
                pin(message.linux, record)
                wanted = wanted_files(replace(record, asked=serialised), self._files)
                self._files.put(message.linux, wanted)
                reply = await self._tell(exchange, message)
                await self._files.started(record.container_id, wanted)
        except CallError as error:
            if not error.outcome_known:
                self._placements.changed(message.container_id, serialised, None)
            elif reservation is not None:
                self._placements.revert(reservation)
            raise
        except BaseException:
            self._placements.changed(message.container_id, serialised, None)
            raise
        self._placements.changed(message.container_id, serialised, record.cpus)
        return reply

    async def _tell(self, exchange: Exchange, message: cri.UpdateContainerResourcesRequest) -> bytes:
        try:
            return await self._forward_update(exchange, message)
        except CallError as error:
            if not await let_go(error, message.container_id, self._context.runtime, self._files):
                raise
            message.linux.unified.pop(IO_MAX, None)  # the disk may have gone since it was put there
            return await self._forward_update(exchange, message)

    async def _forward_update(self, exchange: Exchange, message: cri.UpdateContainerResourcesRequest) -> bytes:
        async with self._files.updating(message.container_id, message.linux):
            return await exchange.forward(message.SerializeToString())

    async def _replan(
        self, record: Record, asked: cri.LinuxContainerResources, serialised: bytes
    ) -> Reservation | None:
        """A new plan where the CPU request has changed; None where there is nothing to plan, or qrm failed to."""
        request = with_resources(record.request, asked)
        if request.cpu_millis == record.request.cpu_millis or CPU not in record.allocations:
            return None
        ask = Ask(request, record.sandbox_id, record.attempt, serialised)
        with self._context.refusals():
            try:
                async with asyncio.timeout(self._context.budget_seconds):
                    return await self._placements.reserve(ask)
            except (BadRequest, DoesNotFit):
                raise
            except Exception as error:
                if self._context.failure(error, request.qos.level) is Action.REFUSE:
                    raise self._context.failed(error) from error
                return None

    async def start(self, exchange: Exchange) -> bytes:
        """A change that has not reached the container yet is told before its first instruction."""
        container_id = cri.StartContainerRequest.FromString(exchange.request).container_id
        record = await self._context.record(container_id)
        if record is None:
            return await exchange.forward(exchange.request)
        await self._pre_start(record)
        async with self._placements.teller.locks.of(container_id):
            await self._placements.teller.push_locked(container_id, mems=True)
            try:
                reply = await exchange.forward(exchange.request)
            except CallError as error:
                # containerd marks a container whose start has failed as exited; kubelet makes a new one.
                if error.outcome_known:
                    self._placements.exited([container_id])
                raise
            await self._isolate(record)
            return reply

    async def _isolate(self, record: Record) -> None:
        """What could not be in force before the start; what takes too long is left to upkeep."""
        try:
            async with asyncio.timeout(self._context.budget_seconds):
                with self._placements.metrics.step("isolate start"):
                    await self._files.started(record.container_id, wanted_files(record, self._files))
                    await self._context.enforcer.started(record.sandbox_id)
        except TimeoutError:
            log.warning("isolation takes too long", **record.named)

    async def _pre_start(self, record: Record) -> None:
        """Tell plugins that want to know; one that fails fails the start as the fail table says."""
        try:
            await self._placements.crew.pre_start(record.request.pod, record.key.container, record.allocations)
        except QrmError as error:
            if self._context.failure(error, record.request.qos.level) is Action.REFUSE:
                raise self._context.failed(error) from error

    async def stop(self, exchange: Exchange) -> bytes:
        """What ends here keeps its CPUs reserved for its pod."""
        container_id = cri.StopContainerRequest.FromString(exchange.request).container_id
        return await forward_ending(exchange, lambda: self._placements.exited([container_id]))

    async def remove(self, exchange: Exchange) -> bytes:
        """As `stop`: the pod may make the container anew."""
        container_id = cri.RemoveContainerRequest.FromString(exchange.request).container_id
        return await forward_ending(exchange, lambda: self._placements.exited([container_id]))

    async def status(self, exchange: Exchange) -> bytes:
        """Where we changed numbers, kubelet and its users see kubelet's own."""
        raw = await exchange.forward(exchange.request)
        reply = lenient(cri.ContainerStatusResponse, raw)
        record = self._ledger.find(reply.status.id)
        if record is None or not reply.status.resources.HasField("linux"):
            return raw
        restore(reply.status.resources.linux, record)
        self._files.shown(reply.status.resources.linux, cri.LinuxContainerResources.FromString(record.asked))
        return reply.SerializeToString()

    async def list_all(self, exchange: Exchange) -> bytes:
        """Exits and removals are learned from what passes by."""
        asked = time.monotonic()
        reply = await exchange.forward(exchange.request)
        if cri.ListContainersRequest.FromString(exchange.request).filter == cri.ContainerFilter():
            self._context.observer.saw_containers(reply, asked)
        return reply


def restore(shown: cri.LinuxContainerResources, record: Record) -> None:
    """Undo `pin` in what kubelet sees."""
    allocation = record.allocations.get(CPU)
    if allocation is None:
        return
    asked = cri.LinuxContainerResources.FromString(record.asked)
    shown.cpuset_cpus = asked.cpuset_cpus
    if record.mems:
        shown.cpuset_mems = asked.cpuset_mems
    if allocation.exclusive:
        shown.cpu_quota = asked.cpu_quota
