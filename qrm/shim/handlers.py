"""Which calls are looked at, and what happens where looking at them fails."""

from __future__ import annotations

from dataclasses import replace

import structlog

from qrm.enforcement.channel import CallError
from qrm.enforcement.runtime import SERVICE
from qrm.metrics import Metrics
from qrm.shim.containers import ContainerCalls
from qrm.shim.context import Context
from qrm.shim.create import CreateContainer
from qrm.shim.exchange import Exchange, Handler, Handlers
from qrm.shim.sandboxes import SandboxCalls

log = structlog.get_logger(__name__)


def make_handlers(context: Context) -> Handlers:
    """The handler of each intercepted method, by full path."""
    containers, sandboxes = ContainerCalls(context), SandboxCalls(context)
    handlers: dict[str, Handler] = {
        "RunPodSandbox": sandboxes.run,
        "StopPodSandbox": sandboxes.stop,
        "RemovePodSandbox": sandboxes.remove,
        "UpdatePodSandboxResources": sandboxes.update,
        "ListPodSandbox": sandboxes.list_all,
        "CreateContainer": CreateContainer(context),
        "StartContainer": containers.start,
        "StopContainer": containers.stop,
        "RemoveContainer": containers.remove,
        "UpdateContainerResources": containers.update,
        "ContainerStatus": containers.status,
        "ListContainers": containers.list_all,
    }
    metrics, following = context.placements.metrics, context.under_way.following
    return {SERVICE + method: following(_transparent(handler, metrics)) for method, handler in handlers.items()}


def _transparent(handler: Handler, metrics: Metrics) -> Handler:
    """A handler's own error, such as over a message that it cannot read, never becomes kubelet's.

    What the runtime has answered is passed on; what it has not been asked yet, it is asked as kubelet did.
    """

    async def handle(exchange: Exchange) -> bytes:
        replies: list[bytes] = []

        async def forward(request: bytes) -> bytes:
            replies.append(await exchange.forward(request))
            return replies[-1]

        try:
            return await handler(replace(exchange, forward=forward))
        except CallError:
            raise
        except Exception:
            log.exception("handler failed", method=exchange.method)
            metrics.failures.labels("handler", "", "passed on").inc()
            return replies[-1] if replies else await exchange.forward(exchange.request)

    return handle
