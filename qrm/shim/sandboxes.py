"""The calls about pods."""

from __future__ import annotations

import time

import grpc
import structlog

from qrm.enforcement.channel import CallError
from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.texts import lenient, strict
from qrm.pods.declared import read_declared, with_bandwidth
from qrm.pods.request import read_sandbox_qos
from qrm.shim.context import Context
from qrm.shim.exchange import Exchange, forward_ending
from qrm.shim.isolate import isolate
from qrm.units import request_millis
from qrm.wire import cri_pb2 as cri

log = structlog.get_logger(__name__)


class SandboxCalls:
    """Their handlers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._placements = context.placements

    async def run(self, exchange: Exchange) -> bytes:
        """Annotations that no container could be created with are refused before there is a sandbox.

        What isolates the pod as a whole is in force when kubelet hears of it: everything in the pod comes later.
        """
        with self._context.refusals():
            message = strict(cri.RunPodSandboxRequest, exchange.request)
            qos = read_sandbox_qos(message.config, self._context.defaults())
            with_bandwidth(read_declared(message.config.annotations), message.config.annotations)
            self._context.files.profile(qos)
        reply = await exchange.forward(exchange.request)
        if self._context.enforcer.active:
            with self._placements.metrics.step("isolate sandbox"):
                await self._isolate(cri.RunPodSandboxResponse.FromString(reply).pod_sandbox_id)
        return reply

    async def _isolate(self, sandbox_id: str) -> None:
        """A pod that must not run without it is removed again."""
        context = self._context
        try:
            await isolate(context, sandbox_id)
        except NotEnforced as error:
            try:
                await context.runtime.stop_sandbox(sandbox_id)
            except CallError as left:
                log.error("sandbox left behind", sandbox=sandbox_id, error=str(left))
            raise context.refusal("not isolated", grpc.StatusCode.UNAVAILABLE, error) from error

    def _gone(self, sandbox_id: str) -> None:
        self._placements.sandbox_gone(sandbox_id)
        self._context.enforcer.forget(sandbox_id)

    async def stop(self, exchange: Exchange) -> bytes:
        """What the pod held is free once the runtime has stopped all of it."""
        sandbox_id = cri.StopPodSandboxRequest.FromString(exchange.request).pod_sandbox_id
        return await forward_ending(exchange, lambda: self._gone(sandbox_id))

    async def remove(self, exchange: Exchange) -> bytes:
        """As `stop`, for a sandbox that was not stopped through us."""
        sandbox_id = cri.RemovePodSandboxRequest.FromString(exchange.request).pod_sandbox_id
        return await forward_ending(exchange, lambda: self._gone(sandbox_id))

    async def update(self, exchange: Exchange) -> bytes:
        """The pod's new total; kubelet goes on with a resize where the runtime does not know this call."""
        message = lenient(cri.UpdatePodSandboxResourcesRequest, exchange.request)
        try:
            return await exchange.forward(exchange.request)
        except CallError as error:
            if not _is_unimplemented(error):
                message.Clear()
            raise
        finally:
            if message.HasField("resources"):
                told = message.resources
                millis = request_millis(told.cpu_shares, told.cpu_quota, told.cpu_period)
                self._placements.resize_pod(message.pod_sandbox_id, millis)

    async def list_all(self, exchange: Exchange) -> bytes:
        """Pods that vanish are learned from what passes by."""
        asked = time.monotonic()
        reply = await exchange.forward(exchange.request)
        if cri.ListPodSandboxRequest.FromString(exchange.request).filter == cri.PodSandboxFilter():
            self._context.observer.saw_sandboxes(reply, asked)
        return reply


def _is_unimplemented(error: CallError) -> bool:
    """As kubelet tells it: containerd before 2.3 has the method missing or answering with a plain text."""
    return error.code is grpc.StatusCode.UNIMPLEMENTED or "not implemented" in error.details
