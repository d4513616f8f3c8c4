"""CreateContainer: the sequence of the design's section 5."""

from __future__ import annotations

import asyncio

from google.protobuf.message import DecodeError

from qrm.allocation.placements import Ask, Reservation
from qrm.enforcement.channel import CallError
from qrm.enforcement.texts import strict
from qrm.errors import BadRequest, DoesNotFit
from qrm.ledger.annotation import KEY, annotation
from qrm.ledger.record import CPU, Record
from qrm.pods.request import read_request
from qrm.shim.context import Context
from qrm.shim.exchange import Exchange
from qrm.shim.failpolicy import Action
from qrm.shim.isolate import isolate_unknown
from qrm.upkeep.isolation import amounts, wanted_files
from qrm.wire import cri_pb2 as cri

NO_QUOTA = -1
"""CFS quota "unlimited" in CRI; 0 would mean "unchanged"."""


class CreateContainer:
    """The handler."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._placements = context.placements

    async def __call__(self, exchange: Exchange) -> bytes:
        """Place the container, send it on, and write down what came of it."""
        context = self._context
        with context.refusals(), self._placements.metrics.step("read"):
            message = strict(cri.CreateContainerRequest, exchange.request)
            ask = await self._read(message)
            context.files.admit(ask.request.qos, amounts(ask.request, message.config.linux.resources))
            await isolate_unknown(context, ask.sandbox_id)
        with context.refusals():
            try:
                async with asyncio.timeout(context.budget_seconds):
                    await context.ready.wait()
                    reservation = await self._placements.reserve(ask)
            except (BadRequest, DoesNotFit):
                raise
            except Exception as error:
                if context.failure(error, ask.request.qos.level) is Action.REFUSE:
                    raise context.failed(error) from error
                return await self._pass_unmanaged(exchange, ask)
        return await self._forward(exchange, message, reservation)

    async def _read(self, message: cri.CreateContainerRequest) -> Ask:
        told = read_request(message, self._context.defaults())
        request = await self._context.source.complete(told, message.sandbox_config.annotations)
        asked = message.config.linux.resources.SerializeToString(deterministic=True)
        return Ask(request, message.pod_sandbox_id, message.config.metadata.attempt, asked)

    async def _pass_unmanaged(self, exchange: Exchange, ask: Ask) -> bytes:
        reply = await exchange.forward(exchange.request)
        container_id = _container_id(reply)
        if container_id:
            self._placements.note_unmanaged(ask, container_id)
        return reply

    async def _forward(
        self, exchange: Exchange, message: cri.CreateContainerRequest, reservation: Reservation
    ) -> bytes:
        # What others have taken since it was reserved is not asked for any more.
        record = self._placements.book.ledger.get(reservation.record.key) or reservation.record
        try:
            place(message.config, record)
            self._context.files.put(message.config.linux.resources, wanted_files(record, self._context.files))
            with self._placements.metrics.step("forward"):
                reply = await exchange.forward(message.SerializeToString())
        except CallError as error:
            if error.outcome_known:
                self._placements.revert(reservation)
            else:
                self._placements.unknown_outcome(reservation)
            raise
        except BaseException:
            self._placements.unknown_outcome(reservation)
            raise
        container_id = _container_id(reply)
        if container_id and record.cpus:
            await asyncio.shield(self._placements.commit(reservation, container_id, record.cpus))
        else:
            self._placements.unknown_outcome(reservation)
        return reply


def place(config: cri.ContainerConfig, record: Record) -> None:
    """Merge a record's placement into kubelet's container configuration.

    Environment variables go before those of the pod's spec: of two with the same name, the runtime takes the last.
    """
    pin(config.linux.resources, record)
    own = list(config.envs)
    del config.envs[:]
    for allocation in record.allocations.values():
        config.envs.extend(cri.KeyValue(key=key, value=value.encode()) for key, value in allocation.envs.items())
        for key, value in allocation.annotations.items():
            if key not in config.annotations:
                config.annotations[key] = value
    config.envs.extend(own)
    if CPU in record.allocations:
        config.annotations[KEY] = annotation(record)


def pin(resources: cri.LinuxContainerResources, record: Record) -> None:
    """Put our CPUs and memory nodes in place of kubelet's, and take the CFS quota off CPUs that nobody else uses."""
    for held in record.allocations.values():
        for field, value in held.oci.items():
            setattr(resources, field, value)
    allocation = record.allocations.get(CPU)
    if allocation is None:
        return
    resources.cpuset_cpus = str(allocation.cpus)
    if record.mems:
        resources.cpuset_mems = str(record.mems)
    if allocation.exclusive and resources.cpu_quota:
        resources.cpu_quota = NO_QUOTA


def _container_id(reply: bytes) -> str:
    try:
        return cri.CreateContainerResponse.FromString(reply).container_id
    except DecodeError:
        return ""
