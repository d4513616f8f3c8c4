"""The held calls that are under way: what has to end before another process may take the node over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import grpc

from qrm.enforcement.channel import CallError
from qrm.shim.exchange import Exchange, Handler

_CHANGING = frozenset(
    {
        "RunPodSandbox",
        "CreateContainer",
        "StartContainer",
        "UpdateContainerResources",
        "UpdatePodSandboxResources",
    }
)
"""Calls after whose reply something is still to be done or written down. What the others tell, lists tell as well."""


@dataclass(eq=False, slots=True)
class _Call:
    task: asyncio.Task[bytes] | None
    forwarded: bool = False
    abandoned: bool = False


class UnderWay:
    """Follows the calls that change something, from their arrival to their reply."""

    def __init__(self) -> None:
        self._closed = False
        self._changing: set[_Call] = set()
        self._calm = asyncio.Event()
        self._calm.set()

    def following(self, handler: Handler) -> Handler:
        """`handler`, with its calls followed."""

        async def handle(exchange: Exchange) -> bytes:
            call = _Call(asyncio.current_task())

            async def forward(request: bytes) -> bytes:
                if self._closed and not call.forwarded:
                    raise _retired()
                call.forwarded = True
                return await exchange.forward(request)

            if exchange.method.rpartition("/")[2] not in _CHANGING:
                return await handler(replace(exchange, forward=forward))
            with self._followed(call):
                return await handler(replace(exchange, forward=forward))

        return handle

    async def settled(self, seconds: float) -> bool:
        """Wait for the calls that change something; returns whether all have ended in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._calm.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """From now on a call that was not sent to the runtime yet fails, and is undone: kubelet tries it elsewhere."""
        self._closed = True
        for call in self._changing:
            if not call.forwarded and call.task is not None:
                call.abandoned = True
                call.task.cancel()

    @contextmanager
    def _followed(self, call: _Call) -> Iterator[None]:
        self._changing.add(call)
        self._calm.clear()
        try:
            yield
        except asyncio.CancelledError:
            if call.abandoned and call.task is not None and not call.task.uncancel():
                raise _retired() from None
            raise
        finally:
            self._changing.discard(call)
            if not self._changing:
                self._calm.set()


def _retired() -> CallError:
    return CallError(grpc.StatusCode.UNAVAILABLE, "qrm: this process has retired, another one serves")
