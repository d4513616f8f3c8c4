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
    changing: bool
    forwarded: bool = False


class UnderWay:
    """Follows calls from their arrival to their reply."""

    def __init__(self) -> None:
        self.closed = False
        """Whether no call is sent to the runtime any more that was not before."""
        self._changing: set[_Call] = set()
        self._calm = asyncio.Event()
        self._calm.set()

    def following(self, handler: Handler) -> Handler:
        """`handler`, with its calls followed."""

        async def handle(exchange: Exchange) -> bytes:
            with self._followed(exchange) as followed:
                return await handler(followed)

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
        """From now on calls that have not been sent to the runtime fail, and kubelet tries them again elsewhere."""
        self.closed = True

    @contextmanager
    def _followed(self, exchange: Exchange) -> Iterator[Exchange]:
        call = _Call(changing=exchange.method.rpartition("/")[2] in _CHANGING)

        async def forward(request: bytes) -> bytes:
            if self.closed and not call.forwarded:
                raise CallError(grpc.StatusCode.UNAVAILABLE, "qrm: this process has retired, another one serves")
            call.forwarded = True
            return await exchange.forward(request)

        if call.changing:
            self._changing.add(call)
            self._calm.clear()
        try:
            yield replace(exchange, forward=forward)
        finally:
            self._changing.discard(call)
            if not self._changing:
                self._calm.set()
