"""The calls about pods."""

from __future__ import annotations

import time

import grpc

from qrm.enforcement.channel import CallError
from qrm.pods.declared import read_declared, with_bandwidth
from qrm.pods.request import read_sandbox_qos
from qrm.shim.context import Context
from qrm.shim.exchange import Exchange, forward_ending
from qrm.units import request_millis
from qrm.wire import cri_pb2 as cri


class SandboxCalls:
    """Their handlers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._placements = context.placements

    async def run(self, exchange: Exchange) -> bytes:
        """Annotations that no container could be created with are refused before there is a sandbox."""
        message = cri.RunPodSandboxRequest.FromString(exchange.request)
        with self._context.refusals():
            read_sandbox_qos(message.config, self._context.defaults())
            with_bandwidth(read_declared(message.config.annotations), message.config.annotations)
        return await exchange.forward(exchange.request)

    async def stop(self, exchange: Exchange) -> bytes:
        """What the pod held is free once the runtime has stopped all of it."""
        sandbox_id = cri.StopPodSandboxRequest.FromString(exchange.request).pod_sandbox_id
        return await forward_ending(exchange, lambda: self._placements.sandbox_gone(sandbox_id))

    async def remove(self, exchange: Exchange) -> bytes:
        """As `stop`, for a sandbox that was not stopped through us."""
        sandbox_id = cri.RemovePodSandboxRequest.FromString(exchange.request).pod_sandbox_id
        return await forward_ending(exchange, lambda: self._placements.sandbox_gone(sandbox_id))

    async def update(self, exchange: Exchange) -> bytes:
        """The pod's new total; kubelet goes on with a resize where the runtime does not know this call."""
        message = cri.UpdatePodSandboxResourcesRequest.FromString(exchange.request)
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
